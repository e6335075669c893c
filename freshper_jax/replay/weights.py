"""Importance weights of drawn rows, and how many rows they are worth."""

import jax
import jax.numpy as jnp

__all__ = ["effective_sample_size", "importance_weights"]

_LARGEST_LOG = 80.0  # exp of it is a float32, and so is exp of minus it


def importance_weights(
    log_probabilities: jax.Array,
    valid: jax.Array,
    rows: jax.Array,
    beta: jax.Array,
    *,
    normaliser: str,
    least_log_probability: jax.Array,
) -> jax.Array:
    """Computes (N P_i)^-beta over the normaliser, in the log domain.

    `batch_max` divides by the largest weight of the batch, `buffer_max` by the largest weight
    any stored row could have, `mean` by the mean over the batch, `none` by one. Where old rows
    linger, `buffer_max` scales fresh ones by exp(-age alpha beta / tau) and so collapses the
    step size.

    Args:
      log_probabilities: `[B]` float32, log P_i of the rows drawn.
      valid: `[B]` bool, false where no row was drawn.
      rows: int32 scalar N, rows stored.
      beta: float32 scalar >= 0; 0 makes all weights one.
      normaliser: `batch_max`, `buffer_max`, `mean` or `none`.
      least_log_probability: float32 scalar, log of the smallest P_i of all stored rows; read
        by `buffer_max` only.

    Returns:
      `[B]` float32 finite weights, 0 where nothing was drawn.

    Source: Prioritized Experience Replay, arXiv 1511.05952, section 3.4.
    """
    # N cancels wherever weights are divided by one of their own kind.
    log_weights = jnp.where(valid, -beta * log_probabilities, 0.0)
    if normaliser == "none":
        log_rows = jnp.log(jnp.maximum(rows, 1).astype(jnp.float32))
        log_weights = log_weights - beta * log_rows
    elif normaliser == "buffer_max":
        log_weights = log_weights + beta * least_log_probability
    else:
        log_weights = log_weights - jnp.max(log_weights, initial=-jnp.inf, where=valid)
    weights = jnp.where(valid, jnp.exp(jnp.minimum(log_weights, _LARGEST_LOG)), 0.0)
    if normaliser == "mean":
        drawn = jnp.sum(valid, dtype=jnp.int32).astype(jnp.float32)
        weights = weights * (drawn / jnp.maximum(jnp.sum(weights), 1.0))
    return weights


def effective_sample_size(weights: jax.Array, *, largest: jax.Array | None = None) -> jax.Array:
    """Computes (sum w)^2 / sum w^2, the number of equal rows the weights are worth.

    Args:
      weights: `[B]` float32, >= 0.
      largest: float32 scalar, the largest of them, where it is known; 1 spares all scaling.

    Returns:
      float32 scalar between 1 and B; 0 when all weights are 0.
    """
    largest = jnp.max(weights) if largest is None else largest
    shares = weights / jnp.where(largest > 0, largest, 1.0)
    return jnp.square(jnp.sum(shares)) / jnp.maximum(jnp.sum(jnp.square(shares)), 1.0)
