"""How far the policy has moved from the one that collected a row.

In the shape descriptions, `B` denotes rows (trajectories) and `T` tokens. All estimates are
over tokens drawn from the behaviour policy, with `r = policy / behaviour`.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from freshper_jax.objectives.masked import masked_sum

# exp(20) is 5e8: any ratio beyond it is far outside every clip range, while exp(89) is
# infinite in float32 and would turn a gradient of 0 into NaN.
MAX_LOG_RATIO = 20.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowStatistics:
    """Sums over the response tokens of each row; they add up to any statistic of a batch.

    token_count: `[B]` float32, response tokens.
    log_ratio: `[B]` float32, log of the ratio of the whole row, nats.
    kl_k1: `[B]` float32, sum of `-log r`, estimates KL(behaviour || policy), nats.
    kl_k3: `[B]` float32, sum of `r - 1 - log r`, the same, never negative.
    kl_policy: `[B]` float32, sum of `r log r - r + 1`, estimates KL(policy || behaviour).
    ratio_sum: `[B]` float32, sum of `r`.
    ratio_max: `[B]` float32, largest `r`; 0 for a row without response tokens.
    clipped: `[B]` float32, tokens whose gradient a clip removed, or a cap lessened.
    entropy: `[B]` float32, sum of the policy's entropies, nats; 0 where not given.
    td_error: `[B]` float32, sum of `|TD error|`; 0 where not given.
    """

    token_count: jax.Array  # [B]
    log_ratio: jax.Array  # [B]
    kl_k1: jax.Array  # [B]
    kl_k3: jax.Array  # [B]
    kl_policy: jax.Array  # [B]
    ratio_sum: jax.Array  # [B]
    ratio_max: jax.Array  # [B]
    clipped: jax.Array  # [B]
    entropy: jax.Array  # [B]
    td_error: jax.Array  # [B]

    @property
    def token_kl(self) -> jax.Array:
        """The k3 estimate a token of each row, `[B]`, nats."""
        return self.kl_k3 / jnp.maximum(self.token_count, 1)

    @property
    def mean_td_error(self) -> jax.Array:
        """The mean `|TD error|` of each row, `[B]`."""
        return self.td_error / jnp.maximum(self.token_count, 1)


def masked_log_ratio(
    log_probs: jax.Array, behaviour_log_probs: jax.Array, response_mask: jax.Array
) -> jax.Array:
    """Computes log r of each response token, 0 outside the mask; float32 `[B, T]`."""
    difference = log_probs - behaviour_log_probs
    return jnp.where(response_mask, difference, jnp.zeros_like(difference))


def token_ratio(log_ratio: jax.Array) -> jax.Array:
    """Computes r from log r, which is first clipped to plus or minus `MAX_LOG_RATIO`."""
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def row_statistics(
    log_probs: jax.Array,
    behaviour_log_probs: jax.Array,
    response_mask: jax.Array,
    *,
    clipped: jax.Array | None = None,
    entropy: jax.Array | None = None,
    td_error: jax.Array | None = None,
) -> RowStatistics:
    """Sums the off-policy statistics of each row; no gradient flows through them.

    Args:
        log_probs: float32 `[B, T]`, of the present policy, nats.
        behaviour_log_probs: float32 `[B, T]`, under the distribution sampled from.
        response_mask: bool `[B, T]`.
        clipped: bool `[B, T]`, tokens whose gradient a clip removed, or a cap lessened.
        entropy: float32 `[B, T]`, of the present policy, nats.
        td_error: float32 `[B, T]`, of the present values, see `td_errors`.
    """
    chex.assert_rank([log_probs, behaviour_log_probs, response_mask], 2)
    chex.assert_equal_shape([log_probs, behaviour_log_probs, response_mask])
    log_ratio = jax.lax.stop_gradient(
        masked_log_ratio(log_probs, behaviour_log_probs, response_mask)
    )
    bounded = jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    excess = jnp.expm1(bounded)  # r - 1, exact near 0
    ratio = token_ratio(log_ratio)

    def total(values: jax.Array) -> jax.Array:
        return masked_sum(values, response_mask, axis=1)

    none = jnp.zeros_like(log_ratio)
    return RowStatistics(
        token_count=jnp.sum(response_mask, axis=1, dtype=log_ratio.dtype),
        log_ratio=total(log_ratio),
        kl_k1=total(-log_ratio),
        kl_k3=total(excess - bounded),
        kl_policy=total(ratio * bounded - excess),
        ratio_sum=total(ratio),
        ratio_max=jnp.max(jnp.where(response_mask, ratio, none), axis=1),
        clipped=total(none if clipped is None else clipped.astype(none.dtype)),
        entropy=total(none if entropy is None else jax.lax.stop_gradient(entropy)),
        td_error=total(none if td_error is None else jnp.abs(jax.lax.stop_gradient(td_error))),
    )


def effective_sample_fraction(log_weights: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes Kong's effective sample size of importance weights as a share of their number.

    `(sum w)^2 / (n sum w^2)`, by log-sum-exp, so that no ratio overflows (Kong, 1992). With
    `w` the ratios of whole rows this is `exp(-D_2(policy || behaviour))` in expectation.

    Args:
        log_weights: float32 `[B]`, nats.
        mask: bool `[B]`, the rows that count.

    Returns:
        float32 scalar in (0, 1]; 0 where no row counts.
    """
    chex.assert_rank([log_weights, mask], 1)
    count = jnp.sum(mask, dtype=log_weights.dtype)
    inside = jnp.where(mask, log_weights, jnp.zeros_like(log_weights))
    largest = jnp.max(jnp.where(mask, log_weights, jnp.full_like(log_weights, -jnp.inf)))
    shift = jnp.where(count > 0, largest, jnp.zeros_like(largest))
    weights = jnp.where(mask, jnp.exp(inside - shift), jnp.zeros_like(inside))
    total, squares = jnp.sum(weights), jnp.sum(jnp.square(weights))
    return jnp.square(total) / jnp.maximum(count * squares, jnp.finfo(inside.dtype).tiny)


def summarise_rows(rows: RowStatistics) -> dict[str, jax.Array]:
    """Reduces row statistics to those of the batch.

    Returns:
        float32 scalars: `clip_fraction`, `kl_k1`, `kl_k3`, `kl_policy`, `ratio_mean` and
        `entropy` are means over response tokens; `ratio_max` is over tokens; `ess_fraction`
        is over the ratios of whole rows; `response_tokens` is their number.
    """
    tokens = jnp.sum(rows.token_count)

    def mean(sums: jax.Array) -> jax.Array:
        return jnp.sum(sums) / jnp.maximum(tokens, 1)

    return {
        "clip_fraction": mean(rows.clipped),
        "kl_k1": mean(rows.kl_k1),
        "kl_k3": mean(rows.kl_k3),
        "kl_policy": mean(rows.kl_policy),
        "ratio_mean": mean(rows.ratio_sum),
        "ratio_max": jnp.max(rows.ratio_max),
        "ess_fraction": effective_sample_fraction(rows.log_ratio, rows.token_count > 0),
        "entropy": mean(rows.entropy),
        "response_tokens": tokens,
    }
