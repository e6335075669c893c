"""What a buffer holds and how it was used, in numbers."""

import jax
import jax.numpy as jnp

from freshper_jax.replay.types import ReplayState, ReplayStats

__all__ = ["summarise"]


def summarise(
    state: ReplayState, clock: jax.Array, tau: jax.Array, log_probabilities: jax.Array
) -> ReplayStats:
    """Summarises a buffer at a clock.

    Args:
      state: the buffer.
      clock: int32 scalar.
      tau: float32 scalar > 0; infinity when rows do not age.
      log_probabilities: `[N]` float32, log P of the rows (or groups), -inf for none.

    Returns:
      The statistics; all zero for an empty buffer.
    """
    filled = state.generation >= 0
    ages = jnp.where(filled, clock - state.birth, jnp.iinfo(jnp.int32).max)
    youngest_first = jnp.sort(ages)
    quarters = jnp.arange(5, dtype=jnp.int32) * jnp.maximum(state.size - 1, 0) // 4
    # The freshest row is the youngest one, so freshness rises from the other end.
    age_quantiles = youngest_first[quarters]
    falling_ages = youngest_first[jnp.maximum(state.size - 1, 0) - quarters]
    freshness_quantiles = jnp.exp(-(falling_ages.astype(jnp.float32) / tau))
    draws = jnp.sort(jnp.where(filled, state.draws, jnp.iinfo(jnp.int32).max))

    probabilities = jnp.exp(log_probabilities)
    surprise = jnp.where(probabilities > 0, -log_probabilities, 0.0)
    some = state.size > 0
    some_drawable = jnp.any(probabilities > 0)
    return ReplayStats(
        size=state.size,
        evicted=state.evicted,
        stale_updates=state.stale_updates,
        replaced_priorities=state.replaced,
        never_drawn_share=_share(jnp.sum(filled & (state.draws == 0), dtype=jnp.int32), state.size),
        evicted_undrawn_share=_share(state.evicted_undrawn, state.evicted),
        mean_draws=_share(jnp.sum(jnp.where(filled, state.draws, 0)), state.size),
        draw_quantiles=jnp.where(some, draws[quarters], 0),
        age_quantiles=jnp.where(some, age_quantiles, 0),
        freshness_quantiles=jnp.where(some, freshness_quantiles, 0.0),
        priority_entropy=jnp.sum(probabilities * surprise),
        priority_ess=jnp.where(
            some_drawable,
            1.0 / jnp.where(some_drawable, jnp.sum(jnp.square(probabilities)), 1.0),
            0.0,
        ),
    )


def _share(part: jax.Array, whole: jax.Array) -> jax.Array:
    return part.astype(jnp.float32) / jnp.maximum(whole, 1).astype(jnp.float32)
