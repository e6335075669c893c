"""Packed rows give back what a ring written place by place still holds."""

import dataclasses
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshper_jax.replay import packed
from freshper_jax.replay.storage import state_nbytes

CONFIGURATIONS = {
    # C, P, T, B
    "usual": (7, 11, 4, 3),
    "one row fills it": (5, 4, 4, 2),
    "one place more": (5, 5, 4, 3),
    "single tokens": (6, 4, 1, 3),
    "single token in a single place": (3, 1, 1, 2),
    "batches beyond the tokens": (8, 6, 4, 8),
    "room for every row": (4, 40, 5, 3),
    "slots run out first": (2, 23, 4, 2),
}
RAGGED = {"tokens": True, "nested": [True, False], "flags": True, "seed": False, "none": None}


def example_of(longest):
    return {
        "tokens": jax.ShapeDtypeStruct((longest,), jnp.int32),
        "nested": [
            (np.zeros((longest,)), jnp.zeros((longest, 2, 1), jnp.bfloat16)),
            {
                "reward": 0.0,
                "done": False,
                "image": np.zeros((2, 3), np.uint8),
                "state": jnp.zeros((3,), jnp.bfloat16),
            },
        ],
        "flags": np.zeros((longest,), bool),
        "seed": jnp.zeros((2,), jnp.uint32),
        "none": None,
    }


def batch_of(rng, rows, longest):
    """Random bits in every leaf, so NaNs of all kinds too."""

    def bits(dtype, *shape):
        dtype = np.dtype(dtype)
        whole = rng.bytes(rows * int(np.prod(shape)) * dtype.itemsize)
        return np.frombuffer(whole, dtype).reshape(rows, *shape)

    return {
        "tokens": bits(np.int32, longest),
        "nested": [
            (bits(np.float32, longest), bits(jnp.bfloat16, longest, 2, 1)),
            {
                "reward": bits(np.float32),
                "done": rng.random(rows) < 0.5,
                "image": bits(np.uint8, 2, 3),
                "state": bits(jnp.bfloat16, 3),
            },
        ],
        "flags": rng.random((rows, longest)) < 0.5,
        "seed": bits(np.uint32, 2),
        "none": None,
    }


def ragged_and_fixed(batch):
    ragged = [batch["tokens"], *batch["nested"][0], batch["flags"]]
    fixed = batch["nested"][1]
    return ragged, [*(fixed[name] for name in sorted(fixed)), batch["seed"]]


def bits_of(array):
    return np.asarray(array).tobytes()


@dataclasses.dataclass
class Row:
    number: int
    slot: int
    start: int
    length: int
    fixed: list


class Ring:
    """Keeps rows in a list, oldest first, and writes places one at a time."""

    def __init__(self, capacity, token_capacity, longest):
        self.token_capacity, self.longest, self.capacity = token_capacity, longest, capacity
        self.places = [None] * (token_capacity + longest)
        self.rows, self.head, self.clipped, self.number = [], 0, 0, 0

    def write(self, batch, lengths):
        """Returns the slots of the batch."""
        slots = []
        ragged, fixed = ragged_and_fixed(batch)
        for place_in_batch, length in enumerate(lengths):
            clipped = min(max(int(length), 0), self.longest)
            self.clipped += clipped != length
            slot = self.number % self.capacity
            self.rows = [row for row in self.rows if row.slot != slot]
            if self.head >= self.token_capacity:
                self.head = 0
            own_fixed = [leaf[place_in_batch] for leaf in fixed]
            row = Row(self.number, slot, self.head, clipped, own_fixed)
            for token in range(clipped):
                values = [leaf[place_in_batch, token] for leaf in ragged]
                self.places[self.head] = (self.number, values)
                self.head += 1
            self.rows.append(row)
            self.number += 1
            slots.append(slot)
            # Oldest first; all that has tokens and goes must have lost some.
            broken = [row.number for row in self.rows if not self.whole(row)]
            while broken and self.rows[0].number <= broken[-1]:
                gone = self.rows.pop(0)
                assert gone.length == 0 or gone.number in broken
        return slots

    def whole(self, row):
        own = self.places[row.start : row.start + row.length]
        return all(place[0] == row.number for place in own)

    def check(self, rows, intact, content):
        expected = np.zeros(self.capacity, bool)
        expected[[row.slot for row in self.rows]] = True
        np.testing.assert_array_equal(intact, expected)
        assert int(packed.tokens_held(rows)) == sum(row.length for row in self.rows)
        assert int(rows.clipped) == self.clipped
        lengths = np.asarray(rows.length)
        ragged, fixed = ragged_and_fixed(jax.tree.map(np.asarray, content))
        for row in self.rows:
            assert int(lengths[row.slot]) == row.length
            assert list(map(bits_of, row.fixed)) == [bits_of(leaf[row.slot]) for leaf in fixed]
            for number, leaf in enumerate(ragged):
                own = self.places[row.start : row.start + row.length]
                read = leaf[row.slot]
                assert bits_of(read[: row.length]) == b"".join(
                    bits_of(values[number]) for _, values in own
                )
                assert not np.any(read[row.length :])


