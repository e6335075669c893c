"""Random sequences of calls give what a plain float64 buffer gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshper_jax import replay
from tests.replay.oracle import Oracle, pairs

ALPHA, BETA, TAU, BATCH, UPDATES = 0.6, 0.4, 7.0, 6, 4
PRIORITIES = st.sampled_from(
    [0.0, 1e-38, 1e-6, 0.3, 1.0, 2.5, 1e3, 1e38, np.nan, np.inf, -np.inf, -1.0]
)
ADD = st.tuples(
    st.just("add"),
    st.sampled_from([1, 2, 7]).flatmap(lambda n: st.lists(PRIORITIES, min_size=n, max_size=n)),
)
# A handle by its age in the order of insertion, or one that never existed.
HANDLE = st.one_of(st.integers(0, 25), st.sampled_from(["below", "above", "none"]))
UPDATE = st.tuples(
    st.just("update"),
    st.lists(st.tuples(HANDLE, PRIORITIES), min_size=UPDATES, max_size=UPDATES),
)
REBIRTH = st.tuples(
    st.just("rebirth"),
    st.lists(st.tuples(HANDLE, PRIORITIES), min_size=UPDATES, max_size=UPDATES),
)
SAMPLE = st.tuples(st.just("sample"), st.integers(0, 1000))
PASS_TIME = st.tuples(st.just("wait"), st.integers(0, 40))
CALLS = st.lists(st.one_of(ADD, ADD, UPDATE, REBIRTH, SAMPLE, SAMPLE, PASS_TIME), max_size=14)


@functools.cache
def make(capacity, insertion):
    return replay.make_buffer(
        capacity=capacity, alpha=ALPHA, beta=BETA, tau=TAU, insertion=insertion
    )


def resolve(reference, given_out, capacity):
    if reference == "below":
        return (-1, 0)
    if reference == "above":
        return (capacity, 0)
    if reference == "none" or not given_out:
        return (0, -1)
    return given_out[-1 - reference % len(given_out)]


def check_state(state, oracle):
    assert int(state.size) == len(oracle.rows)
    assert int(state.evicted) == oracle.evicted
    assert int(state.evicted_undrawn) == oracle.evicted_undrawn
    assert int(state.stale_updates) == oracle.stale
    assert int(state.replaced) == oracle.replaced
    generations = np.full(oracle.capacity, -1)
    for row in oracle.rows:
        generations[row.slot] = row.generation
        assert float(state.data[row.slot]) == row.value
        assert int(state.birth[row.slot]) == row.birth
        assert int(state.draws[row.slot]) == row.draws
        assert float(state.log_base[row.slot]) == pytest.approx(np.log(row.base), abs=1e-5)
    np.testing.assert_array_equal(state.generation, generations)


def check_sample(sample, oracle, clock):
    if not oracle.rows:
        np.testing.assert_array_equal(sample.handles.generation, np.full(BATCH, -1))
        for values in (sample.weights, sample.probabilities, sample.ages):
            np.testing.assert_array_equal(values, np.zeros(BATCH))
        assert float(sample.ess) == 0
        return
    slots = np.asarray(sample.handles.index)
    rows = [oracle.find(handle) for handle in pairs(sample.handles)]
    assert None not in rows
    np.testing.assert_array_equal(sample.data, [row.value for row in rows])
    np.testing.assert_array_equal(sample.ages, [clock - row.birth for row in rows])
    probabilities = oracle.probabilities(ALPHA, TAU, clock)
    np.testing.assert_allclose(sample.probabilities, probabilities[slots], rtol=5e-5)
    weights = oracle.weights(probabilities, slots, BETA, "batch_max")
    np.testing.assert_allclose(sample.weights, weights, rtol=5e-5)
    ess = weights.sum() ** 2 / (weights**2).sum()
    assert float(sample.ess) == pytest.approx(ess, rel=1e-4)


@pytest.mark.parametrize(("capacity", "insertion"), [(3, "base"), (5, "max"), (8, "base")])
@settings(max_examples=40)
@given(calls=CALLS)
def test_any_sequence_of_calls(capacity, insertion, calls):
    buffer, oracle = make(capacity, insertion), Oracle(capacity, insertion)
    state, clock, given_out, key = buffer.init(jnp.zeros(())), 0, [], jax.random.key(0)
    for name, argument in calls:
        if name == "wait":
            clock += argument
        elif name == "add":
            values = np.arange(len(argument), dtype=np.float32) + oracle.added
            state, handles = buffer.add(state, values, np.array(argument, np.float32), clock)
            new = oracle.add(values, argument, clock)
            assert pairs(handles) == new
            given_out += new
        elif name == "sample":
            sample = buffer.sample(state, jax.random.fold_in(key, argument), BATCH, clock)
            check_sample(sample, oracle, clock)
            state = buffer.mark_drawn(state, sample.handles)
            oracle.mark(pairs(sample.handles))
        else:
            named = [resolve(reference, given_out, capacity) for reference, _ in argument]
            bases = [base for _, base in argument]
            index, generation = np.array(named, np.int32).T
            handles = replay.Handles(index=jnp.asarray(index), generation=jnp.asarray(generation))
            birth = clock if name == "rebirth" else None
            state = buffer.update(state, handles, np.array(bases, np.float32), birth)
            oracle.update(named, bases, birth)
        check_state(state, oracle)
    np.testing.assert_allclose(
        buffer.probabilities(state),
        oracle.probabilities(ALPHA, TAU, clock),
        rtol=5e-5,
        atol=1e-37,
    )
