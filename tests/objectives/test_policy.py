import functools
import itertools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from freshper_jax import objectives

SHAPE = (4, 5)
AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
LOGS = hnp.arrays(np.float32, SHAPE, elements=st.floats(-3, 0, width=32))
REALS = hnp.arrays(np.float32, SHAPE, elements=st.floats(-2, 2, width=32))
MASKS = hnp.arrays(np.bool_, SHAPE)
WEIGHTS = hnp.arrays(np.float32, SHAPE[0], elements=st.floats(0, 1, width=32))


def plain_loss(log_probs, behaviour, advantages, mask, weights, *, low, high, dual, aggregation):
    """The formulas of the papers, token by token, in float64."""
    total, response_rows = 0.0, 0
    for row in range(log_probs.shape[0]):
        losses = []
        for token in np.flatnonzero(mask[row]):
            ratio = np.exp(np.float64(log_probs[row, token]) - np.float64(behaviour[row, token]))
            advantage = np.float64(advantages[row, token])
            clipped = min(max(ratio, 1 - low), 1 + high)
            objective = min(ratio * advantage, clipped * advantage)
            if dual is not None and advantage < 0:
                objective = max(objective, dual * advantage)
            losses.append(-objective)
        if not losses:
            continue
        response_rows += 1
        share = {
            "token-mean": 1.0,
            "seq-mean-token-sum": 1.0,
            "seq-mean-token-mean": 1 / len(losses),
            "seq-mean-token-sum-norm": 1 / log_probs.shape[1],
        }[aggregation]
        total += weights[row] * share * sum(losses)
    denominator = mask.sum() if aggregation == "token-mean" else response_rows
    return total / max(denominator, 1)


@functools.cache
def jitted_loss(aggregation, dual_clip):
    return jax.jit(
        functools.partial(
            objectives.policy_loss,
            clip_low=0.1,
            clip_high=0.3,
            dual_clip=dual_clip,
            aggregation=aggregation,
        )
    )


@settings(max_examples=40)
@given(
    LOGS, LOGS, REALS, MASKS, WEIGHTS, st.sampled_from(AGGREGATIONS), st.sampled_from([None, 2.0])
)
def test_loss_matches_the_formula(
    log_probs, behaviour, advantages, mask, weights, aggregation, dual_clip
):
    loss, _ = jitted_loss(aggregation, dual_clip)(log_probs, behaviour, advantages, mask, weights)
    expected = plain_loss(
        log_probs,
        behaviour,
        advantages,
        mask,
        weights,
        low=0.1,
        high=0.3,
        dual=dual_clip,
        aggregation=aggregation,
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=15)
@given(
    LOGS, LOGS, REALS, MASKS, WEIGHTS, st.sampled_from(AGGREGATIONS), st.sampled_from([None, 2.0])
)
def test_gradient_matches_finite_differences(
    log_probs, behaviour, advantages, mask, weights, aggregation, dual_clip
):
    settings_of_oracle = {"low": 0.1, "high": 0.3, "dual": dual_clip, "aggregation": aggregation}
    # The loss has corners where a clip sets in; a difference across one means nothing.
    ratio = np.exp(log_probs.astype(np.float64) - behaviour)
    for corner in (0.9, 1.3, 2.0):
        assume(np.abs(ratio - corner).min() > 1e-4)
    gradient = jax.grad(
        lambda x: jitted_loss(aggregation, dual_clip)(x, behaviour, advantages, mask, weights)[0]
    )(jnp.asarray(log_probs))
    step = 1e-6
    for row, token in itertools.product(*map(range, SHAPE)):
        above, below = log_probs.astype(np.float64), log_probs.astype(np.float64)
        above[row, token] += step
        below[row, token] -= step
        difference = plain_loss(above, behaviour, advantages, mask, weights, **settings_of_oracle)
        difference -= plain_loss(below, behaviour, advantages, mask, weights, **settings_of_oracle)
        assert gradient[row, token] == pytest.approx(difference / (2 * step), abs=1e-4, rel=1e-3)


def one_token(log_ratio, advantage, **arguments):
    """Loss and gradient of one token whose log-ratio is given."""

    def loss(x):
        return objectives.policy_loss(
            x,
            jnp.zeros((1, 1)),
            jnp.full((1, 1), advantage),
            jnp.ones((1, 1), bool),
            **arguments,
        )[0]

    value, gradient = jax.value_and_grad(loss)(jnp.full((1, 1), log_ratio))
    return float(value), float(gradient[0, 0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "loss", "gradient"),
    [
        (1.0, 2.0, None, -2.0, -2.0),  # on policy: REINFORCE
        (1.0, -2.0, None, 2.0, 2.0),
        (1.5, 1.0, None, -1.2, 0.0),  # already raised enough
        (0.5, 1.0, None, -0.5, -0.5),  # unlucky good token: pulled back up
        (0.5, -1.0, None, 0.8, 0.0),  # already lowered enough
        (5.0, -1.0, None, 5.0, 5.0),  # unbounded in the ratio
        (5.0, -1.0, 3.0, 3.0, 0.0),  # bounded by the dual clip
        (2.0, -1.0, 3.0, 2.0, 2.0),
        (5.0, 1.0, 3.0, -1.2, 0.0),  # the dual clip concerns negative advantages only
    ],
)
def test_each_branch_in_closed_form(ratio, advantage, dual_clip, loss, gradient):
    value, slope = one_token(np.log(np.float32(ratio)), advantage, dual_clip=dual_clip)
    assert value == pytest.approx(loss, rel=1e-5)
    assert slope == pytest.approx(gradient, rel=1e-5)


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("log_ratio", [-500.0, 500.0])
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_hopeless_ratios_give_finite_losses_and_gradients(log_ratio, advantage, dual_clip):
    value, slope = one_token(log_ratio, advantage, dual_clip=dual_clip)
    assert np.isfinite(value)
    assert slope == 0.0