def make(capacity, token_capacity, longest):
    return packed.init_packed(capacity, token_capacity, example_of(longest), RAGGED)


write = jax.jit(packed.write_rows, donate_argnums=0)
read = jax.jit(packed.read_rows)


def lengths_strategy(rows, longest):
    one = st.one_of(st.integers(0, longest), st.sampled_from([0, longest, -1, longest + 3]))
    return st.one_of(
        st.lists(one, min_size=rows, max_size=rows),
        st.sampled_from([[0] * rows, [longest] * rows, [1] * rows]),
    )


def from_lap(rows, lap):
    """Sets the count of laps as if so many had passed."""
    return dataclasses.replace(rows, current_lap=jnp.int32(lap), lap=rows.lap + jnp.int32(lap))


@pytest.mark.parametrize("name", CONFIGURATIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_any_sequence_of_writes(name, data):
    capacity, token_capacity, longest, rows = CONFIGURATIONS[name]
    sizes = st.sampled_from([1, rows])
    calls = data.draw(
        st.lists(sizes.flatmap(lambda size: lengths_strategy(size, longest)), max_size=14)
    )
    # The count of laps passes through both ends of int32.
    lap = data.draw(st.sampled_from([0, (1 << 31) - 2, -2]))
    state = from_lap(make(capacity, token_capacity, longest), lap)
    ring, rng = Ring(capacity, token_capacity, longest), np.random.default_rng(len(calls))
    everything = np.arange(capacity, dtype=np.int32)
    for lengths in calls:
        batch = batch_of(rng, len(lengths), longest)
        slots = ring.write(batch, lengths)
        state, intact = write(state, np.int32(slots), batch, np.int32(lengths))
        ring.check(state, intact, read(state, everything))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_newest_rows_with_as_many_tokens_as_the_ring_are_there(name):
    capacity, token_capacity, longest, rows = CONFIGURATIONS[name]
    state, rng = make(capacity, token_capacity, longest), np.random.default_rng(1)
    written = []
    for _ in range(60):
        slots = (len(written) + np.arange(rows, dtype=np.int32)) % capacity
        lengths = rng.integers(0, longest + 1, rows, dtype=np.int32)
        state, intact = write(state, slots, batch_of(rng, rows, longest), lengths)
        written += zip(slots.tolist(), lengths.tolist(), strict=True)
        newest = written[-capacity:][::-1]
        sums = np.cumsum([length for _, length in newest])
        for (slot, length), tokens in zip(newest, sums, strict=True):
            if tokens <= token_capacity:
                assert intact[slot]
            if length and tokens >= token_capacity + longest:
                assert not intact[slot]


def test_an_empty_row_is_lost_with_the_next_row_that_has_tokens():
    state = packed.init_packed(8, 4, np.zeros(2, np.int32), True)
    for slot, (length, expected) in enumerate(
        [
            (2, [0]),
            (0, [0, 1]),
            (2, [0, 1, 2]),
            (0, [0, 1, 2, 3]),  # Starts the second lap, and takes nothing from the first.
            (2, [1, 2, 3, 4]),
            (1, [3, 4, 5]),
        ]
    ):
        batch = np.full((1, 2), slot, np.int32)
        state, intact = write(state, np.int32([slot]), batch, np.int32([length]))
        np.testing.assert_array_equal(np.flatnonzero(intact), expected)


def test_lengths_out_of_range_are_clipped_and_counted():
    state = packed.init_packed(4, 9, np.zeros(3, np.int32), True)
    batch = np.arange(1, 13, dtype=np.int32).reshape(4, 3)
    least, greatest = -(1 << 31), (1 << 31) - 1
    state, intact = write(state, np.arange(4), batch, np.int32([least, greatest, 4, 3]))
    assert int(state.clipped) == 3
    np.testing.assert_array_equal(packed.lengths_of(state, jnp.arange(4)), [0, 3, 3, 3])
    np.testing.assert_array_equal(read(state, np.arange(4)), [[0] * 3, *batch[1:]])
    assert intact.all()


def test_nothing_is_intact_at_first_and_reads_as_zero():
    state = make(7, 11, 4)
    assert not packed.intact_rows(state).any()
    assert int(packed.tokens_held(state)) == 0
    content = read(state, np.arange(7, dtype=np.int32))
    assert not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(content))


