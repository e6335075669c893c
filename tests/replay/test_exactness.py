"""Draws follow the true distribution to the last row, whatever happened to the buffer before."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from freshper_jax import replay
from freshper_jax.replay.tree import plant
from freshper_jax.replay.types import as_bits
from tests.replay.induced import induced_probabilities
from tests.replay.oracle import since

ALPHA, TAU = 0.6, 100.0
LANES = 4096


@functools.cache
def make(capacity, **options):
    return replay.make_buffer(**{"capacity": capacity, "alpha": ALPHA, "tau": TAU} | options)


@functools.cache
def builder(buffer):
    @jax.jit
    def build(log_base, birth):
        some = log_base > -jnp.inf
        order = jnp.where(some, jnp.arange(buffer.capacity, dtype=jnp.int32), -1)
        rows = jnp.stack([as_bits(log_base), birth, order, jnp.zeros_like(birth)], axis=1)
        state = dataclasses.replace(buffer.init(jnp.zeros(())), rows=rows)
        return buffer.retune(state.counted(size=jnp.sum(some, dtype=jnp.int32)))

    return build


def state_of(buffer, bases, births, slots=None):
    """A state with given rows in given slots, all others empty."""
    slots = np.arange(len(bases)) if slots is None else slots
    log_base = np.full(buffer.capacity, -np.inf, np.float32)
    birth = np.zeros(buffer.capacity, np.int32)
    log_base[slots], birth[slots] = np.log(bases), births
    return builder(buffer)(log_base, birth)


def true_probabilities(state, alpha=ALPHA, tau=TAU):
    """P of every slot in float64; ages count from the newest row and so may pass the wrap."""
    log_base, birth = np.asarray(state.log_base, np.float64), np.asarray(state.birth)
    some = np.isfinite(log_base)
    result = np.zeros(len(log_base))
    first = birth[some][0]
    born = np.array([since(each, first) for each in birth[some]], np.float64)
    logs = alpha * (log_base[some] + (born - born.max()) / tau)
    shares = np.exp(logs - logs.max())
    result[some] = shares / shares.sum()
    return result


@functools.cache
def planted(buffer):
    return jax.jit(lambda tree: plant(tree, buffer.capacity, jnp.float32(tree.alpha / tree.tau)))


def induced_by(buffer, state):
    return induced_probabilities(planted(buffer)(state.tree))


def total_variation(actual, expected):
    return 0.5 * np.abs(actual - expected).sum()


@functools.cache
def counter(buffer, batch_size, steps):
    """Counts the rows of LANES x steps draws, in independent batches of the given size."""

    @jax.jit
    def count(state, key):
        def one_step(counts, key):
            keys = jax.random.split(key, LANES // batch_size)
            drawn = jax.vmap(lambda one: buffer.sample(state, one, batch_size, 0).handles.index)
            return counts.at[drawn(keys).reshape(-1)].add(1), None

        counts = jnp.zeros((buffer.capacity,), jnp.int32)
        return jax.lax.scan(one_step, counts, jax.random.split(key, steps))[0]

    return lambda state, key: np.asarray(count(state, key), np.int64)


def chi_square(counts, chances):
    """The p-value that independent draws have these chances; rare rows are pooled."""
    expected = chances * counts.sum()
    rare = expected < 20
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    return scipy.stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1)


def heavy_tailed(rows, seed=0):
    """Bases from 1e-6 to 1e3 and births over 20 tau."""
    rng = np.random.default_rng(seed)
    bases = np.exp(rng.uniform(np.log(1e-6), np.log(1e3), rows)).astype(np.float32)
    return bases, np.sort(rng.integers(0, int(20 * TAU), rows)).astype(np.int32)


# A million rows.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equal", "heavy"])
def test_a_million_rows_are_drawn_as_they_should(kind):
    # One float32 uniform is 2.8% off on equal rows, and leaves 78% of the heavy ones undrawn.
    rows = 1_000_000
    buffer = make(rows)
    bases, births = heavy_tailed(rows)
    if kind == "equal":
        bases, births = np.ones(rows, np.float32), np.zeros(rows, np.int32)
    state = state_of(buffer, bases, births)
    expected = np.full(rows, 1e-6) if kind == "equal" else float64_shares(bases, births)
    induced = induced_by(buffer, state)
    assert induced.sum() == pytest.approx(1, abs=1e-9)
    assert total_variation(induced, expected) < 5e-6
    assert (induced[expected > 1e-9] > 0).all()
    np.testing.assert_allclose(induced[expected > 1e-7], expected[expected > 1e-7], rtol=2e-3)


def float64_shares(bases, births):
    logs = ALPHA * (np.log(bases.astype(np.float64)) + births / TAU)
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


@pytest.mark.slow
def test_ten_million_draws_of_a_hundred_thousand_rows_pass_chi_square(get_key):
    rows = 100_000
    buffer = make(rows)
    equal = state_of(buffer, np.ones(rows, np.float32), np.zeros(rows, np.int32))
    count = counter(buffer, 1, 2442)
    counts = count(equal, get_key())
    assert counts.sum() > 10_000_000
    assert counts.min() > 0
    assert 1e-3 < chi_square(counts, np.full(rows, 1 / rows)) < 0.999

    # Rows of mass 1e-10 each, 1e-5 together, beside one that has all the rest.
    bases = np.full(rows, 1e-10 ** (1 / ALPHA), np.float32)
    bases[54_321] = 1.0
    rare = state_of(buffer, bases, np.zeros(rows, np.int32))
    drawn = np.delete(count(rare, get_key()), 54_321)
    expected = counts.sum() * (rows - 1) * 1e-10
    assert abs(drawn.sum() - expected) < 4 * np.sqrt(expected)
    assert drawn.max() <= 2
    induced = np.delete(induced_by(buffer, rare), 54_321)
    assert induced.sum() == pytest.approx((rows - 1) * 1e-10, rel=0.01)


# What must never be drawn.


def half_full(rows):
    return (*heavy_tailed(rows // 2), np.arange(rows // 2))


def wrapped(rows):
    # The newest rows lie before the oldest ones.
    return (*heavy_tailed(rows), np.roll(np.arange(rows), rows // 3))


def scattered(rows):
    # As packed storage and groups leave it.
    slots = np.sort(np.random.default_rng(1).permutation(rows)[: rows // 4])
    return (*heavy_tailed(rows // 4), slots)


def massless(rows):
    # Two in three rows have a mass that float32 cannot tell from none.
    bases, births = heavy_tailed(rows)
    bases[np.arange(rows) % 3 > 0] = np.finfo(np.float32).tiny
    births[:] = 0
    return bases, births, np.arange(rows)


@pytest.mark.slow
@pytest.mark.parametrize("fill", [half_full, wrapped, scattered, massless])
def test_ten_million_draws_return_no_row_without_mass(get_key, fill):
    buffer = make(3001, alpha=1.0)
    state = state_of(buffer, *fill(3001))
    expected = true_probabilities(state, alpha=1.0)
    counts = counter(buffer, LANES, 2442)(state, get_key())
    assert counts.sum() > 10_000_000
    assert not counts[expected < 1e-20].any()
    # Strata leave a row that is rarer than one draw in all batches as random as ever.
    rare = (expected > 0) & (expected * LANES < 1e-3)
    mean = expected[rare].sum() * counts.sum()
    assert abs(counts[rare].sum() - mean) < 4.5 * np.sqrt(mean) + 1
    often = expected * counts.sum() > 1000
    np.testing.assert_allclose(counts[often] / counts.sum(), expected[often], rtol=0.15)


# What happened before.


@pytest.mark.slow
def test_no_drift_after_thousands_of_updates_and_a_fall_of_all_priorities(get_key):
    rows = 10_000
    buffer = make(rows)
    state = state_of(buffer, np.ones(rows, np.float32), np.arange(rows, dtype=np.int32) // 50)

    def step(state, key):
        places, values = jax.random.split(key)
        index = jax.random.randint(places, (128,), 0, rows)
        handles = replay.Handles(index=index, generation=index)
        bases = jnp.exp(jax.random.uniform(values, (128,), minval=-14.0, maxval=7.0))
        return buffer.update(state, handles, bases), None

    keys = jax.random.split(get_key(), 20_000)
    state = jax.jit(lambda state: jax.lax.scan(step, state, keys)[0])(state)
    everything = jnp.arange(rows, dtype=jnp.int32)
    handles = replay.Handles(index=everything, generation=everything)
    state = buffer.update(state, handles, 1e-6 * jnp.exp(state.log_base))
    expected = true_probabilities(state)
    assert total_variation(induced_by(buffer, state), expected) < 1e-5
    counts = counter(buffer, 1, 250)(state, get_key())
    assert chi_square(counts, expected) > 1e-3


ROWS, ADDED, CHANGED = 300, 43, 8
CHANGE = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 1 << 30)),
    st.tuples(st.just("update"), st.integers(0, 1 << 30)),
    st.tuples(st.just("rebirth"), st.integers(0, 1 << 30)),
)


@settings(max_examples=25)
@given(
    calls=st.lists(CHANGE, min_size=4, max_size=25),
    clock=st.sampled_from([0, 1 << 24, (1 << 31) - 300]),
)
def test_sums_kept_up_equal_sums_made_anew(calls, clock):
    buffer = make(ROWS)
    state = state_of(buffer, np.ones(0), np.zeros(0))
    for call, seed in calls:
        rng = np.random.default_rng(seed)
        clock = since(clock + int(rng.choice([0, 1, 30, 100, 2000])), 0)
        if call == "add":
            bases = np.exp(rng.normal(0, 5, ADDED)).astype(np.float32)
            state, _ = buffer.add(state, np.zeros(ADDED, np.float32), bases, clock)
        else:
            index = rng.integers(0, ROWS, CHANGED).astype(np.int32)
            generation = np.asarray(state.generation)[index]
            handles = replay.Handles(index=jnp.asarray(index), generation=jnp.asarray(generation))
            bases = np.exp(rng.normal(0, 5, CHANGED)).astype(np.float32)
            state = buffer.update(state, handles, bases, clock if call == "rebirth" else None)
    kept, anew = state.tree, buffer.retune(state).tree
    some = np.isfinite(anew.log_mass)
    np.testing.assert_array_equal(np.isfinite(kept.log_mass), some)
    np.testing.assert_array_equal(np.asarray(kept.newest)[some], np.asarray(anew.newest)[some])
    np.testing.assert_allclose(
        np.asarray(kept.log_mass)[some], np.asarray(anew.log_mass)[some], atol=1e-5
    )
    assert np.abs(np.asarray(kept.ends, np.int64) - np.asarray(anew.ends)).max() <= 1 << 10
    if some.any():
        induced, expected = induced_by(buffer, state), true_probabilities(state)
        assert total_variation(induced, expected) < 1e-5
        assert (induced[expected > 1e-9] > 0).all()


@pytest.mark.parametrize("newest", [1 << 24, (1 << 24) + 1, (1 << 31) - 1, -(1 << 31) + 150])
@pytest.mark.parametrize("span", [1, 20, 200])
def test_exact_at_large_clocks_and_over_the_wrap(get_key, newest, span):
    # Ages up to 200 tau, and of the last case half on the other side of the wrap.
    rng = np.random.default_rng(span)
    ages = np.sort(rng.integers(0, int(span * TAU), ROWS))[::-1]
    births = ((newest - ages + (1 << 31)) % (1 << 32) - (1 << 31)).astype(np.int32)
    buffer = make(ROWS)
    state = state_of(buffer, np.exp(rng.normal(0, 2, ROWS)), births)
    expected = true_probabilities(state)
    assert total_variation(induced_by(buffer, state), expected) < 1e-5
    sample = buffer.sample(state, get_key(), 64, newest)
    np.testing.assert_array_equal(sample.ages, ages[sample.handles.index])
    np.testing.assert_allclose(sample.probabilities, expected[sample.handles.index], rtol=1e-4)


@pytest.mark.parametrize("strategy", ["prioritized", "prioritized_without_replacement"])
def test_exact_where_rows_are_born_anew_long_after_the_last_add(get_key, strategy):
    # Ages from the birth of the row added last would be lost in float32.
    buffer = replay.make_buffer(
        capacity=4, alpha=1.0, tau=1.0, strategy=strategy, eviction="lowest_priority"
    )
    state = buffer.init(jnp.zeros(()))
    late = 100_000_000
    for slot in range(4):
        state, handles = buffer.add(state, np.zeros(1, np.float32), np.ones(1, np.float32), 0)
        if slot < 3:
            state = buffer.update(state, handles, np.ones(1, np.float32), late - slot)
    expected = np.append(np.exp([0, -1, -2.0]) / np.exp([0, -1, -2.0]).sum(), 0)
    np.testing.assert_allclose(buffer.probabilities(state), expected, rtol=1e-6, atol=1e-37)
    draw = jax.jit(jax.vmap(lambda key: buffer.sample(state, key, 1, late).handles.index))
    counts = np.bincount(np.asarray(draw(jax.random.split(get_key(), 20_000))).ravel(), minlength=4)
    assert counts[3] == 0
    assert chi_square(counts[:3], expected[:3]) > 1e-3
    # First goes the one that was left behind, then the one that was born first.
    for slot in (3, 2):
        state, handles = buffer.add(state, np.ones(1, np.float32), np.ones(1, np.float32), late)
        assert int(handles.index[0]) == slot


@pytest.mark.parametrize("draws", [1, 7, 64, 4096])
def test_each_draw_comes_from_its_own_stratum(get_key, draws):
    buffer = make(ROWS)
    state = state_of(buffer, *heavy_tailed(ROWS))
    ends = np.cumsum(true_probabilities(state))
    starts = np.append(0, ends[:-1])
    index = np.asarray(buffer.sample(state, get_key(), draws, 0).handles.index)
    stratum = np.arange(draws)
    assert (starts[index] < (stratum + 1) / draws + 1e-6).all()
    assert (ends[index] > stratum / draws - 1e-6).all()
    # So a row is drawn as often as strata lie inside it, give or take two.
    counts = np.bincount(index, minlength=ROWS)
    assert (np.abs(counts - draws * true_probabilities(state)) < 2 + 1e-3).all()


# Another alpha, tau or beta.


KINDS = {
    "prioritized": {},
    "without replacement": {"strategy": "prioritized_without_replacement"},
}


def filled(buffer):
    state = jax.jit(buffer.init)(jnp.zeros(()))
    rng = np.random.default_rng(5)
    for clock in range(0, 300, 100):
        bases = np.exp(rng.normal(0, 2, 60)).astype(np.float32)
        state, _ = buffer.add(state, np.zeros(60, np.float32), bases, clock)
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_other_options_in_the_call_equal_a_buffer_that_has_them(get_key, kind):
    one = make(150, weight_normaliser="buffer_max", **KINDS[kind])
    other = make(150, alpha=0.9, tau=37.0, beta=0.7, weight_normaliser="buffer_max", **KINDS[kind])
    state, key = filled(one), get_key()
    traced = jax.jit(
        lambda state, alpha, tau, beta: (
            one.sample(state, key, 30, 400, beta, alpha=alpha, tau=tau),
            one.probabilities(state, alpha=alpha, tau=tau),
        )
    )
    options = map(jnp.float32, (0.9, 37.0, 0.7))
    sample, chances = traced(state, *options)
    retuned = other.retune(state)
    expected = other.sample(retuned, key, 30, 400)
    jax.tree.map(np.testing.assert_array_equal, sample.handles, expected.handles)
    np.testing.assert_array_equal(sample.ages, expected.ages)
    for name in ("probabilities", "weights", "ess"):
        np.testing.assert_allclose(getattr(sample, name), getattr(expected, name), rtol=1e-4)
    np.testing.assert_allclose(chances, other.probabilities(retuned), rtol=1e-4, atol=1e-37)


@pytest.mark.parametrize("options", [{"alpha": 0.7}, {"tau": 99.0}, {"tau": None}])
def test_sums_made_for_other_options_are_refused(options):
    buffer, other = make(ROWS), make(ROWS, **options)
    state = state_of(buffer, *heavy_tailed(ROWS))
    handles = replay.Handles(jnp.zeros((1,), jnp.int32), jnp.zeros((1,), jnp.int32))
    one, value = np.zeros(1, np.float32), np.ones(1, np.float32)
    for call in (
        lambda: other.sample(state, jax.random.key(0), 4, 0),
        lambda: other.add(state, one, value, 0),
        lambda: other.update(state, handles, value),
        lambda: other.mark_drawn(state, handles),
        lambda: other.probabilities(state),
        lambda: other.stats(state, 0),
    ):
        with pytest.raises(ValueError, match="retune"):
            call()
    # Made anew they are exact, and so they are on the way back.
    there = other.retune(state)
    expected = true_probabilities(
        state, options.get("alpha", ALPHA), options.get("tau", TAU) or 1e9
    )
    assert total_variation(induced_by(other, there), expected) < 1e-5
    back = buffer.retune(there)
    jax.tree.map(np.testing.assert_array_equal, back, state)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_a_state_with_groups_of_another_size_is_refused(size):
    strategy = "prioritized" if size == 1 else "groups"
    buffer = replay.make_buffer(capacity=12, strategy="groups", group_size=2)
    other = replay.make_buffer(capacity=12, strategy=strategy, group_size=size)
    with pytest.raises(ValueError, match="group"):
        other.sample(buffer.init(jnp.zeros(())), jax.random.key(0), 6, 0)
    with pytest.raises(ValueError, match="group"):
        buffer.sample(other.init(jnp.zeros(())), jax.random.key(0), 6, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 1e-46},
        {"tau": 1e39},
        {"alpha": 1e39},
        {"beta": 1e39},
        {"fallback_priority": 1e-46},
        {"fallback_priority": 1e39},
    ],
)
def test_options_that_float32_cannot_hold_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        replay.make_buffer(capacity=3, **options)


@pytest.mark.parametrize(
    "options", [{"tau": 1e-30}, {"tau": 1e30}, {"alpha": 1e6}, {"alpha": 1e6, "tau": 1e-30}]
)
def test_the_outermost_options_give_no_nan(options):
    buffer = make(ROWS, **options)
    state = state_of(buffer, *heavy_tailed(ROWS))
    chances = np.asarray(buffer.probabilities(state), np.float64)
    assert chances.sum() == pytest.approx(1, abs=1e-5)
    induced = induced_by(buffer, state)
    assert induced.sum() == pytest.approx(1, abs=1e-9)
    assert total_variation(induced, chances) < 0.2


def test_alpha_zero_and_uniform_share_their_sums_whatever_tau():
    state = state_of(make(ROWS, strategy="uniform"), *heavy_tailed(ROWS))
    for other in (make(ROWS, alpha=0.0), make(ROWS, alpha=0.0, tau=None)):
        np.testing.assert_allclose(other.probabilities(state), 1 / ROWS, rtol=1e-5)
        assert total_variation(induced_by(other, state), np.full(ROWS, 1 / ROWS)) < 1e-7
