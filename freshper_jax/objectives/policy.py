"""The clipped policy loss and the ways to aggregate token losses.

In the shape descriptions, `B` denotes rows (trajectories) and `T` tokens.
"""

from typing import Literal, get_args

import chex
import jax
import jax.numpy as jnp

from freshper_jax.objectives.divergence import (
    masked_log_ratio,
    row_statistics,
    summarise_rows,
    token_ratio,
)
from freshper_jax.objectives.masked import masked_sum

Aggregation = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]


def validate_clipping(clip_low: float, clip_high: float, dual_clip: float | None) -> None:
    """Checks the clip range; raises ValueError naming the field at fault."""
    if not 0.0 <= clip_low < 1.0:
        raise ValueError(f"clip_low must lie in [0, 1), got {clip_low}")
    if not clip_high >= 0.0:
        raise ValueError(f"clip_high must be at least 0, got {clip_high}")
    if dual_clip is not None and not dual_clip > 1.0:
        raise ValueError(f"dual_clip must be above 1 or None, got {dual_clip}")


def validate_aggregation(aggregation: str) -> None:
    """Checks the name of an aggregation; raises ValueError listing the known ones."""
    if aggregation not in get_args(Aggregation):
        known = ", ".join(get_args(Aggregation))
        raise ValueError(f"aggregation must be one of {known}, got {aggregation!r}")


def loss_normaliser(response_mask: jax.Array, aggregation: Aggregation) -> jax.Array:
    """Computes the denominator of an aggregation over a whole batch, a float32 scalar.

    It is the number of response tokens for `token-mean`, else of rows that have any; at
    least 1. Pass it to `aggregate` or `policy_loss` with each part of a batch, and the parts
    add up to the loss of the whole.

    Args:
        response_mask: bool `[B, T]` of the whole batch.
        aggregation: one of `Aggregation`.
    """
    chex.assert_rank(response_mask, 2)
    validate_aggregation(aggregation)
    counted = response_mask if aggregation == "token-mean" else jnp.any(response_mask, axis=1)
    return jnp.maximum(jnp.sum(counted, dtype=jnp.float32), 1.0)


def aggregate(
    token_values: jax.Array,
    response_mask: jax.Array,
    weights: jax.Array | None,
    *,
    aggregation: Aggregation,
    normaliser: jax.Array | None = None,
) -> jax.Array:
    """Reduces token losses to a scalar.

    With `l_bt` a token loss, `w_b` the weight of its row and `n_b` the row's response tokens:

    - `token-mean`: `sum_bt w_b l_bt / sum_b n_b`
    - `seq-mean-token-sum`: `mean_b w_b sum_t l_bt`
    - `seq-mean-token-mean`: `mean_b w_b sum_t l_bt / n_b`
    - `seq-mean-token-sum-norm`: `mean_b w_b sum_t l_bt / T`

    where the mean is over rows that have a response. Weights multiply and are not divided
    out: a batch of small weights takes a small step.

    Args:
        token_values: float32 `[B, T]`; ignored outside the mask.
        response_mask: bool `[B, T]`.
        weights: float32 `[B]`, or None for ones.
        aggregation: one of the names above.
        normaliser: float32 scalar, see `loss_normaliser`; by default that of this batch.
    """
    chex.assert_rank([token_values, response_mask], 2)
    chex.assert_equal_shape([token_values, response_mask])
    validate_aggregation(aggregation)
    rows = masked_sum(token_values, response_mask, axis=1)
    if aggregation == "seq-mean-token-mean":
        rows = rows / jnp.maximum(jnp.sum(response_mask, axis=1, dtype=rows.dtype), 1)
    elif aggregation == "seq-mean-token-sum-norm":
        rows = rows / token_values.shape[1]
    if weights is not None:
        chex.assert_shape(weights, rows.shape)
        # A row without a response contributes nothing, whatever its weight holds.
        has_response = jnp.any(response_mask, axis=1)
        rows = rows * jnp.where(has_response, weights, jnp.zeros_like(weights))
    if normaliser is None:
        normaliser = loss_normaliser(response_mask, aggregation)
    return jnp.sum(rows) / normaliser.astype(rows.dtype)


def clipped_token_losses(
    log_probs: jax.Array,
    behaviour_log_probs: jax.Array,
    advantages: jax.Array,
    response_mask: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Computes the clipped surrogate loss of each token.

    `-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` with `r` the ratio to the behaviour
    policy (Schulman et al., "Proximal policy optimization", 2017, eq. 7). With a negative
    advantage that has no bound in `r`; a dual clip `c` bounds it by `-c A` (Ye et al.,
    "Mastering complex control in MOBA games", 2020, eq. 5).

    Args:
        log_probs: float32 `[B, T]`, nats.
        behaviour_log_probs: float32 `[B, T]`, nats.
        advantages: float32 `[B, T]`.
        response_mask: bool `[B, T]`.
        clip_low: in [0, 1).
        clip_high: at least 0.
        dual_clip: above 1, or None for no bound.

    Returns:
        `(losses, clipped)`: float32 `[B, T]`, and bool `[B, T]`, true where a clip replaced
        the ratio, so that the token has no gradient. Both are 0 outside the mask.

    Raises:
        ValueError: a clip parameter is out of range.
    """
    arrays = [log_probs, behaviour_log_probs, advantages, response_mask]
    chex.assert_rank(arrays, 2)
    chex.assert_equal_shape(arrays)
    validate_clipping(clip_low, clip_high, dual_clip)
    advantages = jnp.where(response_mask, advantages, jnp.zeros_like(advantages))
    ratio = token_ratio(masked_log_ratio(log_probs, behaviour_log_probs, response_mask))
    return clipped_surrogate(
        ratio, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )


def clipped_surrogate(
    ratio: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[jax.Array, jax.Array]:
    """Computes the loss and where it is clipped, see `clipped_token_losses`, from ratios."""
    plain = ratio * advantages
    objective = jnp.minimum(plain, jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high) * advantages)
    if dual_clip is not None:
        floor = jnp.where(advantages < 0, dual_clip * advantages, -jnp.inf)
        objective = jnp.maximum(objective, floor)
    return -objective, jax.lax.stop_gradient(objective != plain)


def policy_loss(
    log_probs: jax.Array,
    behaviour_log_probs: jax.Array,
    advantages: jax.Array,
    response_mask: jax.Array,
    weights: jax.Array | None = None,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    aggregation: Aggregation = "token-mean",
    normaliser: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes the importance-weighted clipped policy loss of a batch, fresh or replayed.

    Args:
        log_probs: float32 `[B, T]`, of the policy being trained, nats.
        behaviour_log_probs: float32 `[B, T]`, under the distribution sampled from.
        advantages: float32 `[B, T]`, as stored at collection.
        response_mask: bool `[B, T]`.
        weights: float32 `[B]` from the replay, or None for ones.
        clip_low, clip_high, dual_clip: see `clipped_token_losses`.
        aggregation: see `aggregate`.
        normaliser: see `loss_normaliser`.

    Returns:
        `(loss, metrics)`: a float32 scalar, and the scalars of `summarise_rows`.

    Raises:
        ValueError: a clip parameter is out of range or the aggregation unknown.
    """
    losses, clipped = clipped_token_losses(
        log_probs,
        behaviour_log_probs,
        advantages,
        response_mask,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    loss = aggregate(losses, response_mask, weights, aggregation=aggregation, normaliser=normaliser)
    rows = row_statistics(log_probs, behaviour_log_probs, response_mask, clipped=clipped)
    metrics = summarise_rows(rows)
    del metrics["entropy"]  # not known here
    return loss, metrics