def test_rows_come_back_in_the_structure_of_the_example():
    example = example_of(4)
    content = jax.eval_shape(packed.read_rows, make(7, 11, 4), jnp.zeros((2,), jnp.int32))
    assert jax.tree.structure(content) == jax.tree.structure(example)
    expected = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, batch_of(np.random, 2, 4)))
    chex.assert_trees_all_equal_shapes_and_dtypes(content, expected)


def test_a_typed_key_can_be_stored():
    keys = jax.random.split(jax.random.key(5), (2, 3))
    example = {"ragged": keys[0], "fixed": keys[0, 0]}
    state = packed.init_packed(4, 9, example, {"ragged": True, "fixed": False})
    batch = {"ragged": keys, "fixed": keys[:, 0]}
    packed.check_batch(state, batch, np.int32([3, 2]))
    state, _ = write(state, np.int32([0, 1]), batch, np.int32([3, 2]))
    content = jax.tree.map(jax.random.key_data, read(state, np.int32([1, 0])))
    expected = jax.tree.map(lambda leaf: np.array(jax.random.key_data(leaf))[::-1], batch)
    expected["ragged"][0, 2] = 0
    jax.tree.map(np.testing.assert_array_equal, content, expected)


CAPACITY, TOKENS, LONGEST, ROWS, TURNS = 7, 11, 4, 3, 6


def turns_of(seed):
    """Stacked arguments of several writes."""
    rng = np.random.default_rng(seed)
    slots = np.arange(TURNS * ROWS, dtype=np.int32).reshape(TURNS, ROWS) % CAPACITY
    batches = [batch_of(rng, ROWS, LONGEST) for _ in range(TURNS)]
    batches = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    # A scan on a CPU changes the bits of a bfloat16 NaN before they come here.
    batches = jax.tree.map(
        lambda leaf: np.nan_to_num(leaf) if leaf.dtype == jnp.bfloat16 else leaf, batches
    )
    return slots, batches, rng.integers(-1, LONGEST + 2, (TURNS, ROWS), dtype=np.int32)


def run(turns, step=write):
    state, outcomes = make(CAPACITY, TOKENS, LONGEST), []
    for turn in range(TURNS):
        state, intact = step(state, *jax.tree.map(lambda leaf, turn=turn: leaf[turn], turns))
        content = packed.read_rows(state, jnp.arange(CAPACITY, dtype=jnp.int32))
        outcomes.append((intact, content))
    return state, jax.tree.map(lambda *leaves: np.stack(leaves), *outcomes)


def assert_same(actual, expected):
    """Compares bits, as NaN is not equal to itself."""

    def compare(one, other):
        one, other = (np.frombuffer(bits_of(leaf), np.uint8) for leaf in (one, other))
        np.testing.assert_array_equal(one, other)

    chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
    jax.tree.map(compare, actual, expected)


