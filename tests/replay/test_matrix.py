"""Every entry point at every fill, capacity, priority, handle, exponent and age."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshper_jax import replay
from freshper_jax.replay.tree import plant
from tests.replay.induced import induced_probabilities
from tests.replay.oracle import GroupOracle, Oracle, pairs, since

LONGEST, TAU, BATCH, UPDATES = 4, 7.0, 6, 4
EXAMPLE = {"tokens": np.zeros((LONGEST,), np.int32), "value": np.zeros((), np.float32)}
PACKED = {"storage": "packed", "ragged": {"tokens": True, "value": False}}
WITHOUT = "prioritized_without_replacement"
# Capacities stand at the edges of the levels, of fan-out 16, and off them.
MACHINES = {
    "prioritized": {"capacity": 3, "weight_normaliser": "buffer_max"},
    "prioritized, lowest, max": {
        "capacity": 17,
        "insertion": "max",
        "eviction": "lowest_priority",
        "weight_normaliser": "none",
    },
    "prioritized, packed": {
        "capacity": 8,
        "token_capacity": 15,
        "weight_normaliser": "mean",
        **PACKED,
    },
    "without replacement, lowest": {
        "capacity": 8,
        "strategy": WITHOUT,
        "eviction": "lowest_priority",
        "weight_normaliser": "none",
    },
    "without replacement, packed, max": {
        "capacity": 7,
        "token_capacity": 11,
        "strategy": WITHOUT,
        "insertion": "max",
        "weight_normaliser": "buffer_max",
        **PACKED,
    },
    "newest, lowest": {"capacity": 7, "strategy": "newest", "eviction": "lowest_priority"},
    "oldest, packed": {"capacity": 7, "token_capacity": 9, "strategy": "oldest", **PACKED},
    "groups": {"capacity": 6, "strategy": "groups", "group_size": 2},
    "groups, lowest, max": {
        "capacity": 9,
        "strategy": "groups",
        "group_size": 3,
        "group_priority": "max",
        "insertion": "max",
        "eviction": "lowest_priority",
        "weight_normaliser": "buffer_max",
    },
}
PRIORITIES = st.sampled_from(
    [0.0, 1e-38, 1e-6, 0.3, 1.0, 2.5, 1e3, 1e38, np.nan, np.inf, -np.inf, -1.0]
)
# The last one wraps after a few calls.
CLOCKS = st.sampled_from([0, 1 << 24, (1 << 31) - 1 - 15])
# A handle by its age in the order of insertion, or one that never existed.
HANDLE = st.one_of(st.integers(0, 25), st.sampled_from(["below", "above", "none"]))
CHANGES = st.lists(st.tuples(HANDLE, PRIORITIES), min_size=UPDATES, max_size=UPDATES)
EXPONENTS = st.tuples(
    st.sampled_from([0.0, 0.6, 1.0]),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.sampled_from([math.inf, TAU, 0.5]),
)


def calls_for(capacity):
    row = st.tuples(PRIORITIES, st.integers(0, LONGEST), st.sampled_from([-3, 0, 1, 7]))
    sizes = st.sampled_from([2, 2, 2, capacity + 3])
    rows = sizes.flatmap(lambda size: st.lists(row, min_size=size, max_size=size))
    call = st.one_of(
        st.tuples(st.just("add"), rows),
        st.tuples(st.just("add"), rows),
        st.tuples(st.just("update"), CHANGES),
        st.tuples(st.just("rebirth"), CHANGES),
        st.tuples(st.just("sample"), st.integers(0, 1000), EXPONENTS),
        st.tuples(st.just("sample"), st.integers(0, 1000), EXPONENTS),
        st.tuples(st.just("wait"), st.sampled_from([1, 7, 140, 1400])),
    )
    return st.lists(call, min_size=2, max_size=12)


@functools.cache
def make(name):
    return replay.make_buffer(tau=TAU, alpha=0.6, beta=0.4, **MACHINES[name])


def oracle_for(name):
    options = MACHINES[name]
    own = {key: options[key] for key in ("insertion", "eviction") if key in options}
    if "group_size" in options:
        priority = options.get("group_priority", "mean")
        return GroupOracle(options["capacity"], options["group_size"], priority, tau=TAU, **own)
    tokens = options.get("token_capacity")
    return Oracle(options["capacity"], tau=TAU, token_capacity=tokens, **own)


@functools.cache
def draw(name):
    """Draws with the buffer's own options and with others."""
    buffer = make(name)

    @jax.jit
    def both(state, key, clock, alpha, beta, tau):
        own = buffer.sample(state, key, BATCH, clock)
        other = buffer.sample(state, key, BATCH, clock, beta, alpha=alpha, tau=tau)
        chances = buffer.probabilities(state), buffer.probabilities(state, alpha=alpha, tau=tau)
        return (own, other), chances

    return both


