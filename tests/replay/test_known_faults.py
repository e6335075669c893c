"""Faults that replay buffers have had in public, one short test each; other files hold more."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import replay
from freshper_jax.replay.draw import UNITS
from freshper_jax.replay.tree import build_tree, draw_leaves, plant
from freshper_jax.training import checkpoint

CAPACITY, ROWS, LONGEST = 6, 3, 4
PACKED = {
    "storage": "packed",
    "token_capacity": 14,
    "ragged": {"tokens": True, "value": False},
}
KINDS = {
    "prioritized": {"insertion": "max", "eviction": "lowest_priority"},
    "uniform, packed": {"strategy": "uniform", **PACKED},
    "without replacement": {"strategy": "prioritized_without_replacement"},
    "newest": {"strategy": "newest", "eviction": "lowest_priority"},
    "oldest, packed": {"strategy": "oldest", **PACKED},
    "groups": {"strategy": "groups", "group_size": 2, "eviction": "lowest_priority"},
}
EXAMPLE = {"tokens": np.zeros((LONGEST,), np.int32), "value": np.zeros((), np.float32)}


@functools.cache
def make(kind):
    return replay.make_buffer(capacity=CAPACITY, tau=9.0, **KINDS[kind])


def arguments(kind, number):
    """What `add` takes in one turn; groups of two arrive over two turns."""
    rng = np.random.default_rng(number)
    batch = {
        "tokens": rng.integers(1, 99, (ROWS, LONGEST)).astype(np.int32),
        "value": rng.normal(size=ROWS).astype(np.float32),
    }
    extra = {}
    if "packed" in kind:
        extra = {"lengths": rng.integers(0, LONGEST + 1, ROWS).astype(np.int32)}
    if kind == "groups":
        extra = {"groups": (np.arange(ROWS) + number // 2 * ROWS).astype(np.int32)}
    bases = rng.exponential(1, ROWS).astype(np.float32)
    return (batch, bases, jnp.int32(3 * number)), extra


def turn(buffer, state, key, positional, extra):
    state, handles = buffer.add(state, *positional, **extra)
    clock = positional[-1]
    sample = buffer.sample(state, key, 4, clock)
    state = buffer.mark_drawn(state, sample.handles)
    return buffer.update(state, sample.handles, sample.probabilities + 0.2), (handles, sample)


def run(kind, state, numbers):
    results = []
    for number in numbers:
        key = jax.random.key(number)
        state, result = turn(make(kind), state, key, *arguments(kind, number))
        results.append(result)
    return state, results


def assert_same(actual, expected):
    chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


# What is saved: nothing may be lost, least of all half of a group, or a maximum.


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_buffer_goes_on_bit_for_bit(tmp_path, kind):
    buffer = make(kind)
    state, _ = run(kind, buffer.init(EXAMPLE), range(3))
    checkpoint.save(tmp_path, 3, {"replay": state})
    # Nothing but the buffer's options and the example is needed to read it.
    abstract = jax.eval_shape(buffer.init, EXAMPLE)
    restored = checkpoint.restore(tmp_path, {"replay": abstract}).items["replay"]
    assert_same(restored, state)
    assert_same(run(kind, restored, range(3, 7)), run(kind, state, range(3, 7)))


def test_a_group_saved_half_way_is_completed_after_the_restart(tmp_path):
    buffer = make("groups")
    (batch, _, clock), _ = arguments("groups", 0)
    one, names = np.ones(ROWS, np.float32), np.int32([7, 8, 8])
    state, _ = buffer.add(buffer.init(EXAMPLE), batch, one, clock, groups=names)
    np.testing.assert_allclose(buffer.probabilities(state), [0, 1, 0], rtol=1e-6)
    checkpoint.save(tmp_path, 0, {"replay": state})
    state = checkpoint.restore(tmp_path, {"replay": state}).items["replay"]
    state, handles = buffer.add(state, batch, one, clock, groups=np.int32([7, 9, 9]))
    np.testing.assert_array_equal(handles.index, [1, 4, 5])
    np.testing.assert_allclose(buffer.probabilities(state), np.ones(3) / 3, rtol=1e-6)


def test_the_largest_priority_outlives_a_restart(tmp_path):
    # A maximum kept beside the state comes back as 1.
    buffer = make("prioritized")
    (batch, _, clock), _ = arguments("prioritized", 0)
    state, _ = buffer.add(buffer.init(EXAMPLE), batch, np.float32([7, 1, 1]), clock)
    checkpoint.save(tmp_path, 0, {"replay": state})
    state = checkpoint.restore(tmp_path, {"replay": state}).items["replay"]
    state, _ = buffer.add(state, batch, np.float32([0.1, 0.1, 0.1]), clock)
    np.testing.assert_allclose(np.exp(state.log_base), np.full(6, 7), rtol=1e-6)


# Several buffers at once.


def test_buffers_side_by_side_equal_single_ones():
    # Of groups; other strategies and storages are elsewhere.
    kind = "groups"
    buffer = make(kind)
    stack = functools.partial(jax.tree.map, lambda *leaves: jnp.stack(leaves))
    many = jax.jit(jax.vmap(functools.partial(turn, buffer)))
    states, singles = stack(buffer.init(EXAMPLE), buffer.init(EXAMPLE)), [[], []]
    for number in range(4):
        inputs = [
            (jax.random.key(10 * place + number), *arguments(kind, 10 * place + number))
            for place in range(2)
        ]
        states, results = many(states, *stack(*inputs))
        for place in range(2):
            singles[place].append(jax.tree.map(lambda leaf, place=place: leaf[place], results))
    for place in range(2):
        numbers = range(10 * place, 10 * place + 4)
        state, expected = run(kind, buffer.init(EXAMPLE), numbers)
        own = jax.tree.map(lambda leaf, place=place: leaf[place], states)
        assert_same(
            [handles for handles, _ in singles[place]], [handles for handles, _ in expected]
        )
        chex.assert_trees_all_close((own, singles[place]), (state, expected), rtol=1e-5)


# Drawing too early, too late, at the very end.


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_before_any_add_returns_nothing_and_no_nan(kind):
    buffer = make(kind)
    state = buffer.init(EXAMPLE)
    sample = buffer.sample(state, jax.random.key(0), 4, 5)
    np.testing.assert_array_equal(sample.handles.generation, np.full(4, -1))
    for values in (sample.weights, sample.probabilities, sample.ages, sample.ess):
        assert not np.any(values)
    assert not np.any(buffer.probabilities(state))
    assert not buffer.can_sample(state, 1)
    # And what a careless caller does with it changes nothing but the count.
    state = buffer.mark_drawn(state, sample.handles)
    state = buffer.update(state, sample.handles, np.ones(4, np.float32))
    assert int(state.stale_updates) == 4
    assert int(state.size) == 0
    assert not np.any(buffer.probabilities(state))


def plain(**options):
    return replay.make_buffer(**{"capacity": 4, "alpha": 1.0} | options)


def largest_for_new():
    return plain(insertion="max", tau=10.0)


def filled(buffer, *bases, clock=0):
    """Adds rows one at a time, valued by their numbers; few programs have to be compiled."""
    state = buffer.init(jnp.zeros(()))
    for number, base in enumerate(bases):
        state, _ = buffer.add(state, np.float32([number]), np.float32([base]), clock)
    return state


def handles_of(*slots, generations=None):
    generations = slots if generations is None else generations
    return replay.Handles(jnp.array(slots, jnp.int32), jnp.array(generations, jnp.int32))


def test_a_buffer_of_one_row_returns_it():
    buffer = plain()
    state = filled(buffer, 0.0)
    sample = buffer.sample(state, jax.random.key(0), 8, 4, 1.0)
    np.testing.assert_array_equal(sample.handles.index, np.zeros(8))
    np.testing.assert_array_equal(sample.weights, np.ones(8))
    np.testing.assert_array_equal(sample.probabilities, np.ones(8))


def test_exactly_full_holds_every_row():
    # A position that is back at 0 does not mean empty.
    buffer = plain()
    state = filled(buffer, 1, 2, 3, 4)
    assert int(state.cursor) == 0
    assert int(state.size) == int(buffer.stats(state, 0).size) == 4
    assert bool(buffer.can_sample(state, 4))
    sample = buffer.sample(state, jax.random.key(0), 8, 0)
    assert set(np.asarray(sample.handles.index)) <= {0, 1, 2, 3}
    np.testing.assert_allclose(buffer.probabilities(state), np.arange(1, 5) / 10, rtol=1e-6)


@functools.cache
def forest_of_tenths(leaves):
    @jax.jit
    def build(last):
        masses = jnp.where(jnp.arange(leaves) < leaves - last, jnp.float32(0.1), 0.0)
        births, rate = jnp.zeros(leaves, jnp.int32), jnp.float32(0)
        return plant(
            build_tree(jnp.log(masses), births, rate, alpha=1.0, tau=math.inf), leaves, rate
        )

    return build


@pytest.mark.parametrize("leaves", [3, 17, 4097])
@pytest.mark.parametrize("last", [0, 1, 2])
def test_the_last_position_of_all_is_the_last_row_with_mass(leaves, last):
    # #2230: where the position reaches the total, a search goes past the end.
    forest = forest_of_tenths(leaves)(last)
    spans = jnp.array([1, 1000, UNITS], jnp.int32)
    bits = jnp.full(3, UNITS - 1, jnp.int32)
    drawn = jax.jit(draw_leaves)(forest, spans - 1, spans, (bits, bits))
    np.testing.assert_array_equal(drawn, np.full(3, leaves - last - 1))
    drawn = jax.jit(draw_leaves)(forest, 0 * spans, spans, (0 * bits, 0 * bits))
    np.testing.assert_array_equal(drawn, np.zeros(3))


def test_two_keys_two_draws_one_key_one_draw():
    buffer = plain()
    state = filled(buffer, 1, 1, 1, 1.1)
    draws = [
        np.asarray(buffer.sample(state, jax.random.key(seed), 8, 0).handles.index)
        for seed in (0, 0, 1, 2, 3)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert any((draws[0] != other).any() for other in draws[2:])


def test_a_draw_is_stratified():
    # Of two equal rows each is drawn just half the time, every time.
    buffer = plain()
    state = filled(buffer, 3, 3)
    for seed in range(10):
        index = np.asarray(buffer.sample(state, jax.random.key(seed), 8, 0).handles.index)
        np.testing.assert_array_equal(index, [0] * 4 + [1] * 4)


def test_a_sample_taken_stays_as_it_was_while_the_buffer_changes():
    buffer = plain()
    state = filled(buffer, 1, 2, 3, 4)
    sample = buffer.sample(state, jax.random.key(0), 8, 0)
    copy = jax.tree.map(np.array, sample)
    state = buffer.update(state, handles_of(0, 1, 2, 3), np.float32([9, 9, 9, 9]))
    buffer.add(state, np.float32([7]), np.float32([1]), 1)
    assert_same(sample, jax.tree.map(jnp.asarray, copy))


# Updates of what is not there.


def test_an_update_out_of_range_changes_no_other_row():
    buffer = plain()
    state = filled(buffer, 1, 2, 3, 4)
    far = [100, 4, -1, -4], [-(1 << 31), (1 << 31) - 1, 5, -5]
    for slots in far:
        for generations in ([0, 1, 2, 3], slots, [-1] * 4):
            away = handles_of(*slots, generations=generations)
            state = buffer.update(state, away, np.full(4, 50, np.float32))
            state = buffer.mark_drawn(state, away)
    assert int(state.stale_updates) == 24
    assert not np.any(state.draws)
    np.testing.assert_allclose(buffer.probabilities(state), np.arange(1, 5) / 10, rtol=1e-6)


def test_an_update_that_comes_after_the_row_has_gone_is_dropped():
    buffer = plain()
    state = filled(buffer, 1, 1, 1, 1, 2, 3, 4)
    state = buffer.update(state, handles_of(0, 1, 2, 3), np.float32([100, 100, 100, 5]))
    np.testing.assert_allclose(np.exp(state.log_base), [2, 3, 4, 5], rtol=1e-6)
    assert int(state.stale_updates) == 3


def test_of_duplicates_the_last_wins_whatever_they_are():
    buffer = plain()
    state = filled(buffer, 1, 1, 1, 1)
    state = buffer.update(state, handles_of(2, 0, 2, 2), np.float32([9, np.nan, np.inf, 8]))
    np.testing.assert_allclose(np.exp(state.log_base), [1e-6, 1, 8, 1], rtol=1e-6)
    state = buffer.update(state, handles_of(0, 0, 0, 2), np.float32([9, 8, 7, np.nan]))
    np.testing.assert_allclose(np.exp(state.log_base), [7, 1, 1e-6, 1], rtol=1e-6)
    np.testing.assert_array_equal(state.generation, [0, 1, 2, 3])
    state = buffer.mark_drawn(state, handles_of(2, 0, 2, 2))
    np.testing.assert_array_equal(state.draws, [1, 0, 3, 0])


# The largest priority, for new rows.


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.int32])
def test_priorities_of_any_dtype_keep_their_values(dtype):
    # #58: a maximum kept in the dtype of something else turned 1.9 into 1.
    buffer = largest_for_new()
    state = filled(buffer, 1.9)
    np.testing.assert_allclose(np.exp(state.log_base[0]), 1.9, rtol=1e-6)
    three = jnp.asarray([3], jnp.float32).astype(dtype)
    state, _ = buffer.add(state, np.float32([1]), three, 0)
    np.testing.assert_allclose(np.exp(state.log_base)[:2], [1.9, 1.9], rtol=1e-6)


def test_new_rows_enter_lower_once_the_largest_is_gone():
    # #2215: a maximum of all time, begun at 1, leaves later rows out of proportion.
    buffer = largest_for_new()
    state = filled(buffer, 0.5, 0.5, 0.5, 0.5)
    state = buffer.update(state, handles_of(0, 1, 2, 3), np.float32([1e3, 1e-3, 2e-3, 1e-3]))
    # This one still meets the row of 1e3, and takes its place.
    state, _ = buffer.add(state, np.float32([4]), np.float32([0]), 0)
    np.testing.assert_allclose(np.exp(state.log_base[0]), 1e3, rtol=1e-5)
    lower = handles_of(0, 0, 0, 0, generations=[4] * 4)
    state = buffer.update(state, lower, np.full(4, 5e-4, np.float32))
    state, _ = buffer.add(state, np.float32([5]), np.float32([0]), 0)
    np.testing.assert_allclose(np.exp(state.log_base[1]), 2e-3, rtol=1e-5)


def test_a_new_row_keeps_its_priority_whatever_is_called_in_between():
    # A refresh of ages put another priority in its place before the first draw.
    buffer = largest_for_new()
    state = filled(buffer, 5, 1)
    for clock in range(3):
        sample = buffer.sample(state, jax.random.key(clock), 8, clock)
        state = buffer.mark_drawn(state, sample.handles)
        buffer.stats(state, clock)
    np.testing.assert_allclose(np.exp(state.log_base)[:2], [5, 5], rtol=1e-6)
    np.testing.assert_array_equal(state.birth[:2], [0, 0])


def test_the_exponent_is_applied_once():
    # #3925: a new row's priority that already had the exponent got it again.
    buffer = plain(alpha=0.5, insertion="max")
    state = filled(buffer, 16, 16, 16)
    state = buffer.update(state, handles_of(0, 1, 1, 1), np.float32([16, 1, 1, 1]))
    state, _ = buffer.add(state, np.float32([3]), np.float32([0]), 0)
    np.testing.assert_allclose(buffer.probabilities(state), np.array([4, 1, 4, 4]) / 13, rtol=1e-6)


# Numbers.


def aged():
    return plain(tau=10.0)


def test_an_old_row_of_small_priority_has_no_floor_but_its_own():
    # A floor of 1e-8 before the exponent gives this one 163 times its share.
    state = filled(aged(), 1e-3)
    state, _ = aged().add(state, np.float32([1]), np.float32([1]), 200)
    ratio = (1e-3 * np.exp(-20)) ** 0.6
    chances = np.asarray(aged().probabilities(state, alpha=0.6), np.float64)
    assert chances[0] / chances[1] == pytest.approx(ratio, rel=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e12, 1e30])
def test_all_priorities_times_a_number_change_nothing(scale):
    # #43: an absolute threshold of 1e-4 for a sum of 1e6.
    buffer = plain()
    state = filled(buffer, *(np.array([1, 1, 2, 4]) * scale))
    np.testing.assert_allclose(buffer.probabilities(state), np.array([1, 1, 2, 4]) / 8, rtol=5e-5)
    index = buffer.sample(state, jax.random.key(3), 8, 0).handles.index
    counts = np.bincount(np.asarray(index), minlength=4)
    assert np.abs(counts - [1, 1, 2, 4]).max() <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0])
def test_one_bad_priority_spoils_neither_neighbours_nor_itself_for_good(bad):
    buffer = plain(fallback_priority=0.5)
    state = filled(buffer, 1, bad, 2, 0.5)
    chances = np.array([2, 1, 4, 1]) / 8
    np.testing.assert_allclose(buffer.probabilities(state), chances, rtol=1e-6)
    state = buffer.update(state, handles_of(0, 1, 2, 3), np.float32([1, 3, bad, 0.5]))
    chances = np.array([2, 6, 1, 1]) / 10
    np.testing.assert_allclose(buffer.probabilities(state), chances, rtol=1e-6)
    sample = buffer.sample(state, jax.random.key(0), 8, 0, 1.0)
    assert np.isfinite(sample.weights).all()
    state = buffer.update(state, handles_of(0, 1, 2, 3), np.ones(4, np.float32))
    np.testing.assert_allclose(buffer.probabilities(state), np.ones(4) / 4, rtol=1e-6)


@pytest.mark.parametrize("bases", [[0, 0, 0, 0], [0, 1, 5, 5], [np.nan, 0, 1e38, 1]])
def test_an_exponent_of_zero_is_uniform_over_any_priorities(bases):
    buffer = plain(alpha=0.0, tau=2.0)
    state = filled(buffer, *bases)
    sample = buffer.sample(state, jax.random.key(0), 8, 1000, 1.0)
    np.testing.assert_array_equal(np.bincount(sample.handles.index), [2, 2, 2, 2])
    np.testing.assert_allclose(sample.weights, np.ones(8), rtol=1e-6)


# Weights.


@pytest.mark.parametrize("normaliser", ["batch_max", "buffer_max"])
def test_weights_of_a_buffer_half_full_know_nothing_of_empty_slots(normaliser):
    # #183: the smallest of all leaves is 0 until the buffer is full.
    buffer = plain(weight_normaliser=normaliser)
    state = filled(buffer, 1, 3)
    sample = buffer.sample(state, jax.random.key(0), 8, 0, 1.0)
    index = np.asarray(sample.handles.index)
    np.testing.assert_array_equal(np.bincount(index), [2, 6])
    np.testing.assert_allclose(sample.weights, np.where(index == 0, 1, 1 / 3), rtol=1e-5)


@pytest.mark.parametrize(("normaliser", "expected"), [("batch_max", 1.0), ("buffer_max", 1e-6)])
def test_each_normaliser_divides_by_what_it_is_called_after(normaliser, expected):
    # #570: the batch's own minimum was taken for that of the memory.
    buffer = plain(weight_normaliser=normaliser)
    state = filled(buffer, 1, 1e6, 1e6, 1e6)
    sample = buffer.sample(state, jax.random.key(0), 8, 0, 1.0)
    assert not (np.asarray(sample.handles.index) == 0).any()
    np.testing.assert_allclose(sample.weights, np.full(8, expected), rtol=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_a_priority_of_zero_gives_no_infinite_weight(beta):
    buffer = plain()
    sample = buffer.sample(filled(buffer, 0, 0, 0), jax.random.key(0), 8, 0, beta)
    np.testing.assert_allclose(sample.weights, np.ones(8), rtol=1e-5)


# Rows over the end, and which of them goes.


def test_priorities_births_and_data_follow_their_rows_over_the_end():
    state = filled(aged(), 1, 1, 1)
    values = np.float32([3, 4, 5])
    state, handles = aged().add(state, values, np.float32([1, 2, 3]), 10)
    np.testing.assert_array_equal(handles.index, [3, 0, 1])
    np.testing.assert_array_equal(state.data, [4, 5, 2, 3])
    np.testing.assert_array_equal(state.birth, [10, 10, 0, 10])
    expected = np.array([2, 3, np.exp(-1), 1])
    np.testing.assert_allclose(aged().probabilities(state), expected / expected.sum(), rtol=1e-5)


def test_several_rows_that_go_at_once_are_the_right_ones():
    # #60065: positions in a list were taken for names once the first of them had gone.
    buffer = plain(eviction="lowest_priority")
    state = filled(buffer, 5, 1, 4, 2)
    nine = np.full(2, 9, np.float32)
    state, handles = buffer.add(state, np.float32([10, 11]), nine, 1)
    np.testing.assert_array_equal(handles.index, [1, 3])
    np.testing.assert_array_equal(state.data, [0, 10, 2, 11])
    # And once more, now that names and positions differ.
    state, handles = buffer.add(state, np.float32([20, 21]), nine, 2)
    np.testing.assert_array_equal(handles.index, [2, 0])
    np.testing.assert_array_equal(state.data, [21, 10, 20, 11])
    np.testing.assert_array_equal(handles.generation, [6, 7])


def test_rows_of_any_length_come_back_whole_or_not_at_all():
    # #51: windows that run over the write head.
    kind = "uniform, packed"
    state = make(kind).init(EXAMPLE)
    lengths = np.random.default_rng(0).integers(1, LONGEST + 1, (20, ROWS)).astype(np.int32)
    for turn_number in range(20):
        values = ROWS * turn_number + np.arange(ROWS) + 1
        batch = {
            "tokens": np.repeat(values[:, None], LONGEST, axis=1).astype(np.int32),
            "value": values.astype(np.float32),
        }
        state, _ = make(kind).add(
            state, batch, np.ones(ROWS, np.float32), 0, lengths=lengths[turn_number]
        )
        sample = make(kind).sample(state, jax.random.key(turn_number), 4, 0)
        drawn = np.asarray(sample.handles.generation)
        np.testing.assert_array_equal(sample.data["value"], drawn + 1)
        own = np.arange(LONGEST) < lengths.reshape(-1)[drawn][:, None]
        np.testing.assert_array_equal(sample.data["tokens"], np.where(own, drawn[:, None] + 1, 0))


def test_births_at_the_least_clock_behind_an_empty_slot():
    buffer = replay.make_buffer(
        capacity=8, tau=7.0, alpha=1.0, storage="packed", token_capacity=9, ragged=True
    )
    state = buffer.init(jnp.zeros((4,)))
    for _ in range(3):
        rows, bases = np.zeros((2, 4), np.float32), np.float32([1, 3])
        state, _ = buffer.add(state, rows, bases, -(1 << 31), lengths=np.int32([3, 2]))
    assert int(state.generation[0]) == -1
    chances = np.asarray(buffer.probabilities(state), np.float64)
    assert chances.sum() == pytest.approx(1, abs=1e-5)


def test_the_largest_tau_allowed_is_allowed_everywhere():
    buffer = replay.make_buffer(capacity=3, tau=1e30)
    state = buffer.init(jnp.zeros(()))
    assert not np.any(buffer.probabilities(state))
    assert int(buffer.stats(state, 0).size) == 0


def test_another_alpha_in_a_call_brings_back_the_tau_of_a_buffer_of_alpha_zero(get_key):
    buffer = replay.make_buffer(capacity=2, alpha=0.0, tau=1.0)
    state = buffer.init(jnp.zeros(()))
    for clock in (0, 1):
        state, _ = buffer.add(state, np.zeros(1, np.float32), np.ones(1, np.float32), clock)
    sample = buffer.sample(state, get_key(), 8, 1, alpha=1.0)
    expected = np.exp([-1.0, 0.0]) / np.exp([-1.0, 0.0]).sum()
    slots = np.asarray(sample.handles.index)
    np.testing.assert_allclose(sample.probabilities, expected[slots], rtol=1e-6)
