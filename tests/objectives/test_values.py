import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import objectives

SHAPE = (5, 9)


def batch(get_key):
    """Random rewards, values and log-ratios, and a mask of turns with one row empty."""
    mask = jax.random.bernoulli(get_key(), 0.6, SHAPE).at[2].set(False)
    rewards, values, log_ratio = (jax.random.normal(get_key(), SHAPE) for _ in range(3))
    return np.asarray(log_ratio), np.asarray(rewards), np.asarray(values), np.asarray(mask)


def episodes(mask, *arrays):
    """Of each row the response tokens' places, and their entries of each array in float64."""
    for row in range(len(mask)):
        places = np.flatnonzero(mask[row])
        yield row, places, [np.asarray(array, np.float64)[row, places] for array in arrays]


def errors_of(rewards, values, gamma):
    following = np.append(values, 0.0)[1:]
    return rewards + gamma * following - values


def test_td_errors_skip_what_is_not_a_response(get_key):
    _, rewards, values, mask = batch(get_key)
    want = np.zeros(SHAPE)
    for row, places, (r, v) in episodes(mask, rewards, values):
        if len(places):
            want[row, places] = errors_of(r, v, 0.9)
    got = objectives.td_errors(rewards, values, mask, gamma=0.9)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("gamma", "trace"), [(0.9, 0.7), (1.0, 0.0), (0.8, 1.0)])
def test_generalised_advantages_sum_td_errors(gamma, trace, get_key):
    _, rewards, values, mask = batch(get_key)
    want, returns = np.zeros(SHAPE), np.zeros(SHAPE)
    for row, places, (r, v) in episodes(mask, rewards, values):
        for index, place in enumerate(places):
            errors = errors_of(r, v, gamma)[index:]
            want[row, place] = sum((gamma * trace) ** k * e for k, e in enumerate(errors))
            returns[row, place] = want[row, place] + v[index]
            if trace == 1.0:  # whatever the values are
                plain = sum(gamma**k * reward for k, reward in enumerate(r[index:]))
                assert returns[row, place] == pytest.approx(plain)
    got = objectives.generalised_advantages(rewards, values, mask, gamma=gamma, trace=trace)
    np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[1], returns, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("gamma", "trace", "rho_cap", "c_cap"), [(0.9, 1.0, 1.0, 1.0), (1.0, 0.8, 2.0, 0.5)]
)
def test_vtrace_matches_the_sums_of_the_paper(gamma, trace, rho_cap, c_cap, get_key):
    log_ratio, rewards, values, mask = batch(get_key)
    targets, advantages = np.zeros(SHAPE), np.zeros(SHAPE)
    for row, places, (logs, r, v) in episodes(mask, log_ratio, rewards, values):
        ratio, count = np.exp(logs), len(places)
        errors = np.minimum(rho_cap, ratio) * errors_of(r, v, gamma) if count else []
        traces = trace * np.minimum(c_cap, ratio)
        v_s = [
            v[s] + sum(gamma ** (t - s) * np.prod(traces[s:t]) * errors[t] for t in range(s, count))
            for s in range(count)
        ]
        targets[row, places] = v_s
        advantages[row, places] = r + gamma * np.append(v_s, 0.0)[1:] - v if count else []
    got = objectives.vtrace(
        log_ratio,
        rewards,
        values,
        mask,
        gamma=gamma,
        trace=trace,
        rho_cap=rho_cap,
        c_cap=c_cap,
    )
    np.testing.assert_allclose(got[0], targets, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[1], advantages, rtol=1e-4, atol=1e-5)


def test_vtrace_on_policy_learns_the_returns():
    mask = np.array([[False, True, False, True, True]])
    rewards = np.array([[9.0, 1.0, 9.0, 0.0, 4.0]], np.float32)
    values = np.array([[9.0, 5.0, 9.0, -1.0, 2.0]], np.float32)
    targets, advantages = objectives.vtrace(
        np.zeros((1, 5), np.float32), rewards, values, mask, gamma=0.5
    )
    np.testing.assert_allclose(targets, [[0.0, 2.0, 0.0, 2.0, 4.0]])
    np.testing.assert_allclose(advantages, [[0.0, -3.0, 0.0, 3.0, 2.0]])


