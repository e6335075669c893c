"""Base priorities: how much there is to learn from a row, before its age counts."""

import chex
import jax
import jax.numpy as jnp

__all__ = [
    "absolute_return",
    "constant",
    "length",
    "mean_absolute_advantage",
    "mean_absolute_td_error",
]


def absolute_return(returns: jax.Array, *, eps: float = 1e-6) -> jax.Array:
    """Takes |return| + eps, the priority that needs no critic.

    Args:
      returns: `[B]` float, the return of each row.
      eps: what a row of return zero keeps.

    Returns:
      `[B]` float32 base priorities.

    Source: Freshness-Aware PER, arXiv 2604.16918.
    """
    chex.assert_rank(returns, 1)
    return jnp.abs(returns).astype(jnp.float32) + jnp.float32(eps)


def mean_absolute_advantage(
    advantages: jax.Array, mask: jax.Array, *, eps: float = 1e-6
) -> jax.Array:
    """Takes the mean of |advantage| over the tokens of the mask, plus eps.

    Args:
      advantages: `[B, T]` float; what lies outside the mask is ignored, NaN included.
      mask: `[B, T]` bool, true at response tokens.
      eps: what a row keeps whose advantages are all zero, or whose mask is empty.

    Returns:
      `[B]` float32 base priorities.

    Source: Freshness-Aware PER, arXiv 2604.16918.
    """
    return _masked_mean_absolute(advantages, mask) + jnp.float32(eps)


def mean_absolute_td_error(
    td_errors: jax.Array, mask: jax.Array, *, eps: float = 1e-6
) -> jax.Array:
    """Takes the mean of |TD error| over the tokens of the mask, plus eps.

    Args:
      td_errors: `[B, T]` float; what lies outside the mask is ignored, NaN included.
      mask: `[B, T]` bool, true at response tokens.
      eps: what a row keeps whose errors are all zero, or whose mask is empty.

    Returns:
      `[B]` float32 base priorities.

    Source: Prioritized Experience Replay, arXiv 1511.05952, proportional variant.
    """
    return _masked_mean_absolute(td_errors, mask) + jnp.float32(eps)


def length(lengths: jax.Array) -> jax.Array:
    """Takes the number of tokens of a row, so that every token is drawn equally often.

    Args:
      lengths: `[B]` int or float.

    Returns:
      `[B]` float32 base priorities.
    """
    chex.assert_rank(lengths, 1)
    return lengths.astype(jnp.float32)


def constant(rows: int, value: float = 1.0) -> jax.Array:
    """Gives every row the same base priority, so that only freshness tells them apart.

    Args:
      rows: B, how many.
      value: the priority.

    Returns:
      `[B]` float32 base priorities.
    """
    return jnp.full((rows,), value, jnp.float32)


def _masked_mean_absolute(values: jax.Array, mask: jax.Array) -> jax.Array:
    chex.assert_rank([values, mask], 2)
    chex.assert_equal_shape([values, mask])
    chosen = mask.astype(bool)
    total = jnp.sum(jnp.where(chosen, jnp.abs(values).astype(jnp.float32), 0.0), axis=1)
    return total / jnp.maximum(jnp.sum(chosen, axis=1), 1).astype(jnp.float32)
