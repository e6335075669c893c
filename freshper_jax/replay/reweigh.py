"""Ageing by any curve, in place of the exponential one that a buffer keeps sums for."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from freshper_jax.replay.scalars import Scalar, as_clock
from freshper_jax.replay.types import ReplayState, as_bits

__all__ = ["reweigh"]


def reweigh(
    state: ReplayState, clock: Scalar, log_freshness: Callable[[jax.Array], jax.Array]
) -> ReplayState:
    """Returns a state whose base priorities are multiplied by their freshness at a clock.

    It is meant for one draw, `buffer.sample(reweigh(...), ..., tau=math.inf)`, which is exact and
    costs a pass over the rows; handles drawn from it are those of `state`.

    Args:
      state: the buffer; it stays as it is.
      clock: int32 scalar.
      log_freshness: `(ages [C] int32) -> [C] float32`, finite.
    """
    ages = as_clock(clock) - state.birth
    aged = jnp.where(state.generation >= 0, state.log_base + log_freshness(ages), -jnp.inf)
    return dataclasses.replace(state, rows=state.rows.at[..., 0].set(as_bits(aged)))
