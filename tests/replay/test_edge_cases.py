"""The corners where replay buffers of the field have failed, each with its right behaviour."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from freshper_jax import replay
from tests.replay.oracle import FALLBACK, Oracle, pairs


@functools.cache
def make(capacity, **options):
    return replay.make_buffer(capacity=capacity, **options)


def fill(buffer, oracle, bases, clocks):
    """Adds rows in batches of at most five, each valued by its number."""
    state = buffer.init(jnp.zeros(()))
    for start in range(0, len(bases), 5):
        part = bases[start : start + 5]
        values = np.arange(start, start + len(part), dtype=np.float32)
        clock = int(clocks[start])
        state, _ = buffer.add(state, values, part, clock)
        oracle.add(values, part, clock)
    return state


@pytest.mark.parametrize("normaliser", ["batch_max", "buffer_max", "mean", "none"])
@pytest.mark.parametrize("rows", [1, 4, 8, 12])
def test_weight_normalisers(get_key, normaliser, rows):
    # Half full too: only stored rows count for the buffer maximum.
    buffer, oracle = make(8, tau=10.0, weight_normaliser=normaliser), Oracle(8)
    bases = np.random.default_rng(rows).uniform(0.1, 3, rows).astype(np.float32)
    state = fill(buffer, oracle, bases, np.arange(rows))
    probabilities = oracle.probabilities(0.6, 10.0, 20)
    for beta in (0.0, 0.4, 1.0):
        sample = buffer.sample(state, get_key(), 16, 20, beta)
        slots = np.asarray(sample.handles.index)
        expected = oracle.weights(probabilities, slots, beta, normaliser)
        np.testing.assert_allclose(sample.weights, expected, rtol=1e-4)


@pytest.mark.parametrize("newest_birth", [0, 1 << 24, (1 << 31) - 1])
@pytest.mark.parametrize("ages_in_tau", [0, 1, 20, 200])
def test_exact_at_any_age_and_clock(newest_birth, ages_in_tau):
    # Two rows a few units apart keep their exact ratio however old both are.
    tau, buffer = 50.0, make(5)
    births = newest_birth - np.array([int(ages_in_tau * tau), 3, 1, 0])
    clock = min(newest_birth + int(ages_in_tau * tau), (1 << 31) - 1)
    state, oracle = buffer.init(jnp.zeros(())), Oracle(5)
    for number, birth in enumerate(births):
        state, _ = buffer.add(state, np.float32([number]), np.float32([1]), int(birth))
        oracle.add([number], [1.0], int(birth))
    expected = oracle.probabilities(1.0, tau, clock)
    actual = buffer.probabilities(state, alpha=1.0, tau=tau)
    np.testing.assert_allclose(actual, expected, rtol=3e-5, atol=1e-37)
    sample = buffer.sample(state, jax.random.key(0), 8, clock, tau=tau)
    ages = [clock - oracle.find(handle).birth for handle in pairs(sample.handles)]
    np.testing.assert_array_equal(sample.ages, ages)


def test_a_clock_that_wraps_keeps_ages():
    buffer = make(3)
    state = buffer.init(jnp.zeros(()))
    state, _ = buffer.add(state, np.float32([0]), np.float32([1]), (1 << 31) - 2)
    state, _ = buffer.add(state, np.float32([1]), np.float32([1]), -(1 << 31) + 1)
    sample = buffer.sample(state, jax.random.key(1), 64, -(1 << 31) + 4)
    np.testing.assert_array_equal(sample.ages, np.where(sample.data == 0, 6, 3))
    probabilities = buffer.probabilities(state, alpha=1.0, tau=3.0)
    np.testing.assert_allclose(probabilities[0] / probabilities[1], np.exp(-1), rtol=1e-6)


PRIORITIES = {
    "zero among others": [0, 1, 2, 0.5, 1],
    "all zero": [0, 0, 0, 0, 0],
    "tiny": [1e-38, 1e-38, 2e-38, 1e-6, 1e-6],
    "huge": [1e38, 3e38, 1e38, 1, 1e-38],
    "nan": [np.nan, 1, 2, 3, np.nan],
    "infinite": [np.inf, 1, -np.inf, 3, 1],
    "negative": [-1, 1, -1e-30, 3, -1e38],
    "all bad": [np.nan, np.inf, -1, -np.inf, np.nan],
}


@pytest.mark.parametrize("name", PRIORITIES)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_any_priority_gives_finite_results(get_key, name, alpha):
    buffer, oracle = make(5), Oracle(5)
    bases = np.array(PRIORITIES[name], np.float32)
    state = fill(buffer, oracle, bases, np.zeros(5))
    assert int(buffer.stats(state, 0).replaced_priorities) == oracle.replaced
    expected = oracle.probabilities(alpha, None, 0)
    np.testing.assert_allclose(
        buffer.probabilities(state, alpha=alpha), expected, rtol=5e-5, atol=1e-37
    )
    for beta in (0.0, 0.4, 1.0):
        sample = buffer.sample(state, get_key(), 64, 0, beta, alpha=alpha)
        slots = np.asarray(sample.handles.index)
        assert (expected[slots] > 0).all()
        assert np.isfinite(sample.weights).all()
        np.testing.assert_allclose(
            sample.weights, oracle.weights(expected, slots, beta, "batch_max"), rtol=1e-4
        )


def test_a_bad_priority_heals():
    buffer = make(3, fallback_priority=0.25)
    state, handles = buffer.add(
        buffer.init(jnp.zeros(())), np.zeros(3, np.float32), np.float32([np.nan, 1, 1]), 0
    )
    np.testing.assert_allclose(
        buffer.probabilities(state, alpha=1.0), np.array([1, 4, 4]) / 9, rtol=1e-6
    )
    state = buffer.update(state, handles, np.float32([2, np.inf, 1]))
    np.testing.assert_allclose(
        buffer.probabilities(state, alpha=1.0), np.array([8, 1, 4]) / 13, rtol=1e-6
    )
    assert int(buffer.stats(state, 0).replaced_priorities) == 2


def test_priorities_follow_their_rows_over_the_wrap():
    buffer = make(4)
    state = buffer.init(jnp.zeros(()))
    state, _ = buffer.add(state, np.float32([0, 1, 2]), np.float32([1, 1, 1]), 0)
    state, _ = buffer.add(state, np.float32([3, 4, 5]), np.float32([1, 2, 3]), 0)
    np.testing.assert_array_equal(state.data, [4, 5, 2, 3])
    np.testing.assert_allclose(
        buffer.probabilities(state, alpha=1.0), np.array([2, 3, 1, 1]) / 7, rtol=1e-6
    )


@pytest.mark.parametrize("added", [4, 5, 11, 12])
@pytest.mark.parametrize("before", [0, 1, 4, 6])
def test_an_add_of_capacity_or_more_keeps_the_newest(before, added):
    buffer, oracle = make(4), Oracle(4)
    state = fill(buffer, oracle, np.ones(before, np.float32), np.zeros(before))
    values = 100 + np.arange(added, dtype=np.float32)
    bases = 1 + np.arange(added, dtype=np.float32)
    state, handles = buffer.add(state, values, bases, 9)
    assert pairs(handles) == oracle.add(values, bases, 9)
    assert sorted(np.asarray(state.data)) == list(values[-4:])
    np.testing.assert_allclose(
        buffer.probabilities(state, alpha=1.0), oracle.probabilities(1.0, None, 9), rtol=1e-6
    )
    assert int(state.evicted) == oracle.evicted
    # The rows that passed through have handles that are stale at once.
    state = buffer.update(state, handles, np.ones(added, np.float32))
    assert int(state.stale_updates) == added - 4


def test_maximum_insertion_takes_the_largest_base_now_stored():
    buffer = make(2, insertion="max", alpha=1.0)
    state = buffer.init(jnp.zeros(()))
    state, handles = buffer.add(state, np.zeros(2, np.float32), np.float32([0.5, 1.9]), 0)
    np.testing.assert_allclose(np.exp(state.log_base), [1.9, 1.9], rtol=1e-6)
    # It falls again with the rows: no maximum of all time is kept.
    state = buffer.update(state, handles, np.float32([1e-3, 1e-4]))
    state, _ = buffer.add(state, np.zeros(1, np.float32), np.float32([7]), 0)
    np.testing.assert_allclose(np.exp(state.log_base), [1e-3, 1e-4], rtol=1e-5)


def test_a_stale_update_leaves_the_new_row_alone():
    buffer = make(2)
    state = buffer.init(jnp.zeros(()))
    state, old = buffer.add(state, np.zeros(2, np.float32), np.float32([1, 1]), 0)
    state, _ = buffer.add(state, np.ones(1, np.float32), np.float32([3]), 0)
    state = buffer.update(state, old, np.float32([50, 7]))
    np.testing.assert_allclose(np.exp(state.log_base), [3, 7], rtol=1e-6)
    assert int(buffer.stats(state, 0).stale_updates) == 1
    # Nor does a draw of the old row count for the new one.
    state = buffer.mark_drawn(state, old)
    np.testing.assert_array_equal(state.draws, [0, 1])


def test_of_duplicates_the_last_update_wins():
    buffer = make(3)
    state, _ = buffer.add(
        buffer.init(jnp.zeros(())), np.zeros(3, np.float32), np.ones(3, np.float32), 0
    )
    index = jnp.array([1, 0, 1, 1, 0], jnp.int32)
    handles = replay.Handles(index=index, generation=index)
    state = buffer.update(state, handles, np.float32([9, 8, 7, 6, 5]))
    np.testing.assert_allclose(np.exp(state.log_base), [5, 6, 1], rtol=1e-6)
    assert int(state.stale_updates) == 0


def test_generations_that_wrap_stay_apart():
    buffer = make(3)
    state = buffer.init(jnp.zeros(()))
    state = state.counted(next_generation=jnp.int32((1 << 31) - 2))
    state, old = buffer.add(state, np.zeros(3, np.float32), np.ones(3, np.float32), 0)
    np.testing.assert_array_equal(old.generation, [(1 << 31) - 2, (1 << 31) - 1, 0])
    state, new = buffer.add(state, np.zeros(1, np.float32), np.ones(1, np.float32), 0)
    state = buffer.update(state, old, np.float32([5, 6, 7]))
    np.testing.assert_allclose(np.exp(state.log_base), [1, 6, 7], rtol=1e-6)
    assert pairs(new) == [(0, 1)]


@pytest.mark.parametrize("rows", [2, 3, 7, 20])
def test_newest_takes_the_last_rows_once_each(rows):
    buffer, oracle = make(7, strategy="newest"), Oracle(7)
    state = fill(buffer, oracle, np.ones(rows, np.float32), np.arange(rows))
    sample = buffer.sample(state, jax.random.key(0), 3, 30)
    taken = [row.value for row in oracle.rows[::-1][:3]]
    np.testing.assert_array_equal(np.asarray(sample.data)[: len(taken)], taken)
    valid = np.arange(3) < len(taken)
    np.testing.assert_array_equal(sample.weights, valid.astype(np.float32))
    np.testing.assert_allclose(sample.probabilities, valid / len(taken), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(sample.handles.generation) >= 0, valid)
    assert float(sample.ess) == len(taken)


def test_uniform_equals_alpha_zero(get_key):
    uniform, prioritized = make(8, strategy="uniform", tau=2.0), make(8, alpha=0.0, tau=2.0)
    bases = np.geomspace(1e-3, 1e3, 6).astype(np.float32)
    state = fill(uniform, Oracle(8), bases, np.arange(6))
    key = get_key()
    one, other = (buffer.sample(state, key, 32, 9) for buffer in (uniform, prioritized))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    np.testing.assert_allclose(one.probabilities, np.full(32, 1 / 6), rtol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "rows"),
    [("prioritized", 300), ("prioritized", 512), ("prioritized", 900), ("uniform", 300)],
)
def test_draws_of_a_buffer_pass_chi_square(get_key, strategy, rows):
    # Half full, full and wrapped; bases over nine orders, ages of up to 20 tau.
    rng = np.random.default_rng(rows)
    buffer, oracle = make(512, strategy=strategy, tau=25.0), Oracle(512)
    bases = np.exp(rng.uniform(np.log(1e-6), np.log(1e3), rows)).astype(np.float32)
    state = buffer.init(jnp.zeros(()))
    for part, clock in zip(np.array_split(bases, 10), range(0, 500, 50), strict=True):
        state, _ = buffer.add(state, np.zeros(len(part), np.float32), part, clock)
        oracle.add(np.zeros(len(part)), part, clock)
    keys = jax.random.split(get_key(), 250_000)
    draw = jax.jit(jax.vmap(lambda key: buffer.sample(state, key, 1, 500).handles.index))
    counts = np.bincount(np.asarray(draw(keys)).ravel(), minlength=512)
    alpha = 0.0 if strategy == "uniform" else 0.6
    expected = oracle.probabilities(alpha, 25.0, 500) * 250_000
    assert not counts[expected == 0].any()
    rare = expected < 20
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert scipy.stats.chi2.sf(statistic, len(counts) - 1) > 1e-3


def test_no_drift_after_thousands_of_updates(get_key):
    buffer = make(1000)
    state, handles = buffer.add(
        buffer.init(jnp.zeros(())), np.zeros(1000, np.float32), np.ones(1000, np.float32), 0
    )

    def step(state, key):
        rows, values = jax.random.split(key)
        index = jax.random.randint(rows, (128,), 0, 1000)
        drawn = replay.Handles(index=index, generation=handles.generation[index])
        bases = jnp.exp(jax.random.uniform(values, (128,), minval=-14.0, maxval=7.0))
        return buffer.update(state, drawn, bases), None

    keys = jax.random.split(get_key(), 20_000)
    state = jax.jit(lambda state: jax.lax.scan(step, state, keys)[0])(state)
    state = buffer.update(state, handles, np.full(1000, 1e-6, np.float32))
    np.testing.assert_allclose(buffer.probabilities(state), np.full(1000, 1e-3), rtol=1e-5)
    sample = buffer.sample(state, get_key(), 2000, 0)
    assert set(np.asarray(sample.handles.index)) == set(range(1000))


def test_fallback_of_the_oracle_is_the_default():
    state, _ = make(3).add(
        make(3).init(jnp.zeros(())), np.zeros(1, np.float32), np.float32([np.nan]), 0
    )
    assert float(state.log_base[0]) == pytest.approx(np.log(FALLBACK), abs=1e-5)