def random_batch(get_key):
    log_probs = -jax.random.exponential(get_key(), SHAPE)
    behaviour = log_probs + 0.3 * jax.random.normal(get_key(), SHAPE)
    advantages = jax.random.normal(get_key(), SHAPE)
    mask = jax.random.bernoulli(get_key(), 0.6, SHAPE).at[1].set(False)
    weights = jax.random.uniform(get_key(), SHAPE[:1])
    return log_probs, behaviour, advantages, mask, weights


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_nan_outside_the_mask_reaches_neither_value_nor_gradient(aggregation, get_key):
    log_probs, behaviour, advantages, mask, weights = random_batch(get_key)

    def loss(x, *rest):
        return objectives.policy_loss(x, *rest, aggregation=aggregation)[0]

    clean = jax.value_and_grad(loss)(log_probs, behaviour, advantages, mask, weights)
    dirty = [jnp.where(mask, array, jnp.nan) for array in (log_probs, behaviour, advantages)]
    weights = jnp.where(jnp.any(mask, axis=1), weights, jnp.nan)
    soiled = jax.value_and_grad(loss)(*dirty, mask, weights)
    jax.tree.map(np.testing.assert_array_equal, clean, soiled)
    np.testing.assert_array_equal(np.asarray(clean[1])[~np.asarray(mask)], 0.0)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_parts_of_a_batch_add_up_to_the_whole(aggregation, get_key):
    arrays = random_batch(get_key)
    normaliser = objectives.loss_normaliser(arrays[3], aggregation)
    parts = [
        objectives.policy_loss(
            *[array[rows] for array in arrays], aggregation=aggregation, normaliser=normaliser
        )[0]
        for rows in (slice(0, 1), slice(1, 3), slice(3, 4))
    ]
    whole, _ = objectives.policy_loss(*arrays, aggregation=aggregation)
    assert sum(parts) == pytest.approx(float(whole), rel=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_no_weights_are_weights_of_one(aggregation, get_key):
    *arrays, weights = random_batch(get_key)
    without, _ = objectives.policy_loss(*arrays, aggregation=aggregation)
    ones, _ = objectives.policy_loss(*arrays, jnp.ones_like(weights), aggregation=aggregation)
    halves, _ = objectives.policy_loss(
        *arrays, jnp.full_like(weights, 0.5), aggregation=aggregation
    )
    assert without == ones
    assert halves == pytest.approx(float(ones) / 2, rel=1e-6)


def test_metrics_count_the_tokens_without_gradient(get_key):
    log_probs, behaviour, advantages, mask, weights = random_batch(get_key)

    def loss(x):
        return objectives.policy_loss(
            x, behaviour, advantages, mask, weights + 0.1, clip_low=0.1, clip_high=0.1
        )

    gradient, metrics = jax.grad(loss, has_aux=True)(log_probs)
    dead = np.sum((np.asarray(gradient) == 0) & np.asarray(mask))
    assert 0 < dead < np.sum(mask)
    assert metrics["clip_fraction"] == pytest.approx(dead / np.sum(mask))


def test_an_empty_batch_has_zero_loss():
    zeros = jnp.zeros(SHAPE)
    loss, metrics = objectives.policy_loss(zeros, zeros, zeros, jnp.zeros(SHAPE, bool))
    assert loss == 0.0
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clip_low": 1.0}, r"clip_low must lie in \[0, 1\), got 1.0"),
        ({"clip_high": -0.1}, "clip_high must be at least 0, got -0.1"),
        ({"dual_clip": 1.0}, "dual_clip must be above 1 or None, got 1.0"),
        ({"aggregation": "mean"}, "aggregation must be one of token-mean, .*, got 'mean'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    zeros = jnp.zeros(SHAPE)
    with pytest.raises(ValueError, match=message):
        objectives.policy_loss(zeros, zeros, zeros, jnp.ones(SHAPE, bool), **arguments)


def test_mismatched_shapes_are_refused():
    zeros = jnp.zeros(SHAPE)
    with pytest.raises(AssertionError):
        objectives.policy_loss(zeros, zeros[:2], zeros, jnp.ones(SHAPE, bool))
    with pytest.raises(AssertionError):
        objectives.policy_loss(zeros, zeros, zeros, jnp.ones(SHAPE, bool), jnp.ones(2))
