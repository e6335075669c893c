"""Advantages, policy losses and off-policy corrections."""

from freshper_jax.objectives.advantages import (
    KLEstimator,
    discounted_returns,
    group_advantages,
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
from freshper_jax.objectives.off_policy import (
    Objective,
    decoupled_token_losses,
    sequence_token_losses,
    truncated_token_losses,
    validate_objective,
    validate_ratio_cap,
)
from freshper_jax.objectives.policy import (
    Aggregation,
    aggregate,
    clipped_token_losses,
    loss_normaliser,
    policy_loss,
    validate_aggregation,
    validate_clipping,
)
from freshper_jax.objectives.values import (
    generalised_advantages,
    td_errors,
    validate_discounting,
    validate_trace_caps,
    validate_value_clip,
    value_losses,
    vtrace,
)

__all__ = [
    "Aggregation",
    "KLEstimator",
    "Objective",
    "RowStatistics",
    "aggregate",
    "clipped_token_losses",
    "decoupled_token_losses",
    "discounted_returns",
    "effective_sample_fraction",
    "generalised_advantages",
    "group_advantages",
    "group_mean",
    "kl_penalty_rewards",
    "loss_normaliser",
    "masked_mean",
    "masked_sum",
    "policy_loss",
    "reinforce_plus_plus",
    "row_statistics",
    "sequence_token_losses",
    "summarise_rows",
    "td_errors",
    "truncated_token_losses",
    "validate_aggregation",
    "validate_clipping",
    "validate_discounting",
    "validate_objective",
    "validate_ratio_cap",
    "validate_trace_caps",
    "validate_value_clip",
    "value_losses",
    "vtrace",
    "whiten",
]
