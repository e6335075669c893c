import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax.training import OptimizerConfig, make_optimizer, make_schedule


def rates(config, steps):
    return np.asarray(jax.vmap(make_schedule(config))(jnp.asarray(steps, jnp.int32)))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_schedules_follow_their_formula_and_stay_at_their_end(schedule):
    config = OptimizerConfig(
        learning_rate=2.0, schedule=schedule, warmup_steps=4, total_steps=14, final_fraction=0.1
    )
    steps = list(range(40))

    def expected(step):
        if step < 4:
            return 2.0 * (step + 1) / 4
        progress = min((step - 4) / 10, 1.0)
        if schedule == "constant":
            return 2.0
        if schedule == "linear":
            return 2.0 * (1 - 0.9 * progress)
        return 2.0 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))

    np.testing.assert_allclose(rates(config, steps), [expected(s) for s in steps], rtol=1e-5)


def test_the_cosine_never_rises_again():
    # Three times as many updates as planned: the fault of a schedule that ignores replay.
    config = OptimizerConfig(schedule="cosine", total_steps=20)
    values = rates(config, range(60))
    assert np.all(np.diff(values) <= 0)
    assert np.all(values[20:] == 0)


def plain_adamw(params, grads, config, decay):
    """Loshchilov and Hutter (2019), algorithm 2, with the gradient clipped by its norm."""
    first, second = np.zeros_like(params), np.zeros_like(params)
    for step, grad in enumerate(grads, start=1):
        grad = grad * min(1.0, config.max_grad_norm / np.linalg.norm(grad))
        first = config.b1 * first + (1 - config.b1) * grad
        second = config.b2 * second + (1 - config.b2) * grad**2
        direction = first / (1 - config.b1**step)
        direction /= np.sqrt(second / (1 - config.b2**step)) + config.eps
        params = params - config.learning_rate * (direction + config.weight_decay * decay * params)
    return params


def test_directions_are_those_of_adamw(get_key):
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.3, max_grad_norm=0.5)
    optimizer = make_optimizer(
        config, decay_mask=lambda params: {name: name == "a" for name in params}
    )
    start = {name: jax.random.normal(get_key(), (2,)) for name in "ab"}
    grads = [
        {name: scale * jax.random.normal(get_key(), (2,)) for name in "ab"}
        for scale in (3.0, 0.1, 1.0)
    ]
    params, opt_state = start, optimizer.init(start)
    for grad in grads:
        direction, opt_state = optimizer.direction(grad, opt_state, params)
        params = jax.tree.map(lambda leaf, d: leaf + 0.1 * d, params, direction)

    def flat(tree):
        return np.concatenate([np.asarray(tree[name], np.float64) for name in "ab"])

    decay = np.array([1.0, 1.0, 0.0, 0.0])
    expected = plain_adamw(flat(start), [flat(grad) for grad in grads], config, decay)
    np.testing.assert_allclose(flat(params), expected, rtol=1e-5)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_small_steps_reach_bfloat16_parameters_by_stochastic_rounding_only(rounding):
    # 50 steps of 1e-4 from 1, where the next bfloat16 below is 1 - 2**-8: Adam's direction
    # under a constant gradient is -1.
    config = OptimizerConfig(learning_rate=1e-4, max_grad_norm=None, rounding=rounding)
    optimizer = make_optimizer(config)
    params = jnp.ones(4096, jnp.bfloat16)

    @jax.jit
    def step(carry, number):
        params, opt_state = carry
        direction, opt_state = optimizer.direction(jnp.ones_like(params), opt_state, params)
        return (optimizer.apply(params, direction, number), opt_state), ()

    (params, opt_state), _ = jax.lax.scan(
        step, (params, optimizer.init(params)), jnp.arange(50, dtype=jnp.int32)
    )
    assert params.dtype == jnp.bfloat16
    moments = [leaf for leaf in jax.tree.leaves(opt_state) if leaf.ndim]
    assert {leaf.dtype for leaf in moments} == {jnp.dtype(jnp.float32)}
    mean = np.mean(np.asarray(params, np.float64))
    if rounding == "nearest":
        assert mean == 1.0
    else:
        # A parameter's variance is at most 50 * 1e-4 * 2**-8.
        assert mean == pytest.approx(1 - 50e-4, abs=4 * np.sqrt(50e-4 * 2**-8 / 4096))


def test_the_noise_of_a_step_is_a_function_of_seed_and_step():
    params, direction = jnp.ones(256, jnp.bfloat16), jnp.full(256, -1.0)

    def applied(step, seed=0):
        config = OptimizerConfig(rounding="stochastic", rounding_seed=seed)
        return np.asarray(make_optimizer(config).apply(params, direction, jnp.int32(step)))

    np.testing.assert_array_equal(applied(3), applied(3))
    assert not np.array_equal(applied(3), applied(4))
    assert not np.array_equal(applied(3), applied(3, seed=1))


def test_bfloat16_moments_follow_their_closed_form():
    # Under a constant gradient of 1 the second moment is 1 - b2**t. Rounded to nearest it
    # would stop where a step, (1 - b2)(1 - v), is below half a step of bfloat16.
    optimizer = make_optimizer(OptimizerConfig(moment_dtype="bfloat16", max_grad_norm=None))
    params = jnp.zeros(512)

    @jax.jit
    def step(opt_state, _):
        direction, opt_state = optimizer.direction(jnp.ones(512), opt_state, params)
        return opt_state, jnp.mean(direction)

    opt_state, directions = jax.lax.scan(step, optimizer.init(params), length=1500)
    adam = opt_state[0]
    assert {adam.mu.dtype, adam.nu.dtype} == {jnp.dtype(jnp.bfloat16)}
    assert int(adam.count) == 1500
    want = 1 - 0.999**1500
    assert np.mean(np.asarray(adam.nu, np.float64)) == pytest.approx(want, rel=0.01)
    np.testing.assert_allclose(directions[-1], -1.0, rtol=0.02)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("learning_rate", 0.0, "learning_rate must be positive, got 0.0"),
        ("schedule", "step", "schedule must be one of constant, linear, cosine, got 'step'"),
        ("warmup_steps", -1, "warmup_steps must be at least 0"),
        ("total_steps", 3, r"total_steps must be above warmup_steps \(5\)"),
        ("total_steps", None, "total_steps must be above"),
        ("final_fraction", 1.5, "final_fraction must be in"),
        ("weight_decay", -0.1, "weight_decay must be at least 0"),
        ("b1", 1.0, "b1 must be in"),
        ("b2", -1.0, "b2 must be in"),
        ("eps", 0.0, "eps must be positive"),
        ("max_grad_norm", 0.0, "max_grad_norm must be positive or None"),
        ("moment_dtype", "float16", "moment_dtype must be one of float32, bfloat16"),
        ("rounding", "up", "rounding must be one of nearest, stochastic, got 'up'"),
        ("rounding_seed", -1, "rounding_seed must be an int in"),
    ],
)
def test_bad_settings_are_named(field, value, message):
    good = OptimizerConfig(schedule="cosine", warmup_steps=5, total_steps=10)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(good, **{field: value})