def test_without_jit_equals_jit():
    assert_same(run(turns_of(0), packed.write_rows), run(turns_of(0)))


def test_in_a_scan_equals_a_loop():
    def step(state, turn):
        state, intact = packed.write_rows(state, *turn)
        return state, (intact, packed.read_rows(state, jnp.arange(CAPACITY, dtype=jnp.int32)))

    scan = jax.jit(lambda state, turns: jax.lax.scan(step, state, turns))
    assert_same(scan(make(CAPACITY, TOKENS, LONGEST), turns_of(1)), run(turns_of(1)))


def test_vmap_over_three_states_equals_single_runs():
    singles = [run(turns_of(seed)) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *map(turns_of, range(3)))
    states = jax.vmap(lambda _: make(CAPACITY, TOKENS, LONGEST))(jnp.arange(3))
    write_all = jax.jit(jax.vmap(packed.write_rows))
    read_all = jax.jit(jax.vmap(packed.read_rows, in_axes=(0, None)))
    for turn in range(TURNS):
        arguments = jax.tree.map(lambda leaf, turn=turn: leaf[:, turn], stacked)
        states, intact = write_all(states, *arguments)
        content = read_all(states, jnp.arange(CAPACITY, dtype=jnp.int32))
        for seed, (_, outcomes) in enumerate(singles):
            actual = jax.tree.map(lambda leaf, seed=seed: leaf[seed], (intact, content))
            assert_same(actual, jax.tree.map(lambda leaf, turn=turn: leaf[turn], outcomes))
    for seed, (state, _) in enumerate(singles):
        assert_same(jax.tree.map(lambda leaf, seed=seed: leaf[seed], states), state)


def test_one_trace_per_shape():
    traced_write = jax.jit(chex.assert_max_traces(n=1)(packed.write_rows))
    traced_read = jax.jit(chex.assert_max_traces(n=1)(packed.read_rows))
    state, rng = make(CAPACITY, TOKENS, LONGEST), np.random.default_rng(0)
    for first in range(3):
        slots = np.int32([first, first + 1])
        state, _ = traced_write(state, slots, batch_of(rng, 2, LONGEST), slots)
        traced_read(state, slots)


def test_a_donated_state_is_not_copied():
    # The smallest leaf with a row or token axis is one byte wide, so any copy is 16 KiB.
    state = make(1 << 14, 1 << 14, LONGEST)
    batch = batch_of(np.random.default_rng(0), ROWS, LONGEST)
    slots = np.arange(ROWS, dtype=np.int32)
    compiled = write.lower(state, slots, batch, slots).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == state_nbytes(state)
    assert memory.temp_size_in_bytes < 16 * 1024
    write(state, slots, batch, slots)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_a_state_can_be_flattened_pickled_and_planned():
    state, _ = run(turns_of(0))
    leaves, structure = jax.tree.flatten(state)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    restored = jax.tree.unflatten(structure, [jnp.asarray(np.asarray(leaf)) for leaf in leaves])
    assert_same(restored, state)
    assert_same(pickle.loads(pickle.dumps(state)), state)
    planned = jax.eval_shape(lambda: make(CAPACITY, TOKENS, LONGEST))
    assert state_nbytes(planned) == state_nbytes(state)


