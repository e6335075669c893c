"""Advantages, policy losses and off-policy corrections."""

from freshper_jax.objectives.advantages import (
    KLEstimator,
    discounted_returns,
    group_mean,
    kl_penalty_rewards,
    reinforce_plus_plus,
)
from freshper_jax.objectives.divergence import (
    RowStatistics,
    effective_sample_fraction,
    row_statistics,
    summarise_rows,
)
from freshper_jax.objectives.masked import masked_mean, masked_sum, whiten
from freshper_jax.objectives.policy import (
    Aggregation,
    aggregate,
    clipped_token_losses,
    loss_normaliser,
    policy_loss,
    validate_aggregation,
    validate_clipping,
)

__all__ = [
    "Aggregation",
    "KLEstimator",
    "RowStatistics",
    "aggregate",
    "clipped_token_losses",
    "discounted_returns",
    "effective_sample_fraction",
    "group_mean",
    "kl_penalty_rewards",
    "loss_normaliser",
    "masked_mean",
    "masked_sum",
    "policy_loss",
    "reinforce_plus_plus",
    "row_statistics",
    "summarise_rows",
    "validate_aggregation",
    "validate_clipping",
    "whiten",
]
