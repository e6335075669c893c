"""Token-level returns and advantages, computed once at collection and stored with the rows.

In the shape descriptions, `B` denotes rows (trajectories) and `T` tokens.
"""

from typing import Literal, get_args

import chex
import jax
import jax.numpy as jnp

from freshper_jax.objectives.masked import whiten

KLEstimator = Literal["k1", "abs", "k2", "k3"]


def discounted_returns(rewards: jax.Array, response_mask: jax.Array, *, gamma: float) -> jax.Array:
    """Sums the rewards to go over the response tokens of each row.

    `G_t = r_t + gamma * G_next`, where next is the row's next response token: the
    observations between two turns neither discount nor hide a later reward.

    Args:
        rewards: float32 `[B, T]`; rewards outside the mask are ignored.
        response_mask: bool `[B, T]`, the tokens the policy produced.
        gamma: discount a response token, in [0, 1].

    Returns:
        float32 `[B, T]`, 0 outside the mask.

    Raises:
        ValueError: gamma lies outside [0, 1].
    """
    chex.assert_rank([rewards, response_mask], 2)
    chex.assert_equal_shape([rewards, response_mask])
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}")

    def step(later: jax.Array, token: tuple[jax.Array, jax.Array]):
        reward, is_response = token
        here = jnp.where(is_response, reward + gamma * later, later)
        return here, jnp.where(is_response, here, jnp.zeros_like(here))

    nothing = jnp.zeros_like(rewards, shape=rewards.shape[:1])
    _, returns = jax.lax.scan(step, nothing, (rewards.T, response_mask.T), reverse=True)
    return returns.T


def group_mean(values: jax.Array, group_id: jax.Array) -> jax.Array:
    """Computes, for each row, the mean over the rows of its group.

    As a baseline of returns this is the one of "REINFORCE++-baseline" (Hu et al., 2025).

    Args:
        values: float32 `[B]`.
        group_id: int32 `[B]`, equal for rows that share a start.

    Returns:
        float32 `[B]`.
    """
    chex.assert_rank([values, group_id], 1)
    same = (group_id[:, None] == group_id[None, :]).astype(values.dtype)
    return (same @ values) / jnp.sum(same, axis=1)


def group_advantages(
    returns: jax.Array,
    group_id: jax.Array,
    response_mask: jax.Array,
    *,
    scale: bool = True,
    eps: float = 1e-6,
) -> jax.Array:
    """Computes GRPO advantages: how far a row's return lies above the mean of its group.

    `A = (R - mean) / (std + eps)` for every response token of a row (Shao et al.,
    "DeepSeekMath", 2024, section 4.1.2), or without the division, which gives groups whose
    returns hardly differ as much say as any (Liu et al., "Understanding R1-Zero-like
    training", 2025: Dr. GRPO). The deviation is the population's. Like all advantages they are
    computed once, at collection, where groups are whole.

    Args:
        returns: float32 `[B]`.
        group_id: int32 `[B]`, equal for rows that share a start.
        response_mask: bool `[B, T]`.
        scale: whether to divide by the deviation of the group.
        eps: added to it.

    Returns:
        float32 `[B, T]`, 0 outside the mask; NaN for a row alone in its group, for there is
        nothing to compare it with, and 0 would pass for an advantage.
    """
    chex.assert_rank([returns, group_id, response_mask], [1, 1, 2])
    same = group_id[:, None] == group_id[None, :]
    size = jnp.sum(same, axis=1, dtype=returns.dtype)

    def mean(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(same, values[None, :], jnp.zeros_like(values)[None]), 1) / size

    centred = returns - mean(returns)
    # As in `whiten`: equal returns, however large, must not seem to differ.
    centred = centred - mean(centred)
    if scale:
        centred = centred / (jnp.sqrt(mean(jnp.square(centred))) + eps)
    alone = size < 2
    of_rows = jnp.where(alone, jnp.full_like(centred, jnp.nan), centred)[:, None]
    return jnp.where(response_mask, of_rows, jnp.zeros_like(of_rows))