@pytest.mark.parametrize(
    ("ratio", "rho_cap", "target"), [(0.5, 1.0, 3.5), (3.0, 1.0, 5.0), (3.0, 2.0, 8.0)]
)
def test_vtrace_of_one_decision(ratio, rho_cap, target):
    one = np.ones((1, 1), np.float32)
    targets, advantages = objectives.vtrace(
        np.log(ratio) * one, 5 * one, 2 * one, one > 0, gamma=1.0, rho_cap=rho_cap
    )
    assert targets[0, 0] == pytest.approx(target, rel=1e-6)  # 2 + min(cap, r) (5 - 2)
    assert advantages[0, 0] == pytest.approx(3.0)


def test_a_reward_reaches_the_first_turn_across_an_observation():
    # Two turns of two tokens with a prompt, an observation and padding; success at the end.
    mask = np.array([[0, 1, 1, 0, 0, 1, 1, 0]], bool)
    rewards = np.zeros((1, 8), np.float32)
    rewards[0, 6] = 1.0
    values = np.where(mask, 0.0, 4.0).astype(np.float32)  # what the head says elsewhere
    zeros = np.zeros((1, 8), np.float32)
    for advantages in (
        objectives.generalised_advantages(rewards, values, mask, gamma=1.0, trace=1.0)[0],
        objectives.vtrace(zeros, rewards, values, mask, gamma=1.0)[1],
    ):
        np.testing.assert_allclose(advantages, mask.astype(np.float32))


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "slope"),
    [
        (3.0, 0.0, 1.0, None, 2.0, 2.0),
        (0.5, 0.0, 1.0, 0.2, 0.32, 0.0),  # moved far enough towards the target
        (-0.5, 0.0, 1.0, 0.2, 1.125, -1.5),  # moved away: pulled back in full
        (0.1, 0.0, 1.0, 0.2, 0.405, -0.9),
    ],
)
def test_value_losses_in_closed_form(value, old, target, clip, loss, slope):
    def total(x):
        return objectives.value_losses(
            x, one * target, one > 0, old_values=one * old, clip=clip
        ).sum()

    one = jnp.ones((1, 1))
    got, gradient = jax.value_and_grad(total)(one * value)
    assert got == pytest.approx(loss, rel=1e-5)
    assert gradient[0, 0] == pytest.approx(slope, rel=1e-5)


def test_nan_outside_the_mask_leaks_nowhere(get_key):
    log_ratio, rewards, values, mask = batch(get_key)

    def everything(log_ratio, rewards, values):
        return (
            objectives.vtrace(log_ratio, rewards, values, mask, gamma=0.9),
            objectives.generalised_advantages(rewards, values, mask, gamma=0.9, trace=0.9),
            jax.value_and_grad(
                lambda v: objectives.value_losses(
                    v, rewards, mask, old_values=log_ratio, clip=0.1
                ).sum()
            )(jnp.asarray(values)),
        )

    arrays = (log_ratio, rewards, values)
    dirty = [np.where(mask, array, np.nan) for array in arrays]
    jax.tree.map(np.testing.assert_array_equal, everything(*arrays), everything(*dirty))


def test_no_gradient_flows_through_targets(get_key):
    log_ratio, rewards, values, mask = batch(get_key)

    def total(log_ratio, values):
        return sum(x.sum() for x in objectives.vtrace(log_ratio, rewards, values, mask, gamma=0.9))

    for slope in jax.grad(total, argnums=(0, 1))(jnp.asarray(log_ratio), jnp.asarray(values)):
        np.testing.assert_array_equal(slope, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": 1.1}, r"gamma must lie in \[0, 1\], got 1.1"),
        ({"trace": -0.1}, r"trace must lie in \[0, 1\], got -0.1"),
        ({"c_cap": 0.0}, "c_cap must be positive, got 0"),
        ({"rho_cap": 0.5}, r"rho_cap must be at least c_cap \(1.0\), got 0.5"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    zeros, mask = jnp.zeros(SHAPE), jnp.ones(SHAPE, bool)
    with pytest.raises(ValueError, match=message):
        objectives.vtrace(zeros, zeros, zeros, mask, **({"gamma": 1.0} | arguments))


def test_a_value_clip_needs_old_values():
    zeros, mask = jnp.zeros(SHAPE), jnp.ones(SHAPE, bool)
    with pytest.raises(ValueError, match="clip needs old_values"):
        objectives.value_losses(zeros, zeros, mask, clip=0.1)
    with pytest.raises(ValueError, match="value clip must be positive or None, got -1"):
        objectives.value_losses(zeros, zeros, mask, old_values=zeros, clip=-1.0)
