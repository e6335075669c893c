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
    log_masses, largest = _log_masses(state, alpha, tau, strategy)
    levels = block_sums(jnp.exp(log_masses - largest))
    return log_masses - largest - _log_total(levels)


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
    log_masses, largest = _log_masses(state, alpha, tau, strategy)
    levels = block_sums(jnp.exp(log_masses - largest))
    index = draw_stratified(key, levels, batch_size)

    log_scale = largest + _log_total(levels)
    valid = jnp.full((batch_size,), state.size > 0)
    # Recomputed for the rows drawn, which is less work than to keep all C of them.
    drawn = _log_masses_at(state, index, alpha, tau, strategy)
    log_probabilities = jnp.where(valid, drawn - log_scale, 0.0)
    smallest = jnp.min(jnp.where(jnp.isfinite(log_masses), log_masses, jnp.inf))
    weights = importance_weights(
        log_probabilities,
        valid,
        state.size,
        beta,
        normaliser=weight_normaliser,
        least_log_probability=jnp.where(state.size > 0, smallest - log_scale, 0.0),
    )
    return _gather(state, clock, index, valid, jnp.exp(log_probabilities), weights)


def _log_masses(
    state: ReplayState, alpha: jax.Array, tau: jax.Array, strategy: str
) -> tuple[jax.Array, jax.Array]:
    """Computes the logarithm of every slot's mass, `[C]`, and the largest one, 0 for no rows."""
    log_masses = _log_masses_at(state, slice(None), alpha, tau, strategy)
    return log_masses, jnp.where(state.size > 0, jnp.max(log_masses), 0.0)


def _log_masses_at(
    state: ReplayState, rows: jax.Array | slice, alpha: jax.Array, tau: jax.Array, strategy: str
) -> jax.Array:
    last = (state.cursor - 1) % state.log_base.shape[0]
    return log_priorities(
        state.log_base[rows],
        state.birth[rows],
        state.birth[last],
        jnp.zeros_like(alpha) if strategy == "uniform" else alpha,
        tau,
    )


def _log_total(levels: list[jax.Array]) -> jax.Array:
    """Takes the logarithm of the total mass, at least the 1 of the largest row, or 0."""
    return jnp.log(jnp.maximum(jnp.sum(levels[0]), 1.0))


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
