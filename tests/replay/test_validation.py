"""Bad input gets one clear error that names the argument."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import replay

EXAMPLE = {"tokens": np.zeros((4,), np.int32), "score": np.zeros((), np.float32)}


def batch_of(rows):
    return {"tokens": np.zeros((rows, 4), np.int32), "score": np.zeros((rows,), np.float32)}


@pytest.fixture
def buffer():
    return replay.make_buffer(capacity=6)


@pytest.fixture
def filled(buffer):
    return buffer.add(buffer.init(EXAMPLE), batch_of(3), np.ones(3), 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"capacity": 0}, ValueError, "capacity must be at least 1 .* got 0"),
        ({"capacity": -3}, ValueError, "capacity .* got -3"),
        ({"capacity": 1 << 30}, ValueError, "capacity"),
        ({"capacity": 2.5}, TypeError, "capacity must be an integer, got 2.5"),
        ({"capacity": True}, TypeError, "capacity"),
        ({"alpha": -0.1}, ValueError, "alpha must be finite and at least 0, got -0.1"),
        ({"alpha": np.nan}, ValueError, "alpha"),
        ({"alpha": np.inf}, ValueError, "alpha"),
        ({"alpha": "high"}, TypeError, "alpha must be a number"),
        ({"beta": -1}, ValueError, "beta"),
        ({"tau": 0}, ValueError, "tau must be greater than 0, got 0"),
        ({"tau": -5.0}, ValueError, "tau"),
        ({"tau": np.nan}, ValueError, "tau"),
        ({"strategy": "prioritised"}, ValueError, "strategy .* prioritized, .* 'prioritised'"),
        ({"insertion": "min"}, ValueError, "insertion must be one of base, max, got 'min'"),
        ({"eviction": "newest"}, ValueError, "eviction"),
        ({"weight_normaliser": "sum"}, ValueError, "weight_normaliser"),
        ({"fallback_priority": 0.0}, ValueError, "fallback_priority"),
        ({"fallback_priority": np.nan}, ValueError, "fallback_priority"),
    ],
)
def test_options(options, error, message):
    with pytest.raises(error, match=message):
        replay.make_buffer(**{"capacity": 6} | options)


def test_an_empty_example(buffer):
    with pytest.raises(ValueError, match="example"):
        buffer.init({})


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"tokens": np.zeros((3, 4), np.int32)}, "leaves"),
        (batch_of(3) | {"more": np.zeros(3)}, "leaves"),
        (batch_of(3) | {"score": np.zeros((2,), np.float32)}, r"\['score'\].*\(2,\).*\(3,\)"),
        (batch_of(3) | {"tokens": np.zeros((3, 5), np.int32)}, r"\['tokens'\].*\(3, 5\)"),
        (batch_of(3) | {"tokens": np.zeros((3, 4), np.float32)}, r"\['tokens'\].*float32.*int32"),
        (batch_of(3) | {"score": np.zeros((), np.float32)}, r"\['score'\]"),
        (batch_of(2), "leading axis"),
    ],
)
def test_batches_that_do_not_fit_the_example(buffer, batch, message):
    with pytest.raises(ValueError, match=message):
        buffer.add(buffer.init(EXAMPLE), batch, np.ones(3), 0)


@pytest.mark.parametrize("base_priority", [np.ones((3, 1)), np.float32(1), np.ones(0)])
def test_base_priorities_of_the_wrong_shape(buffer, base_priority):
    with pytest.raises(ValueError, match="base_priority"):
        buffer.add(buffer.init(EXAMPLE), batch_of(3), base_priority, 0)


def test_numpy_float64_is_taken_as_float32(buffer):
    batch = batch_of(3) | {"score": np.arange(3.0)}
    state, _ = buffer.add(buffer.init(EXAMPLE), batch, np.ones(3), 0)
    np.testing.assert_array_equal(state.data["score"][:3], [0, 1, 2])


def test_update_wants_one_priority_a_handle(buffer, filled):
    state, handles = filled
    with pytest.raises(ValueError, match=r"base_priority has shape \(2,\).*\(3,\)"):
        buffer.update(state, handles, np.ones(2))


@pytest.mark.parametrize(
    ("clock", "error"),
    [(0.5, TypeError), (jnp.float32(1), TypeError), (1 << 31, ValueError), (None, TypeError)],
)
def test_clocks(buffer, filled, clock, error):
    state, _ = filled
    with pytest.raises(error, match="clock"):
        buffer.sample(state, jax.random.key(0), 4, clock)
    with pytest.raises(error, match="clock"):
        buffer.stats(state, clock)


def test_a_clock_with_an_axis(buffer, filled):
    with pytest.raises(ValueError, match="clock must be a scalar"):
        buffer.sample(filled[0], jax.random.key(0), 4, jnp.zeros((2,), jnp.int32))


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": 2.0}, TypeError, "batch_size"),
        ({"beta": -0.5}, ValueError, "beta"),
        ({"alpha": np.inf}, ValueError, "alpha"),
        ({"tau": 0.0}, ValueError, "tau"),
        ({"tau": np.zeros(2)}, ValueError, "tau"),
    ],
)
def test_sample_arguments(buffer, filled, options, error, name):
    arguments = {"batch_size": 4, "clock": 0} | options
    with pytest.raises(error, match=name):
        buffer.sample(filled[0], jax.random.key(0), **arguments)


def test_a_state_of_another_buffer(buffer, filled):
    other = replay.make_buffer(capacity=7)
    with pytest.raises(ValueError, match="capacity 7"):
        other.sample(filled[0], jax.random.key(0), 4, 0)