def resolve(reference, given_out, capacity):
    if reference == "below":
        return (-1, 0)
    if reference == "above":
        return (capacity, 0)
    if reference == "none" or not given_out:
        return (0, -1)
    return given_out[-1 - reference % len(given_out)]


def handles_of(named):
    index, generation = np.array(named, np.int32).T
    return replay.Handles(index=jnp.asarray(index), generation=jnp.asarray(generation))


def wrapped(clock):
    return since(clock, 0)


def check_state(buffer, state, oracle, clock):
    stats = buffer.stats(state, clock)
    assert int(stats.size) == int(state.size) == len(oracle.rows)
    assert int(stats.evicted) == oracle.evicted
    assert int(state.evicted_undrawn) == oracle.evicted_undrawn
    assert int(stats.stale_updates) == oracle.stale
    assert int(stats.replaced_priorities) == oracle.replaced
    ages = np.sort([since(clock, row.birth) for row in oracle.rows] or [0])
    quarters = np.arange(5) * (len(ages) - 1) // 4
    np.testing.assert_array_equal(stats.age_quantiles, ages[quarters])
    generations, log_base = np.full(oracle.capacity, -1), np.full(oracle.capacity, -np.inf)
    births, draws = np.array(state.birth), np.zeros(oracle.capacity, int)
    for row in oracle.rows:
        generations[row.slot], log_base[row.slot] = row.generation, np.log(row.base)
        births[row.slot], draws[row.slot] = row.birth, row.draws
    np.testing.assert_array_equal(state.generation, generations)
    np.testing.assert_array_equal(state.birth, births)
    np.testing.assert_array_equal(np.where(generations >= 0, state.draws, 0), draws)
    np.testing.assert_allclose(state.log_base, log_base, atol=1e-5)


def check_ess(sample):
    weights = np.asarray(sample.weights, np.float64)
    # Below it, what float32 can hold of the weights is not all of them.
    if weights.max() > 1e-30:
        ess = weights.sum() ** 2 / (weights**2).sum()
        assert float(sample.ess) == pytest.approx(ess, rel=1e-4)


def check_sample(name, sample, oracle, clock, alpha, beta, tau):
    options = MACHINES[name]
    strategy = options.get("strategy", "prioritized")
    normaliser = options.get("weight_normaliser", "batch_max")
    group_size = options.get("group_size", 1)
    stored = len(oracle.leaves(clock, tau))
    once_each = strategy in (WITHOUT, "newest", "oldest")
    drawn = min(stored, BATCH) if once_each or not stored else BATCH
    weights = np.asarray(sample.weights, np.float64)
    chances = np.asarray(sample.probabilities, np.float64)
    # What no row could fill.
    np.testing.assert_array_equal(np.asarray(sample.handles.generation)[drawn:], -1)
    for values in (weights, chances, np.asarray(sample.ages)):
        assert not values[drawn:].any()
    assert np.isfinite(weights).all()
    rows = [oracle.find(handle) for handle in pairs(sample.handles)[:drawn]]
    assert None not in rows
    np.testing.assert_array_equal(sample.data["value"][:drawn], [row.value for row in rows])
    for tokens, row in zip(np.asarray(sample.data["tokens"]), rows, strict=False):
        length = LONGEST if oracle.places is None else row.length
        expected = np.where(np.arange(LONGEST) < length, int(row.value), 0)
        np.testing.assert_array_equal(tokens, expected)
    ages = [since(clock, row.birth) for row in rows]
    np.testing.assert_array_equal(np.asarray(sample.ages)[:drawn], ages)
    if not drawn:
        assert float(sample.ess) == 0
        return
    check_ess(sample)
    slots = np.array([row.slot for row in rows])
    one_draw = oracle.probabilities(alpha, tau, clock)
    if strategy in ("newest", "oldest"):
        order = oracle.rows[::-1] if strategy == "newest" else oracle.rows
        assert [row.generation for row in rows] == [row.generation for row in order[:drawn]]
        np.testing.assert_allclose(chances[:drawn], 1 / drawn, rtol=1e-6)
        np.testing.assert_array_equal(weights[:drawn], 1)
    elif strategy == WITHOUT:
        assert len(set(slots)) == drawn
        check_without_replacement(
            chances[:drawn], weights[:drawn], one_draw, slots, oracle, beta, normaliser
        )
    else:
        runs = slots.reshape(-1, group_size)
        np.testing.assert_array_equal(runs % group_size, [range(group_size)] * len(runs))
        leaves = slots // group_size
        # Rarer ones do not come up in so few draws.
        assert (one_draw[leaves] > 1e-10).all()
        np.testing.assert_allclose(chances, one_draw[leaves], rtol=1e-4, atol=1e-37)
        expected = oracle.weights(one_draw, leaves, beta, normaliser)
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-37)


