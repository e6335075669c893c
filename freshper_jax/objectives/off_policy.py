"""Policy losses for data of an older policy, beside the clipped one.

In the shape descriptions, `B` denotes rows (trajectories) and `T` tokens. Each function takes
`r`, the ratio of the policy being trained to the behaviour policy, token by token, and returns
`(losses, clipped)`: float32 `[B, T]`, and bool `[B, T]`, true where a clip took a token's
gradient away, or a cap a part of it. Both are 0 outside the mask.
"""

from typing import Literal, get_args

import chex
import jax
import jax.numpy as jnp

from freshper_jax.objectives.divergence import masked_log_ratio, token_ratio
from freshper_jax.objectives.masked import masked_mean
from freshper_jax.objectives.policy import (
    clipped_surrogate,
    clipped_token_losses,
    validate_clipping,
)

Objective = Literal["ppo", "tis", "decoupled", "gspo"]


def validate_objective(objective: str) -> None:
    """Checks the name of an objective; raises ValueError listing the known ones."""
    if objective not in get_args(Objective):
        known = ", ".join(get_args(Objective))
        raise ValueError(f"objective must be one of {known}, got {objective!r}")


def validate_ratio_cap(ratio_cap: float | None) -> None:
    """Checks the cap of a ratio; raises ValueError."""
    if ratio_cap is not None and not ratio_cap > 0.0:
        raise ValueError(f"ratio_cap must be positive or None, got {ratio_cap}")


def truncated_token_losses(
    log_probs: jax.Array,
    behaviour_log_probs: jax.Array,
    advantages: jax.Array,
    response_mask: jax.Array,
    *,
    ratio_cap: float | None,
) -> tuple[jax.Array, jax.Array]:
    """Computes policy-gradient losses under truncated importance weights.

    The value is `-min(r, cap) A` and its gradient `-min(r, cap) A grad log pi`: a token that
    has become likely counts at most `cap` times, and never stops counting, as it does under a
    clip. Source: Ionides, "Truncated importance sampling" (2008); as a policy gradient,
    Espeholt et al., "IMPALA" (2018), section 4.2.

    Args:
        log_probs: float32 `[B, T]`, of the policy being trained, nats.
        behaviour_log_probs: float32 `[B, T]`, nats.
        advantages: float32 `[B, T]`.
        response_mask: bool `[B, T]`.
        ratio_cap: positive, or None for no cap: unbiased, of unbounded variance.

    Raises:
        ValueError: the cap is not positive.
    """
    weights, truncated = _truncated_ratio(
        log_probs, behaviour_log_probs, response_mask, ratio_cap=ratio_cap
    )
    advantages = jnp.where(response_mask, advantages, jnp.zeros_like(advantages))
    return -weights * _slope_of(log_probs, response_mask) * advantages, truncated


def decoupled_token_losses(
    log_probs: jax.Array,
    proximal_log_probs: jax.Array,
    behaviour_log_probs: jax.Array,
    advantages: jax.Array,
    response_mask: jax.Array,
    *,
    ratio_cap: float | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Computes the decoupled clipped surrogate loss of each token.

    `min(cap, prox / behaviour) * l`, with `l` the clipped loss of the ratio `pi / prox`: the
    data are weighed by where they come from, and the step is bounded by where it starts. Under
    PPO both are the behaviour policy, whose clip drops most of what is old (Hilton et al.,
    "Batch size-invariance for policy optimization", 2022; for language models Fu et al.,
    "AReaL", 2025).

    Where the policy is still the proximal one no clip binds, and the loss and its gradient are
    those of `truncated_token_losses` with the same cap. So with one gradient step a batch, the
    proximal policy being the one before it, this is truncated importance sampling.

    Args:
        log_probs: float32 `[B, T]`, of the policy being trained, nats.
        proximal_log_probs: float32 `[B, T]`, of the policy before the first step on the batch.
        behaviour_log_probs: float32 `[B, T]`, nats.
        advantages: float32 `[B, T]`.
        response_mask: bool `[B, T]`.
        ratio_cap: of `prox / behaviour`, positive, or None for no cap.
        clip_low, clip_high, dual_clip: of `pi / prox`, see `clipped_token_losses`.

    Raises:
        ValueError: a clip parameter or the cap is out of range.
    """
    proximal_log_probs = jax.lax.stop_gradient(proximal_log_probs)
    weights, truncated = _truncated_ratio(
        proximal_log_probs, behaviour_log_probs, response_mask, ratio_cap=ratio_cap
    )
    losses, clipped = clipped_token_losses(
        log_probs,
        proximal_log_probs,
        advantages,
        response_mask,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    return weights * losses, clipped | truncated


def sequence_token_losses(
    log_probs: jax.Array,
    behaviour_log_probs: jax.Array,
    advantages: jax.Array,
    response_mask: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Computes the clipped surrogate loss of each token by the ratio of its whole row.

    The ratio is `s = exp(mean_t log r_t)` over the row's response tokens, all turns together,
    and token `t` has the ratio `s pi_t / stop_gradient(pi_t)`, so that advantages may differ
    between tokens. Where they do not, and under `seq-mean-token-mean`, the gradient is that of
    `min(s A, clip(s) A)` (Zheng et al., "Group sequence policy optimization", 2025, with its
    variant for tokens). Means of logs move little: the paper clips at 3e-4 below and 4e-4 above.

    Args:
        log_probs: float32 `[B, T]`, of the policy being trained, nats.
        behaviour_log_probs: float32 `[B, T]`, nats.
        advantages: float32 `[B, T]`.
        response_mask: bool `[B, T]`.
        clip_low, clip_high, dual_clip: of `s`, see `clipped_token_losses`.

    Raises:
        ValueError: a clip parameter is out of range.
    """
    _check_shapes(log_probs, behaviour_log_probs, advantages, response_mask)
    validate_clipping(clip_low, clip_high, dual_clip)
    log_ratio = masked_log_ratio(log_probs, behaviour_log_probs, response_mask)
    of_rows = token_ratio(jax.lax.stop_gradient(masked_mean(log_ratio, response_mask, axis=1)))
    return clipped_surrogate(
        of_rows[:, None] * _slope_of(log_probs, response_mask),
        jnp.where(response_mask, advantages, jnp.zeros_like(advantages)),
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )


def _truncated_ratio(
    log_probs: jax.Array,
    behaviour_log_probs: jax.Array,
    response_mask: jax.Array,
    *,
    ratio_cap: float | None,
) -> tuple[jax.Array, jax.Array]:
    """Computes min(r, cap) without gradient, and where the cap was less."""
    _check_shapes(log_probs, behaviour_log_probs, response_mask)
    validate_ratio_cap(ratio_cap)
    ratio = jax.lax.stop_gradient(
        token_ratio(masked_log_ratio(log_probs, behaviour_log_probs, response_mask))
    )
    if ratio_cap is None:
        return ratio, jnp.zeros_like(response_mask)
    return jnp.minimum(ratio, ratio_cap), response_mask & (ratio > ratio_cap)


def _slope_of(log_probs: jax.Array, response_mask: jax.Array) -> jax.Array:
    """Computes `pi / stop_gradient(pi)`: 1, with the gradient of `log pi`."""
    inside = jnp.where(response_mask, log_probs, jnp.zeros_like(log_probs))
    return jnp.exp(inside - jax.lax.stop_gradient(inside))


def _check_shapes(*arrays: jax.Array) -> None:
    chex.assert_rank(arrays, 2)
    chex.assert_equal_shape(arrays)