def test_bytes_follow_the_tokens():
    rows, longest = 1000, 512
    example = {
        "tokens": np.zeros(longest, np.int32),
        "log_probs": np.zeros(longest, np.float32),
        "mask": np.zeros(longest, bool),
    }
    state = jax.eval_shape(lambda: packed.init_packed(rows, rows * longest // 3, example, True))
    dense = rows * longest * (4 + 4 + 1)
    assert state_nbytes(state) <= 0.35 * dense


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 0}, "capacity must be an integer of at least 1, got 0"),
        ({"capacity": 2.5}, "capacity must be an integer .* got 2.5"),
        ({"token_capacity": True}, "token_capacity must be an integer .* got True"),
        ({"token_capacity": 3}, "token_capacity must be at least 4, .* got 3"),
        ({"token_capacity": (1 << 31) - 4}, r"token_capacity must be below 2\^31 - 4"),
        ({"ragged": {"tokens": 1, "score": False}}, r"ragged\['tokens'\] must be a bool, got 1"),
        ({"ragged": {"tokens": True}}, r"ragged must be a prefix of the example, .*'score'.*, got"),
        ({"ragged": {"tokens": True, "score": None}}, "ragged must be a prefix of the example"),
        ({"ragged": False}, "ragged must be true for at least one leaf"),
        ({"example": {}, "ragged": True}, "ragged must be true for at least one leaf"),
        ({"ragged": True}, r"example\['score'\] is ragged and must have shape .* got \(\)"),
        (
            {"example": {"tokens": np.zeros((0, 3)), "score": 0.0}},
            r"example\['tokens'\] is ragged .* got \(0, 3\)",
        ),
        (
            {"example": {"tokens": np.zeros(4), "score": np.zeros(5)}, "ragged": True},
            r"example\['tokens'\] has shape \(4,\), expected .* 5, as example\['score'\]",
        ),
    ],
)
def test_arguments_of_init(changes, message):
    usual = {
        "capacity": 3,
        "token_capacity": 9,
        "example": {"tokens": np.zeros(4, np.int32), "score": 0.0},
        "ragged": {"tokens": True, "score": False},
    }
    with pytest.raises(ValueError, match=message):
        packed.init_packed(**usual | changes)


GOOD = {"tokens": np.zeros((2, 4), np.int32), "score": np.zeros(2, np.float32)}


@pytest.mark.parametrize(
    ("batch", "lengths", "message"),
    [
        (GOOD, np.int32(3), r"lengths must have shape \[B\] .* got \(\)"),
        (GOOD, np.zeros(0, np.int32), r"lengths .* B >= 1"),
        (GOOD, np.zeros(2, np.float32), "lengths .* int32, got .*float32"),
        ({"tokens": GOOD["tokens"]}, np.zeros(2, np.int32), "batch has the leaves .*'score'"),
        (GOOD, np.zeros(3, np.int32), r"batch\['score'\].*\(2,\).*\(3,\).*leading axis of lengths"),
        (
            GOOD | {"tokens": np.zeros((2, 5), np.int32)},
            np.zeros(2, np.int32),
            r"batch\['tokens'\].*\(2, 5\).*\(2, 4\)",
        ),
        (
            GOOD | {"tokens": np.zeros((2, 4), np.float32)},
            np.zeros(2, np.int32),
            r"batch\['tokens'\].*float32.*int32",
        ),
        (GOOD | {"score": np.zeros((2, 1), np.float32)}, np.zeros(2, np.int32), r"\['score'\]"),
    ],
)
def test_batches_that_do_not_fit_the_example(batch, lengths, message):
    example = {"tokens": np.zeros(4, np.int32), "score": 0.0}
    state = packed.init_packed(3, 9, example, {"tokens": True, "score": False})
    packed.check_batch(state, GOOD, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=message):
        packed.check_batch(state, batch, lengths)


def test_more_rows_than_slots():
    state = packed.init_packed(3, 9, np.zeros(4, np.int32), True)
    with pytest.raises(ValueError, match="batch must have at most 3 rows, one a slot, got 4"):
        packed.write_rows(state, np.arange(4), np.zeros((4, 4), np.int32), np.zeros(4, np.int32))


def test_after_many_laps():
    capacity, token_capacity, longest, rows = 40, 300, 16, 25
    rng, ring = np.random.default_rng(7), Ring(capacity, token_capacity, longest)
    state = make(capacity, token_capacity, longest)
    for _ in range(120):
        batch, lengths = batch_of(rng, rows, longest), rng.integers(0, longest + 1, rows)
        slots = ring.write(batch, lengths)
        state, intact = write(state, np.int32(slots), batch, np.int32(lengths))
    assert int(state.current_lap) > 50
    ring.check(state, intact, read(state, np.arange(capacity, dtype=np.int32)))