def check_without_replacement(chances, weights, one_draw, slots, oracle, beta, normaliser):
    """All chances must belong to one and the same waiting time."""
    stored, drawn = len(oracle.rows), len(slots)
    assert ((chances > 0) & (chances <= 1)).all()
    everything = [row.slot for row in oracle.rows]
    if stored <= BATCH:
        np.testing.assert_array_equal(chances, 1)
        least = 1.0
    else:
        known = int(np.argmin(chances))
        with np.errstate(divide="ignore"):
            time = -np.log1p(-chances[known]) / one_draw[slots[known]]
        if not np.isfinite(time):
            return
        np.testing.assert_allclose(chances, -np.expm1(-one_draw[slots] * time), rtol=1e-3)
        least = (-np.expm1(-one_draw[everything] * time)).min()
    expected = (stored * chances / drawn) ** -beta
    if normaliser == "buffer_max":
        if least < 1e-30:
            return
        expected /= (stored * least / drawn) ** -beta
    np.testing.assert_allclose(weights, expected, rtol=1e-3)


@pytest.mark.parametrize("name", MACHINES)
@settings(max_examples=16)
@given(data=st.data(), clock=CLOCKS)
def test_any_sequence_of_calls(name, data, clock):
    buffer, oracle = make(name), oracle_for(name)
    state, given_out, key = buffer.init(EXAMPLE), [], jax.random.key(0)
    for call, *arguments in data.draw(calls_for(oracle.capacity)):
        if call == "wait":
            clock = wrapped(clock + arguments[0])
        elif call == "add":
            bases, lengths, names = map(list, zip(*arguments[0], strict=True))
            values = np.arange(1, len(bases) + 1, dtype=np.float32) + oracle.added
            tokens = np.repeat(values.astype(np.int32)[:, None], LONGEST, axis=1)
            extra = {}
            if oracle.places is not None:
                extra = {"lengths": np.array(lengths, np.int32)}
                new = oracle.add(values, bases, clock, lengths)
            elif isinstance(oracle, GroupOracle):
                extra = {"groups": np.array(names, np.int32)}
                new = oracle.add(values, bases, clock, names)
            else:
                new = oracle.add(values, bases, clock)
            batch, bases = {"tokens": tokens, "value": values}, np.array(bases, np.float32)
            state, handles = buffer.add(state, batch, bases, clock, **extra)
            assert pairs(handles) == new
            given_out += new
        elif call == "sample":
            one = jax.random.fold_in(key, arguments[0])
            scalars = map(jnp.float32, arguments[1])
            samples, chances = draw(name)(state, one, jnp.int32(clock), *scalars)
            options = [(0.6, 0.4, TAU), arguments[1]]
            for sample, actual, option in zip(samples, chances, options, strict=True):
                check_sample(name, sample, oracle, clock, *option)
                expected = oracle.probabilities(option[0], option[2], clock)
                np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-37)
                total = np.asarray(actual, np.float64).sum()
                assert total == pytest.approx(float(expected.any()), abs=1e-5)
            state = buffer.mark_drawn(state, samples[0].handles)
            oracle.mark(pairs(samples[0].handles))
        else:
            changes, bases = zip(*arguments[0], strict=True)
            named = [resolve(change, given_out, oracle.capacity) for change in changes]
            bases = np.array(bases, np.float32)
            birth = clock if call == "rebirth" else None
            state = buffer.update(state, handles_of(named), bases, birth)
            oracle.update(named, bases, birth)
        check_state(buffer, state, oracle, clock)


