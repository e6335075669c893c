"""How each strategy draws: which rows, with what probability."""

import jax
import jax.numpy as jnp

from freshper_jax.replay.draw import block_sums, draw_stratified
from freshper_jax.replay.priority import log_priorities
from freshper_jax.replay.types import Handles, ReplayState, Sample
from freshper_jax.replay.weights import effective_sample_size, importance_weights

__all__ = ["STRATEGIES", "draw_sample", "log_row_probabilities"]

STRATEGIES = ("prioritized", "uniform", "newest")


def log_row_probabilities(
    state: ReplayState, alpha: jax.Array, tau: jax.Array, *, strategy: str
) -> jax.Array:
    """Computes log P_i of every slot for one draw with replacement; no clock moves it.

    Args:
      state: the buffer.
      alpha: float32 scalar >= 0.
      tau: float32 scalar > 0.
      strategy: `uniform` ignores priorities and ages; the others weigh them.

    Returns:
      `[C]` float32 logarithms whose exponentials sum to 1, -inf for an empty slot.
    """
    log_masses, masses = _masses(state, alpha, tau, strategy)
    return log_masses - jnp.log(jnp.maximum(jnp.sum(masses), 1.0))


def draw_sample(
    state: ReplayState,
    key: jax.Array,
    clock: jax.Array,
    beta: jax.Array,
    alpha: jax.Array,
    tau: jax.Array,
    *,
    batch_size: int,
    strategy: str,
    weight_normaliser: str,
) -> Sample:
    """Draws a batch by a strategy.

    `prioritized` and `uniform` draw with replacement, one row from each of `batch_size` equal
    strata of the total mass. `newest` takes the rows inserted last, each once, the newest
    first; every place has P = 1 / (rows taken) and weight 1, and the key is not read.

    Args:
      state: the buffer.
      key: typed PRNG key; it is consumed.
      clock: int32 scalar.
      beta: float32 scalar >= 0.
      alpha: float32 scalar >= 0.
      tau: float32 scalar > 0.
      batch_size: B, rows to draw.
      strategy: one of `STRATEGIES`.
      weight_normaliser: how weights are scaled, see `importance_weights`.

    Returns:
      The sample.
    """
    if strategy == "newest":
        return _take_newest(state, clock, batch_size)
    log_masses, masses = _masses(state, alpha, tau, strategy)
    levels = block_sums(masses)
    index = draw_stratified(key, levels, batch_size)
    log_total = jnp.log(jnp.maximum(jnp.sum(levels[0]), 1.0))
    filled = state.generation >= 0
    least = jnp.min(jnp.where(filled, log_masses, jnp.inf)) - log_total
    valid = jnp.full((batch_size,), state.size > 0)
    log_probabilities = jnp.where(valid, log_masses[index] - log_total, 0.0)
    weights = importance_weights(
        log_probabilities,
        valid,
        state.size,
        beta,
        normaliser=weight_normaliser,
        least_log_probability=least,
    )
    return _gather(state, clock, index, valid, jnp.exp(log_probabilities), weights)


def _masses(
    state: ReplayState, alpha: jax.Array, tau: jax.Array, strategy: str
) -> tuple[jax.Array, jax.Array]:
    """Computes every slot's mass over the largest one, and its logarithm: `[C]` float32."""
    last = (state.cursor - 1) % state.log_base.shape[0]
    if strategy == "uniform":
        alpha = jnp.zeros_like(alpha)
    log_masses = log_priorities(state.log_base, state.birth, state.birth[last], alpha, tau)
    log_masses = jnp.where(state.generation >= 0, log_masses, -jnp.inf)
    largest = jnp.max(log_masses)
    log_masses = log_masses - jnp.where(state.size > 0, largest, 0.0)
    return log_masses, jnp.exp(log_masses)


def _take_newest(state: ReplayState, clock: jax.Array, batch_size: int) -> Sample:
    capacity = state.log_base.shape[0]
    place = jnp.arange(batch_size, dtype=jnp.int32)
    valid = place < state.size
    index = jnp.where(valid, (state.cursor - 1 - place) % capacity, 0)
    taken = jnp.minimum(state.size, batch_size)
    chance = 1.0 / jnp.maximum(taken, 1).astype(jnp.float32)
    return _gather(
        state, clock, index, valid, jnp.full((batch_size,), chance), valid.astype(jnp.float32)
    )


def _gather(
    state: ReplayState,
    clock: jax.Array,
    index: jax.Array,
    valid: jax.Array,
    probabilities: jax.Array,
    weights: jax.Array,
) -> Sample:
    generation = jnp.where(valid, state.generation[index], -1)
    return Sample(
        data=jax.tree.map(lambda leaf: leaf[index], state.data),
        handles=Handles(index=index, generation=generation),
        probabilities=jnp.where(valid, probabilities, 0.0),
        weights=weights,
        ages=jnp.where(valid, clock - state.birth[index], 0),
        ess=effective_sample_size(weights),
    )
