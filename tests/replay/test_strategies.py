"""Each strategy and each eviction: what is drawn how often, what goes, what stays."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from freshper_jax import replay
from freshper_jax.replay.storage import read_rows
from tests.replay.oracle import GroupOracle, Oracle, pairs

WITHOUT = "prioritized_without_replacement"


@functools.cache
def make(**options):
    return replay.make_buffer(**options)


def add(buffer, state, bases, clock, first=0, **extra):
    """Adds rows that are valued by their numbers."""
    values = first + np.arange(len(bases), dtype=np.float32)
    return buffer.add(state, values, np.array(bases, np.float32), clock, **extra)


@functools.cache
def empty(buffer):
    # One program, not one for each operation.
    state = jax.jit(buffer.init)(jnp.zeros(()))
    return jax.tree.map(np.asarray, state)


def filled(buffer, bases, clocks):
    """Adds rows one at a time."""
    state = empty(buffer)
    for number, (base, clock) in enumerate(zip(bases, clocks, strict=True)):
        state, _ = add(buffer, state, [base], int(clock), number)
    return state


def pass_chi_square(counts, chances):
    expected = np.asarray(chances, np.float64) * counts.sum()
    assert not counts[expected == 0].any()
    rare = expected < 20
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(counts) > 1:
        statistic = ((counts - expected) ** 2 / expected).sum()
        assert scipy.stats.chi2.sf(statistic, len(counts) - 1) > 1e-3


@functools.cache
def draw_many(buffer, batch_size, batches):
    """Draws independent batches; they come stacked."""

    @jax.jit
    def many(state, key, clock):
        keys = jax.random.split(key, batches)
        return jax.vmap(lambda one: buffer.sample(state, one, batch_size, clock))(keys)

    return many


# Without replacement.

ROWS, DRAWN, BATCHES = 6, 3, 100_000
MASSES = {
    "even": [1, 1, 1, 1, 1, 1],
    "mixed": [1, 2, 3, 0.5, 4, 0.1],
    "steep": [1e-3, 1e3, 1, 10, 0.2, 30],
    "fewer rows": [2, 1, 0.3, 5],
}


@functools.cache
def draws_without_replacement(name):
    """All batches of one buffer, and the masses its rows have by now."""
    buffer = make(
        capacity=ROWS, alpha=1.0, beta=1.0, tau=4.0, strategy=WITHOUT, weight_normaliser="none"
    )
    masses = np.array(MASSES[name], np.float64)
    clocks = np.arange(len(masses)) * 2
    # Given the ages that they will have, these bases lead to the masses.
    bases = masses * np.exp((10 - clocks) / 4.0)
    state = filled(buffer, bases, clocks)
    sample = draw_many(buffer, DRAWN, BATCHES)(state, jax.random.key(len(name)), 10)
    return masses, jax.tree.map(np.asarray, sample)


def orders(masses):
    """The chance of every ordered batch, by drawing each row in proportion to its mass."""
    chances = {}
    for order in itertools.permutations(range(len(masses)), DRAWN):
        chance, left = 1.0, masses.sum()
        for row in order:
            chance *= masses[row] / left
            left -= masses[row]
        chances[order] = chance
    return chances


@pytest.mark.parametrize("name", MASSES)
def test_without_replacement_follows_successive_draws(name):
    masses, sample = draws_without_replacement(name)
    chances = orders(masses)
    code = sample.handles.index @ np.array([36, 6, 1])
    counts = np.bincount(code, minlength=216)
    expected = np.zeros(216)
    for order, chance in chances.items():
        expected[np.array(order) @ np.array([36, 6, 1])] = chance
    pass_chi_square(counts, expected)


@pytest.mark.parametrize("name", MASSES)
def test_without_replacement_weights_make_the_batch_mean_unbiased(name):
    masses, sample = draws_without_replacement(name)
    rows = len(masses)
    # One value that is 1 for one row, for each row in turn: then sums of any values follow.
    drawn = sample.handles.index[..., None] == np.arange(rows)
    estimates = (sample.weights[..., None] * drawn).mean(axis=1, dtype=np.float64)
    error = estimates.std(axis=0) / np.sqrt(BATCHES)
    assert (np.abs(estimates.mean(axis=0) - 1 / rows) < 4.5 * error + 1e-6).all()
    # And so is each chance on its own: one over it, where drawn, has the mean 1.
    inverse = (drawn / sample.probabilities[..., None]).sum(axis=1, dtype=np.float64)
    error = inverse.std(axis=0) / np.sqrt(BATCHES)
    assert (np.abs(inverse.mean(axis=0) - 1) < 4.5 * error + 1e-6).all()


@pytest.mark.parametrize("name", MASSES)
def test_without_replacement_includes_rows_as_often_as_enumerated(name):
    masses, sample = draws_without_replacement(name)
    inclusion = np.zeros(len(masses))
    for order, chance in orders(masses).items():
        inclusion[list(order)] += chance
    counts = np.bincount(sample.handles.index.ravel(), minlength=len(masses)) / BATCHES
    error = np.sqrt(inclusion * (1 - inclusion) / BATCHES)
    assert (np.abs(counts - inclusion) < 4.5 * error + 1e-6).all()


def test_without_replacement_never_repeats_a_row(get_key):
    rng = np.random.default_rng(0)
    buffer = make(capacity=1000, strategy=WITHOUT, tau=30.0)
    state, _ = add(buffer, empty(buffer), np.exp(rng.normal(0, 3, 1000)), 0)
    index = np.sort(draw_many(buffer, 100, 500)(state, get_key(), 5).handles.index, axis=1)
    assert (np.diff(index, axis=1) > 0).all()


@pytest.mark.parametrize("rows", [0, 1, 3, 6])
@pytest.mark.parametrize("normaliser", ["batch_max", "buffer_max", "mean", "none"])
def test_without_replacement_takes_all_rows_where_there_are_no_more(rows, normaliser):
    buffer = make(capacity=8, strategy=WITHOUT, weight_normaliser=normaliser)
    state = filled(buffer, np.geomspace(1e-3, 1e3, rows), range(rows))
    sample = buffer.sample(state, jax.random.key(rows), 6, 7, 1.0)
    valid = np.arange(6) < rows
    assert sorted(np.asarray(sample.handles.index)[:rows]) == list(range(rows))
    np.testing.assert_array_equal(np.asarray(sample.handles.generation) >= 0, valid)
    np.testing.assert_array_equal(sample.probabilities, valid.astype(np.float32))
    np.testing.assert_allclose(sample.weights, valid.astype(np.float32), rtol=1e-6)
    assert float(sample.ess) == rows


def test_without_replacement_gives_each_a_turn_in_a_batch_of_all(get_key):
    buffer = make(capacity=5, strategy=WITHOUT, alpha=1.0)
    state = filled(buffer, [1, 2, 3, 4, 0], np.zeros(5))
    index = np.asarray(draw_many(buffer, 5, 200)(state, get_key(), 0).handles.index)
    np.testing.assert_array_equal(np.sort(index, axis=1), np.tile(np.arange(5), (200, 1)))
    # The row of least mass has nothing to hope for while there is another one.
    assert (index[:, -1] == 4).all()


# Uniform, newest, oldest.


def test_uniform_draws_all_rows_alike(get_key):
    buffer = make(capacity=40, strategy="uniform", eviction="lowest_priority", tau=2.0)
    rng = np.random.default_rng(1)
    state = filled(buffer, np.exp(rng.normal(0, 4, 30)), range(30))
    sample = draw_many(buffer, 1, 50_000)(state, get_key(), 40)
    counts = np.bincount(np.asarray(sample.handles.index).ravel(), minlength=40)
    pass_chi_square(counts, np.where(np.arange(40) < 30, 1 / 30, 0))
    np.testing.assert_allclose(sample.probabilities, 1 / 30, rtol=1e-6)
    np.testing.assert_allclose(sample.weights, 1.0, rtol=1e-6)


ORDERS = {
    "ring": {},
    "lowest": {"eviction": "lowest_priority"},
    "packed": {"storage": "packed", "token_capacity": 12, "ragged": True},
}


@pytest.mark.parametrize("strategy", ["newest", "oldest"])
@pytest.mark.parametrize("kind", ORDERS)
def test_newest_and_oldest_go_by_insertion(kind, strategy):
    buffer = make(capacity=5, strategy=strategy, tau=3.0, **ORDERS[kind])
    tokens = 12 if kind == "packed" else None
    eviction = ORDERS[kind].get("eviction", "oldest")
    oracle = Oracle(5, tau=3.0, eviction=eviction, token_capacity=tokens)
    rng = np.random.default_rng(3)
    state = buffer.init(jnp.zeros((4,)))
    for clock in range(12):
        bases = np.exp(rng.normal(0, 2, 2)).astype(np.float32)
        values, lengths = 2 * clock + np.arange(2), rng.integers(1, 5, 2)
        extra = {} if tokens is None else {"lengths": lengths.astype(np.int32)}
        rows = np.repeat(np.float32(values)[:, None], 4, axis=1)
        state, handles = buffer.add(state, rows, bases, clock, **extra)
        assert pairs(handles) == oracle.add(values, bases, clock, lengths)
        # Neither a new priority nor a new birth changes who came last.
        state = buffer.update(state, handles, np.ones(2, np.float32), clock)
        oracle.update(pairs(handles), np.ones(2), clock)
        sample = buffer.sample(state, jax.random.key(clock), 4, clock + 1)
        expected = oracle.rows[::-1] if strategy == "newest" else oracle.rows
        expected = [row.value for row in expected[:4]]
        assert list(np.asarray(sample.data)[: len(expected), 0]) == expected
        valid = np.arange(4) < len(expected)
        np.testing.assert_array_equal(np.asarray(sample.handles.generation) >= 0, valid)
        np.testing.assert_array_equal(sample.weights, valid.astype(np.float32))
        np.testing.assert_allclose(sample.probabilities, valid / len(expected), rtol=1e-6)


# Eviction of rows.


def lowest():
    return make(capacity=5, eviction="lowest_priority", tau=10.0)


def test_lowest_priority_keeps_the_best_rows():
    # Of rows born at once the largest bases stay, and the row that came last.
    rng = np.random.default_rng(5)
    bases = np.exp(rng.normal(0, 2, 50)).astype(np.float32)
    state = filled(lowest(), bases, np.zeros(50))
    expected = np.sort(np.append(np.sort(bases[:-1])[-4:], bases[-1]))
    np.testing.assert_allclose(np.sort(np.exp(state.log_base)), expected, rtol=1e-5)


def test_lowest_priority_counts_the_age():
    # By clock 20 the first has 1 e^-2 = .135, the second .3 e^-1 = .11, the third .12.
    state = filled(lowest(), [1, 0.3, 0.12, 9, 9], [0, 10, 20, 20, 20])
    for number, slot in [(5, 1), (6, 2), (7, 0)]:
        state, handles = add(lowest(), state, [5], 20, first=number)
        assert pairs(handles) == [(slot, number)]
    # Later on a row of 9 born at 20 has less than one of 5 born at 30; both are left alone.
    state, handles = add(lowest(), state, [5], 30, first=8)
    state, handles = add(lowest(), state, [1], 30, first=9)
    assert int(state.generation[3]) == 3


def test_lowest_priority_takes_free_slots_first_and_of_equals_the_lower_slot():
    state = filled(lowest(), [1, 0, 1], np.zeros(3))
    # Two slots are free; then the zero goes, then the lower one of the equals.
    state, handles = add(lowest(), state, [7, 7, 7, 7], 0, first=3)
    assert pairs(handles) == [(3, 3), (4, 4), (1, 5), (0, 6)]
    np.testing.assert_array_equal(state.data, [6, 5, 2, 3, 4])


@pytest.mark.parametrize("added", [4, 13])
@pytest.mark.parametrize("before", [0, 3, 5])
def test_lowest_priority_and_an_add_larger_than_the_room_or_the_capacity(before, added):
    oracle = Oracle(5, eviction="lowest_priority")
    state = filled(lowest(), [3, 1, 2, 8, 0.5][:before], np.zeros(before))
    for number in range(before):
        oracle.add([number], [[3, 1, 2, 8, 0.5][number]], 0)
    bases = np.linspace(9, 1, added).astype(np.float32)
    state, handles = add(lowest(), state, bases, 1, first=before)
    assert pairs(handles) == oracle.add(before + np.arange(added), bases, 1)
    assert int(state.size) == len(oracle.rows)
    assert int(state.evicted) == oracle.evicted
    assert int(state.evicted_undrawn) == oracle.evicted_undrawn
    rows = sorted(oracle.rows, key=lambda row: row.slot)
    np.testing.assert_array_equal(np.asarray(state.data)[: len(rows)], [row.value for row in rows])
    np.testing.assert_allclose(
        lowest().probabilities(state), oracle.probabilities(0.6, 10.0, 1), rtol=1e-4
    )


# Groups. Two sets of options and few sizes of batches, to compile little.

GROUPS, SIZE = 4, 3
GROUP_OPTIONS = {
    "mean, oldest": {"group_priority": "mean", "eviction": "oldest"},
    "max, lowest": {"group_priority": "max", "eviction": "lowest_priority"},
}


def group_pair(kind):
    options = GROUP_OPTIONS[kind]
    buffer = make(
        capacity=GROUPS * SIZE, strategy="groups", group_size=SIZE, tau=10.0, alpha=1.0, **options
    )
    oracle = GroupOracle(
        GROUPS * SIZE, SIZE, options["group_priority"], eviction=options["eviction"], tau=10.0
    )
    return buffer, oracle, empty(buffer)


def add_members(buffer, oracle, state, names, bases, clock):
    """Adds rows three at a time, the rest one at a time, or all where they are 13."""
    every_handle = []
    names, bases = np.array(names, np.int32), np.array(bases, np.float32)
    while len(names):
        rows = len(names) if len(names) == 13 else 3 if len(names) >= 3 else 1
        values = oracle.added + np.arange(rows, dtype=np.float32)
        state, handles = buffer.add(state, values, bases[:rows], clock, groups=names[:rows])
        assert pairs(handles) == oracle.add(values, bases[:rows], clock, names[:rows])
        every_handle += pairs(handles)
        names, bases = names[rows:], bases[rows:]
    assert int(state.size) == len(oracle.rows)
    assert int(state.evicted) == oracle.evicted
    assert int(state.evicted_undrawn) == oracle.evicted_undrawn
    return state, every_handle


def handles_of(named):
    index, generation = np.array(named, np.int32).T
    return replay.Handles(index=jnp.asarray(index), generation=jnp.asarray(generation))


def check_groups(buffer, oracle, state, key, clock):
    """Draws, and checks that all members of whole groups come, in order, and none else."""
    chances = oracle.probabilities(1.0, 10.0, clock)
    np.testing.assert_allclose(buffer.probabilities(state), chances, rtol=5e-5, atol=1e-37)
    sample = buffer.sample(state, key, 4 * SIZE, clock, 1.0)
    complete = oracle.complete()
    assert bool(buffer.can_sample(state, len(complete) * SIZE))
    assert not bool(buffer.can_sample(state, len(complete) * SIZE + 1))
    if not complete:
        np.testing.assert_array_equal(sample.handles.generation, np.full(4 * SIZE, -1))
        assert not np.asarray(sample.weights).any()
        return sample
    slots = np.asarray(sample.handles.index).reshape(4, SIZE)
    runs = slots[:, 0] // SIZE
    np.testing.assert_array_equal(slots, runs[:, None] * SIZE + np.arange(SIZE))
    assert set(runs) <= set(complete)
    members = [row for run in runs for row in oracle.runs[run].members]
    np.testing.assert_array_equal(sample.data, [row.value for row in members])
    np.testing.assert_array_equal(sample.ages, [clock - row.birth for row in members])
    generations = [row.generation for row in members]
    np.testing.assert_array_equal(sample.handles.generation, generations)
    expected = np.repeat(chances[runs], SIZE)
    np.testing.assert_allclose(sample.probabilities, expected, rtol=5e-5)
    # Weights count groups, not rows.
    weights = np.repeat((len(complete) * chances[runs]) ** -1.0, SIZE)
    np.testing.assert_allclose(sample.weights, weights / weights.max(), rtol=1e-4)
    return sample


@pytest.mark.parametrize("kind", GROUP_OPTIONS)
def test_groups_whose_members_arrive_over_several_adds(get_key, kind):
    buffer, oracle, state = group_pair(kind)
    rng = np.random.default_rng(7)
    waiting, clock = list(np.repeat(np.arange(20), SIZE)), 0
    while waiting:
        # A window over the list, so that some three groups are under way at once.
        names = [waiting.pop(rng.integers(min(9, len(waiting)))) for _ in range(3)]
        state, _ = add_members(buffer, oracle, state, names, np.exp(rng.normal(0, 1.5, 3)), clock)
        check_groups(buffer, oracle, state, get_key(), clock)
        clock += int(rng.integers(0, 8))


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("mean, oldest", (4 * np.exp(-2) + 1 + 0) / 3, (np.exp(-1) + 0.5 + 0) / 3),
        ("max, lowest", 1.0, 0.5),
    ],
)
def test_a_group_is_drawn_by_its_members_priorities_each_with_its_own_age(kind, first, second):
    # 4 e^-2, 1 and 0 against 1 e^-1, .5 and 0, of which the mean or the largest counts.
    buffer, oracle, state = group_pair(kind)
    for names, bases, clock in [
        ([5, 5], [4, 0], 0),
        ([6, 6], [1, 0], 10),
        ([5, 6], [1, 0.5], 20),
    ]:
        state, _ = add_members(buffer, oracle, state, names, bases, clock)
    expected = np.array([first, second, 0, 0]) / (first + second)
    for clock in (20, 35, 4000):
        sample = buffer.sample(state, jax.random.key(clock), 4 * SIZE, clock, 1.0)
        np.testing.assert_allclose(buffer.probabilities(state), expected, rtol=1e-5)
        chances = expected[np.asarray(sample.handles.index) // SIZE]
        np.testing.assert_allclose(sample.probabilities, chances, rtol=1e-5)
        weights = 1 / (2 * chances)
        np.testing.assert_allclose(sample.weights, weights / weights.max(), rtol=1e-5)


def test_groups_are_drawn_as_often_as_their_priorities_say(get_key):
    buffer, oracle, state = group_pair("mean, oldest")
    rng = np.random.default_rng(2)
    for clock in range(0, 18, 3):
        names = [clock, clock, clock - 3]
        state, _ = add_members(buffer, oracle, state, names, np.exp(rng.normal(0, 1, 3)), clock)
    assert len(oracle.complete()) == 3
    index = np.asarray(draw_many(buffer, SIZE, 50_000)(state, get_key(), 20).handles.index)
    np.testing.assert_array_equal(index - index[:, :1], np.tile(np.arange(SIZE), (50_000, 1)))
    counts = np.bincount(index[:, 0] // SIZE, minlength=GROUPS)
    pass_chi_square(counts, oracle.probabilities(1.0, 10.0, 20))


def test_an_incomplete_group_is_never_drawn_however_large_its_priority(get_key):
    buffer, oracle, state = group_pair("mean, oldest")
    state, _ = add_members(buffer, oracle, state, [1, 1, 2, 1, 2], [1, 1, 1e30, 1, 1e30], 0)
    for _ in range(5):
        sample = check_groups(buffer, oracle, state, get_key(), 3)
        assert (np.asarray(sample.handles.index) < SIZE).all()
    # It can be drawn as soon as the last member is there.
    state, _ = add_members(buffer, oracle, state, [2], [1e30], 0)
    sample = check_groups(buffer, oracle, state, get_key(), 3)
    assert (np.asarray(sample.handles.index) >= SIZE).all()


@pytest.mark.parametrize("kind", GROUP_OPTIONS)
def test_names_that_come_again_open_new_groups(get_key, kind):
    buffer, oracle, state = group_pair(kind)
    least, greatest = -(1 << 31), (1 << 31) - 1
    for names in ([0] * 7, [0, -1, greatest, -1, -1], [least, -1, 0], [greatest, least, 0]):
        state, _ = add_members(buffer, oracle, state, names, np.arange(1, len(names) + 1), 0)
        check_groups(buffer, oracle, state, get_key(), 1)


@pytest.mark.parametrize("kind", GROUP_OPTIONS)
@pytest.mark.parametrize(
    "names",
    [
        list(range(13)),
        [0, 0, 0, 1, 1, 2, 2, 2, 1, 3, 3, 4, 4],
        [7, 9, 0, 9, 7, 0, 0, 1, 2, 3, 9, 9, 9],
        [5] * 13,
    ],
)
def test_more_groups_in_one_add_than_there_is_room(get_key, kind, names):
    buffer, oracle, state = group_pair(kind)
    state, _ = add_members(buffer, oracle, state, [7, 7, 7, 9], [1, 1, 1, 5], 0)
    state, named = add_members(buffer, oracle, state, names, np.linspace(1, 9, 13), 1)
    check_groups(buffer, oracle, state, get_key(), 2)
    # Handles of rows that did not stay are stale.
    state = buffer.update(state, handles_of(named), np.full(13, 2.0, np.float32))
    oracle.update(named, np.full(13, 2.0))
    assert int(state.stale_updates) == oracle.stale
    check_groups(buffer, oracle, state, get_key(), 2)


def test_a_group_goes_as_a_whole():
    buffer, oracle, state = group_pair("mean, oldest")
    state, old = add_members(buffer, oracle, state, [1, 1, 1], [1, 1, 1], 0)
    state, _ = add_members(buffer, oracle, state, np.repeat([2, 3, 4], 3), np.ones(9), 0)
    state = buffer.mark_drawn(state, handles_of(old[:1]))
    oracle.mark(old[:1])
    # One row of a new group, and all three of the oldest are gone.
    state, _ = add_members(buffer, oracle, state, [5], [1], 0)
    np.testing.assert_array_equal(state.generation[:4], [12, -1, -1, 3])
    np.testing.assert_array_equal(np.isneginf(state.log_base)[:4], [0, 1, 1, 0])
    assert (int(state.size), int(state.evicted), int(state.evicted_undrawn)) == (10, 3, 2)
    state = buffer.update(state, handles_of(old * 4 + old[:1]), np.full(13, 9.0, np.float32))
    assert int(state.stale_updates) == 13
    np.testing.assert_allclose(buffer.probabilities(state), [0, 1 / 3, 1 / 3, 1 / 3], rtol=1e-6)


def test_the_worst_complete_group_goes_before_any_that_is_under_way():
    buffer, oracle, state = group_pair("max, lowest")
    # Complete groups of 2, 3 and 4, and one under way whose member has 1.
    names, bases = [1, 1, 1, 2, 3, 3, 3, 4, 4, 4], [2, 2, 2, 1, 3, 3, 3, 4, 4, 4]
    state, _ = add_members(buffer, oracle, state, names, bases, 0)
    state, named = add_members(buffer, oracle, state, [5], [5], 0)
    assert named == [(0, 10)]
    # The members of the one under way still find it.
    state, named = add_members(buffer, oracle, state, [2, 2], [1, 1], 1)
    assert [slot for slot, _ in named] == [4, 5]
    # So it is complete, and by now the worst; then 3 is, then 4.
    state, named = add_members(buffer, oracle, state, [6, 7, 8], [9, 9, 9], 2)
    assert [slot for slot, _ in named] == [3, 6, 9]
    # All are under way now, and all alike.
    state, named = add_members(buffer, oracle, state, [9], [9], 2)
    assert [slot for slot, _ in named] == [0]


def test_a_group_that_was_given_up_goes_first():
    buffer, oracle, state = group_pair("max, lowest")
    # One member of a group, and no more of it.
    state, _ = add_members(buffer, oracle, state, [100], [1e6], 0)
    for name in range(3):
        state, _ = add_members(buffer, oracle, state, [name] * 3, [1 + name] * 3, 0)
    # Three were opened since, all there is room for but one; the fourth takes the worst one's.
    state, named = add_members(buffer, oracle, state, [3] * 3, [9] * 3, 0)
    assert [slot for slot, _ in named] == [3, 4, 5]
    # With it four were, so it is given up, whatever its priority.
    state, named = add_members(buffer, oracle, state, [4] * 3, [9] * 3, 0)
    assert [slot for slot, _ in named] == [0, 1, 2]
    assert len(oracle.complete()) == GROUPS


@pytest.mark.parametrize("kind", GROUP_OPTIONS)
def test_the_room_does_not_fill_with_what_is_left_of_groups(kind):
    # One group opens an add, and one member of each of the three under way arrives.
    buffer, oracle, state = group_pair(kind)
    rng = np.random.default_rng(0)
    for clock in range(60):
        names = np.array([clock, clock - 1, clock - 2])
        state, _ = add_members(buffer, oracle, state, names, np.exp(rng.normal(0, 1, 3)), clock)
        if clock > 2 * GROUPS:
            assert len(oracle.complete()) >= GROUPS - 2


def test_groups_hold_their_data_and_priorities_by_slot():
    buffer, oracle, state = group_pair("max, lowest")
    rng = np.random.default_rng(11)
    for clock in range(20):
        names = rng.integers(0, 6, 13)
        state, named = add_members(buffer, oracle, state, names, rng.exponential(1, 13), clock)
        bases = rng.exponential(1, 13).astype(np.float32)
        state = buffer.update(state, handles_of(named), bases)
        oracle.update(named, bases)
        names = rng.integers(0, 6, 4)
        state, _ = add_members(buffer, oracle, state, names, rng.exponential(1, 4), clock)
    slots = np.array([row.slot for row in oracle.rows], np.int32)
    np.testing.assert_array_equal(read_rows(state, slots), [row.value for row in oracle.rows])
    np.testing.assert_allclose(
        np.exp(state.log_base)[slots], [row.base for row in oracle.rows], rtol=1e-5
    )
    assert int(np.sum(state.generation >= 0)) == len(oracle.rows)