# By table: capacities at the edges of the levels, at every fill.

CAPACITIES = [1, 8, 15, 17, 255, 257, 1000, 4095, 4096]
OPTIONS = list(itertools.product([0.0, 0.6, 1.0], [0.0, 0.4, 1.0], [math.inf, 3 * TAU, 0.05 * TAU]))
DRAWS = 16


@functools.cache
def plain(capacity, normaliser="batch_max"):
    return replay.make_buffer(capacity=capacity, alpha=0.6, tau=TAU, weight_normaliser=normaliser)


@functools.cache
def filler(capacity):
    """Adds some of the rows given, one at a time, to an empty buffer."""
    buffer = plain(capacity)

    @jax.jit
    def fill(bases, births, rows):
        def add_one(number, state):
            value = number.astype(jnp.float32)[None]
            return buffer.add(state, value, bases[number][None], births[number])[0]

        return jax.lax.fori_loop(0, rows, add_one, buffer.init(jnp.zeros(())))

    return fill


@functools.cache
def draw_all(capacity, normaliser="batch_max"):
    """Draws with the buffer's own options, and with each of `OPTIONS`."""
    buffer = plain(capacity, normaliser)

    @jax.jit
    def all_of_them(state, key, clock):
        def one(option):
            alpha, beta, tau = option
            sample = buffer.sample(state, key, DRAWS, clock, beta, alpha=alpha, tau=tau)
            return sample, buffer.probabilities(state, alpha=alpha, tau=tau)

        own = buffer.sample(state, key, DRAWS, clock), buffer.probabilities(state)
        return own, jax.vmap(one)(jnp.array(OPTIONS, jnp.float32))

    return all_of_them


@dataclasses.dataclass
class Rows:
    """Rows as arrays over the slots, to be checked all at once."""

    value: np.ndarray
    generation: np.ndarray
    base: np.ndarray
    birth: np.ndarray

    def probabilities(self, alpha, tau):
        result = np.zeros(len(self.base))
        some = np.flatnonzero(self.generation >= 0)
        if not len(some):
            return result
        first = self.birth[some[0]]
        born = np.array([since(birth, first) for birth in self.birth[some]], np.float64)
        logs = alpha * (np.log(self.base[some]) + (born - born.max()) / tau)
        shares = np.exp(logs - logs.max())
        result[some] = shares / shares.sum()
        return result


def rows_left(capacity, bases, births, rows):
    """What is left of so many rows, added in turn."""
    left = Rows(*np.zeros((4, capacity)))
    left.generation -= 1
    kept = np.arange(rows)[-capacity:] if rows else np.arange(0)
    slots = kept % capacity
    left.value[slots] = left.generation[slots] = kept
    left.base[slots], left.birth[slots] = bases[kept].astype(np.float64), births[kept]
    return left


def check_draws(rows, drawn, clock, normaliser="batch_max"):
    """Checks what `draw_all` gave."""
    (own, own_chances), (others, other_chances) = jax.tree.map(np.asarray, drawn)
    samples = [own] + [jax.tree.map(lambda leaf, k=k: leaf[k], others) for k in range(len(OPTIONS))]
    stored = (rows.generation >= 0).sum()
    for sample, actual, (alpha, beta, tau) in zip(
        samples, [own_chances, *other_chances], [(0.6, 0.4, TAU), *OPTIONS], strict=True
    ):
        chances = rows.probabilities(alpha, tau)
        np.testing.assert_allclose(actual, chances, rtol=1e-4, atol=1e-37)
        assert actual.sum(dtype=np.float64) == pytest.approx(float(stored > 0), abs=1e-5)
        slots = sample.handles.index
        if not stored:
            np.testing.assert_array_equal(sample.handles.generation, np.full(DRAWS, -1))
            for values in (sample.weights, sample.probabilities, sample.ages, sample.ess):
                assert not values.any()
            continue
        # No row that is empty or gone, and none so rare that it cannot come up.
        assert (sample.handles.generation == rows.generation[slots]).all()
        assert (chances[slots] > 1e-10).all()
        np.testing.assert_array_equal(sample.data, rows.value[slots])
        ages = [since(clock, birth) for birth in rows.birth[slots]]
        np.testing.assert_array_equal(sample.ages, ages)
        np.testing.assert_allclose(sample.probabilities, chances[slots], rtol=1e-4, atol=1e-37)
        assert np.isfinite(sample.weights).all()
        logs = -beta * np.log(stored * chances[slots])
        if normaliser == "buffer_max":
            # In logarithms: the rarest row may have a P that float64 does not know.
            some = rows.generation >= 0
            first = rows.birth[np.flatnonzero(some)[0]]
            born = np.array([since(birth, first) for birth in rows.birth], np.float64)
            with np.errstate(divide="ignore"):
                masses = alpha * (np.log(rows.base) + born / tau)
            one = slots[0]
            least = np.log(chances[one]) + masses[some].min() - masses[one]
            logs += beta * (np.log(stored) + least)
        elif normaliser == "batch_max":
            logs -= logs.max()
        weights = np.exp(logs)
        if normaliser == "mean":
            weights /= weights.mean()
        np.testing.assert_allclose(sample.weights, weights, rtol=2e-4, atol=1e-37)
        check_ess(sample)


