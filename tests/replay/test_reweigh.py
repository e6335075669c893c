import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import replay
from freshper_jax.replay import reweigh


def filled(strategy="prioritized", alpha=0.6):
    """Six of eight slots, two rows born at each of the clocks 0, 10 and 20."""
    buffer = replay.make_buffer(capacity=8, alpha=alpha, tau=5.0, strategy=strategy)
    state = buffer.init({"x": jnp.zeros(())})
    for clock, (first, second) in ((0, (1.0, 2.0)), (10, (4.0, 0.5)), (20, (3.0, 3.0))):
        rows = {"x": jnp.array([first, second])}
        state, _ = buffer.add(state, rows, jnp.array([first, second]), clock)
    return buffer, state


def test_probabilities_are_base_times_freshness_to_the_alpha():
    buffer, state = filled()
    aged = reweigh(state, 20, lambda ages: -jnp.log1p(ages.astype(jnp.float32)))
    base = np.array([1, 2, 4, 0.5, 3, 3], np.float64)
    mass = (base / (1 + np.array([20, 20, 10, 10, 0, 0]))) ** 0.6
    expected = np.append(mass / mass.sum(), [0, 0])
    np.testing.assert_allclose(buffer.probabilities(aged, tau=math.inf), expected, rtol=1e-5)
    sample = buffer.sample(aged, jax.random.key(0), 4, 20, tau=math.inf)
    np.testing.assert_allclose(
        sample.probabilities, expected[np.asarray(sample.handles.index)], rtol=1e-5
    )


def test_the_state_itself_stays_as_it_is():
    buffer, state = filled()
    before = jax.tree.map(np.asarray, state)
    reweigh(state, 20, lambda ages: -ages.astype(jnp.float32))
    chex.assert_trees_all_equal(jax.tree.map(np.asarray, state), before)
    assert buffer.can_sample(state, 6)


def test_an_exponential_curve_is_tau():
    buffer, state = filled()
    aged = reweigh(state, 33, lambda ages: -ages.astype(jnp.float32) / 5.0)
    np.testing.assert_allclose(
        buffer.probabilities(aged, tau=math.inf), buffer.probabilities(state), rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("strategy", ["prioritized", "prioritized_without_replacement"])
def test_ages_without_freshness_are_never_drawn(strategy):
    buffer, state = filled(strategy)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def draw(state, key, low):
        def within(ages):
            return jnp.where((ages >= low) & (ages < low + 10), 0.0, -1e4)

        aged = reweigh(state, jnp.int32(20), within)
        return buffer.sample(aged, key, 2, 20, tau=math.inf)

    for low in (0, 10, 20):
        for key in jax.random.split(jax.random.key(low), 50):
            assert (np.asarray(draw(state, key, jnp.int32(low)).ages) == low).all()