def kl_penalty_rewards(
    rewards: jax.Array,
    log_probs: jax.Array,
    reference_log_probs: jax.Array,
    response_mask: jax.Array,
    *,
    coefficient: float,
    estimator: KLEstimator = "k1",
) -> jax.Array:
    """Subtracts a token-level estimate of KL(policy || reference) from the rewards.

    With `d = log_probs - reference_log_probs` on tokens sampled from the policy, the
    estimators are `k1 = d`, `abs = |d|`, `k2 = d^2 / 2` and `k3 = exp(-d) - 1 + d`
    (Schulman, "Approximating KL divergence", 2020).

    Args:
        rewards: float32 `[B, T]`.
        log_probs: float32 `[B, T]`, of the policy that sampled the tokens, nats.
        reference_log_probs: float32 `[B, T]`, nats.
        response_mask: bool `[B, T]`.
        coefficient: reward a nat, at least 0.
        estimator: one of the names above.

    Returns:
        float32 `[B, T]`, 0 outside the mask.

    Raises:
        ValueError: the coefficient is negative or the estimator unknown.
    """
    chex.assert_rank([rewards, log_probs, reference_log_probs, response_mask], 2)
    chex.assert_equal_shape([rewards, log_probs, reference_log_probs, response_mask])
    if coefficient < 0.0:
        raise ValueError(f"coefficient must be at least 0, got {coefficient}")
    zeros = jnp.zeros_like(log_probs)
    log_ratio = jnp.where(response_mask, log_probs - reference_log_probs, zeros)
    match estimator:
        case "k1":
            divergence = log_ratio
        case "abs":
            divergence = jnp.abs(log_ratio)
        case "k2":
            divergence = 0.5 * jnp.square(log_ratio)
        case "k3":
            divergence = jnp.expm1(-log_ratio) + log_ratio
        case _:
            raise ValueError(
                f"estimator must be one of {', '.join(get_args(KLEstimator))}, got {estimator!r}"
            )
    return jnp.where(response_mask, rewards - coefficient * divergence, zeros)


def reinforce_plus_plus(
    rewards: jax.Array,
    response_mask: jax.Array,
    *,
    gamma: float = 1.0,
    advantage_clip: float | None = None,
    baseline: jax.Array | None = None,
    log_probs: jax.Array | None = None,
    reference_log_probs: jax.Array | None = None,
    kl_coefficient: float = 0.0,
    kl_estimator: KLEstimator = "k1",
    eps: float = 1e-8,
) -> jax.Array:
    """Computes REINFORCE++ advantages: returns to go, whitened over all response tokens.

    Source: Hu et al., "REINFORCE++" (2025). Call it on the batch as collected: whitening a
    batch drawn from the replay would change the meaning of the stored rewards.

    Args:
        rewards: float32 `[B, T]`.
        response_mask: bool `[B, T]`.
        gamma: discount a response token.
        baseline: float32 `[B]`, subtracted from every return to go of a row before whitening;
            any function of the row's start leaves the gradient unbiased, see `group_mean`.
        advantage_clip: the advantages are clipped to plus or minus this, after whitening.
        log_probs: float32 `[B, T]` of the sampling policy; with `reference_log_probs` and a
            positive `kl_coefficient` the rewards carry a KL penalty.
        reference_log_probs: float32 `[B, T]`.
        kl_coefficient: reward a nat.
        kl_estimator: see `kl_penalty_rewards`.
        eps: added to the variance.

    Returns:
        float32 `[B, T]`, 0 outside the mask.

    Raises:
        ValueError: `advantage_clip` is not positive, or a KL coefficient comes without both
            log-probabilities.
    """
    if advantage_clip is not None and advantage_clip <= 0.0:
        raise ValueError(f"advantage_clip must be positive or None, got {advantage_clip}")
    if kl_coefficient != 0.0:
        if log_probs is None or reference_log_probs is None:
            raise ValueError("kl_coefficient needs both log_probs and reference_log_probs")
        rewards = kl_penalty_rewards(
            rewards,
            log_probs,
            reference_log_probs,
            response_mask,
            coefficient=kl_coefficient,
            estimator=kl_estimator,
        )
    returns = discounted_returns(rewards, response_mask, gamma=gamma)
    if baseline is not None:
        returns = jnp.where(response_mask, returns - baseline[:, None], jnp.zeros_like(returns))
    advantages = whiten(returns, response_mask, eps=eps)
    if advantage_clip is not None:
        advantages = jnp.clip(advantages, -advantage_clip, advantage_clip)
    return advantages