def history(capacity):
    """Bases over some nine orders and births over 20 tau, of rows for any fill."""
    rng = np.random.default_rng(capacity)
    rows = 2 * capacity + 3
    bases = np.exp(rng.normal(0, 3, rows)).astype(np.float32)
    return bases, np.sort(rng.integers(0, int(20 * TAU), rows)).astype(np.int32)


def fills(capacity):
    """Empty, one row, half full, exactly full, wrapped, wrapped twice."""
    half = (capacity + 1) // 2
    return sorted({0, 1, half, capacity, capacity + half, 2 * capacity + 3})


@functools.cache
def planted(capacity):
    rate = jnp.float32(0.6 / TAU)
    return jax.jit(lambda tree: plant(tree, capacity, rate))


def check_reach(state, left):
    """Reads off the sums how often each row is drawn; each that holds 1e-9 of all can be."""
    induced = induced_probabilities(planted(len(left.base))(state.tree))
    chances = left.probabilities(float(np.float32(0.6)), TAU)
    assert not induced[chances == 0].any()
    assert (induced[chances > 1e-9] > 0).all()
    assert np.abs(induced - chances).sum() < 1e-5


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_every_capacity_at_every_fill(capacity):
    bases, births = history(capacity)
    for fill in fills(capacity):
        state = filler(capacity)(bases, births, fill)
        left = rows_left(capacity, bases, births, fill)
        np.testing.assert_array_equal(state.generation, left.generation)
        assert int(state.size) == min(fill, capacity)
        assert int(state.evicted) == max(fill - capacity, 0)
        actual = plain(capacity).probabilities(state)
        np.testing.assert_allclose(actual, left.probabilities(0.6, TAU), rtol=1e-4, atol=1e-37)
        check_reach(state, left)


@pytest.mark.parametrize("capacity", [16, 4097])
def test_draws_at_every_fill_with_all_options(get_key, capacity):
    bases, births = history(capacity)
    rows, half, clock = len(bases), (capacity + 1) // 2, int(births[-1]) + 1
    draw_here = draw_all(capacity)
    for fill in fills(capacity):
        state = filler(capacity)(bases, births, fill)
        left = rows_left(capacity, bases, births, fill)
        check_draws(left, draw_here(state, get_key(), clock), clock)
        check_reach(state, left)
    # The same rows in one add, more than there is room for, over others.
    state = filler(capacity)(bases, births, half)
    values = half + np.arange(rows, dtype=np.float32)
    state, handles = plain(capacity).add(state, values, bases, clock)
    all_bases = np.concatenate([bases[:half], bases])
    left = rows_left(capacity, all_bases, np.full(half + rows, clock), half + rows)
    np.testing.assert_array_equal(state.generation, left.generation)
    np.testing.assert_array_equal(handles.generation, half + np.arange(rows))
    kept = np.asarray(handles.index)[-capacity:]
    np.testing.assert_array_equal(kept, np.arange(half + rows)[-capacity:] % capacity)
    assert int(state.evicted) == half + rows - capacity
    check_draws(left, draw_here(state, get_key(), clock), clock)
    check_reach(state, left)


