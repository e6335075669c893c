"""Statistics against numpy, worked by hand from the rows that remain."""

import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import replay
from tests.replay.oracle import Oracle, pairs


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("tau", [None, 6.0])
def test_statistics(rows, tau):
    rng = np.random.default_rng(rows)
    buffer, oracle = replay.make_buffer(capacity=8, tau=tau, alpha=0.7), Oracle(8)
    state, clock = buffer.init(jnp.zeros(())), 0
    for number in range(rows):
        clock += int(rng.integers(0, 4))
        base = np.float32([rng.choice([np.nan, 0.2, 3.0])])
        state, handles = buffer.add(state, np.float32([number]), base, clock)
        oracle.add([number], base, clock)
        if number % 2:
            state = buffer.mark_drawn(state, handles)
            oracle.mark(pairs(handles))
        if number % 4 == 1:
            state = buffer.mark_drawn(state, handles)
            oracle.mark(pairs(handles))
    stats = buffer.stats(state, clock + 2)

    ages = np.array([clock + 2 - row.birth for row in oracle.rows])
    draws = np.array([row.draws for row in oracle.rows])
    freshness = np.exp(-ages / (np.inf if tau is None else tau))
    probabilities = oracle.probabilities(0.7, tau, clock + 2)
    probabilities = probabilities[probabilities > 0]
    levels = [0, 0.25, 0.5, 0.75, 1]
    assert int(stats.size) == min(rows, 8)
    assert int(stats.evicted) == max(rows - 8, 0)
    assert int(stats.replaced_priorities) == oracle.replaced
    assert int(stats.stale_updates) == 0
    np.testing.assert_allclose(stats.never_drawn_share, (draws == 0).mean(), rtol=1e-6)
    np.testing.assert_allclose(stats.mean_draws, draws.mean(), rtol=1e-6)
    np.testing.assert_allclose(
        stats.evicted_undrawn_share, oracle.evicted_undrawn / max(oracle.evicted, 1), rtol=1e-6
    )
    np.testing.assert_array_equal(stats.age_quantiles, np.quantile(ages, levels, method="lower"))
    np.testing.assert_allclose(
        stats.freshness_quantiles, np.quantile(freshness, levels, method="lower"), rtol=1e-6
    )
    np.testing.assert_allclose(
        stats.priority_entropy, -(probabilities * np.log(probabilities)).sum(), atol=1e-5
    )
    np.testing.assert_allclose(stats.priority_ess, 1 / (probabilities**2).sum(), rtol=1e-5)


def test_an_empty_buffer_has_all_zero_statistics():
    buffer = replay.make_buffer(capacity=5, tau=3.0)
    stats = buffer.stats(buffer.init(jnp.zeros(())), 7)
    for name, value in vars(stats).items():
        np.testing.assert_array_equal(value, np.zeros(value.shape), err_msg=name)


@pytest.mark.parametrize("strategy", ["uniform", "newest"])
def test_uniform_strategies_have_the_entropy_of_equal_rows(strategy):
    buffer = replay.make_buffer(capacity=5, strategy=strategy, tau=1.0)
    state = buffer.init(jnp.zeros(()))
    for clock, base in enumerate([0.1, 5.0, 80.0]):
        state, _ = buffer.add(state, np.zeros(1, np.float32), np.float32([base]), clock)
    stats = buffer.stats(state, 3)
    if strategy == "uniform":
        np.testing.assert_allclose(stats.priority_entropy, np.log(3), rtol=1e-6)
        np.testing.assert_allclose(stats.priority_ess, 3, rtol=1e-6)
    else:
        assert float(stats.priority_ess) < 3


@pytest.mark.parametrize("rows", [0, 2, 5, 9])
def test_can_sample_when_so_many_rows_are_stored(rows):
    buffer = replay.make_buffer(capacity=5)
    state = buffer.init(jnp.zeros(()))
    for _ in range(rows):
        state, _ = buffer.add(state, np.zeros(1, np.float32), np.ones(1), 0)
    for wanted in (1, 2, 5, 6):
        assert bool(buffer.can_sample(state, wanted)) == (min(rows, 5) >= wanted)