# By table: priorities, ages, exponents and normalisers.

TINY, NAN, INF = 1e-38, np.nan, np.inf
BASES = {
    "plain": [1, 2, 0.5, 3, 1],
    "a zero": [0, 1, 2, 0.5, 1],
    "all zero": [0, 0, 0, 0, 0],
    "tiny": [1e-38, 1e-38, 2e-38, 1e-6, 1e-40],
    "huge": [1e38, 3e38, 1e38, 1, 1e-38],
    "nan": [NAN, 1, 2, 3, NAN],
    "infinite": [INF, 1, -INF, 3, 1],
    "negative": [-1, 1, -1e-30, 3, -1e38],
    "all bad": [NAN, INF, -1, -INF, NAN],
}
AGES = {
    "fresh": [0, 0, 0, 0, 0],
    "tau": [14, 7, 7, 7, 0],
    "20 tau": [140, 7, 3, 1, 0],
    "200 tau": [1400, 1399, 140, 7, 0],
    "all old": [1400, 1399, 1398, 1397, 1396],
}
NEWEST = [0, (1 << 24) + 1, (1 << 31) - 1, -(1 << 31) + 100]


@pytest.mark.parametrize("ages", AGES)
@pytest.mark.parametrize("normaliser", ["batch_max", "buffer_max", "mean"])
def test_every_priority_at_every_age(get_key, normaliser, ages):
    buffer, draw_here = plain(5, normaliser), draw_all(5, normaliser)
    for number, (newest, name) in enumerate(itertools.product(NEWEST, BASES)):
        births = np.array([wrapped(newest - age) for age in AGES[ages]], np.int32)
        bases = np.array(BASES[name], np.float32)
        bad = ~(np.isfinite(bases) & (bases >= 0))
        if number % 2:
            state = filler(5)(bases, births, 5)
        else:
            # The same by way of updates; every other time.
            state = filler(5)(np.ones(5, np.float32), births, 5)
            index = jnp.arange(5, dtype=jnp.int32)
            state = buffer.update(state, replay.Handles(index, index), bases)
        assert int(state.replaced) == bad.sum()
        clean = np.where(bad, np.float32(1e-6), np.maximum(bases, np.finfo(np.float32).tiny))
        left = rows_left(5, clean, births, 5)
        check_draws(left, draw_here(state, get_key(), newest), newest, normaliser)


# By table: handles.

HANDLES = {
    "unique": [(3, 0), (0, 0), (4, 0), (1, 0)],
    "duplicate": [(1, 0), (3, 0), (1, 0), (1, 0)],
    "stale": [(0, -5), (1, 5), (2, -5), (3, 0)],
    "never there": [(0, -1 - (1 << 20)), (4, 1 << 20), (1, 0), (2, 0)],
    "below": [(-1, 0), (-5, 0), (-(1 << 31), 0), (1, 0)],
    "above": [(5, 0), (6, 0), ((1 << 31) - 1, 0), (4, 0)],
}


@pytest.mark.parametrize("kind", HANDLES)
@pytest.mark.parametrize("rows", [0, 1, 3, 5, 8, 13])
def test_every_kind_of_handle_at_every_fill(kind, rows):
    buffer, oracle = plain(5), Oracle(5, tau=TAU)
    bases, births = np.linspace(1, 3, 13).astype(np.float32), np.arange(13, dtype=np.int32)
    state = filler(5)(bases, births, rows)
    for number in range(rows):
        oracle.add([number], [bases[number]], births[number])
    # Generations are counted from what is in the slot.
    stored = np.asarray(state.generation)
    named = []
    for slot, offset in HANDLES[kind]:
        inside = 0 <= slot < 5
        named.append((slot, int(stored[slot]) + offset if inside else offset))
    handles = handles_of(named)
    state = buffer.mark_drawn(state, handles)
    oracle.mark(named)
    for values, clock in [([5, 6, 7, 8], None), ([0.5, 0, NAN, 2], 20)]:
        state = buffer.update(state, handles, np.array(values, np.float32), clock)
        oracle.update(named, values, clock)
        check_state(buffer, state, oracle, 25)
        np.testing.assert_allclose(
            buffer.probabilities(state), oracle.probabilities(0.6, TAU, 25), rtol=5e-5, atol=1e-37
        )
