"""The loss of one batch, fresh or replayed: which objective, whose advantages, what a critic adds.

In the shape descriptions, `B` denotes rows (trajectories) and `T` tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from freshper_jax.objectives import (
    Aggregation,
    Objective,
    clipped_token_losses,
    decoupled_token_losses,
    sequence_token_losses,
    td_errors,
    truncated_token_losses,
    validate_aggregation,
    validate_clipping,
    validate_discounting,
    validate_objective,
    validate_ratio_cap,
    validate_trace_caps,
    validate_value_clip,
    value_losses,
    vtrace,
)

__all__ = [
    "Batch",
    "CriticConfig",
    "CriticLosses",
    "LossConfig",
    "critic_losses",
    "policy_token_losses",
    "read_fields",
]


class Batch(Protocol):
    """What an update reads of a batch of trajectories; any registered pytree will do.

    tokens: `[B, T]` int32. response_mask: `[B, T]` bool, the tokens the policy produced.
    behaviour_log_probs: `[B, T]` float32, under the distribution sampled from, nats.
    advantages: `[B, T]` float32, as computed at collection. temperature: `[B]` float32.

    With a critic it also reads `rewards`, `[B, T]` float32, and where `CriticConfig` says so
    `value_targets` and `values`, `[B, T]` float32, as computed at collection.
    """

    @property
    def tokens(self) -> jax.Array:
        """`[B, T]` int32."""

    @property
    def response_mask(self) -> jax.Array:
        """`[B, T]` bool."""

    @property
    def behaviour_log_probs(self) -> jax.Array:
        """`[B, T]` float32."""

    @property
    def advantages(self) -> jax.Array:
        """`[B, T]` float32."""

    @property
    def temperature(self) -> jax.Array:
        """`[B]` float32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """Settings of the value head's part of an update.

    targets: what the values learn. `stored`: the batch's `value_targets`, with the advantages
        stored beside them. `vtrace`: those of `objectives.vtrace`, and its advantages in place
        of the stored ones, by the values and ratios of the update's own forward pass: data of
        any age are judged by the critic of today.
    coefficient: of the value loss, which is a mean over response tokens.
    clip: see `objectives.value_losses`; with it the batch's `values` are read.
    gamma: discount a response token, of TD errors and V-trace.
    trace, rho_cap, c_cap: of V-trace.
    """

    targets: Literal["stored", "vtrace"] = "stored"
    coefficient: float = 0.5
    clip: float | None = None
    gamma: float = 1.0
    trace: float = 1.0
    rho_cap: float = 1.0
    c_cap: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError for a field out of range, naming it."""
        if self.targets not in ("stored", "vtrace"):
            raise ValueError(f"targets must be one of stored, vtrace, got {self.targets!r}")
        if not self.coefficient > 0.0:
            raise ValueError(f"coefficient must be positive, got {self.coefficient}")
        validate_value_clip(self.clip)
        if self.clip is not None and self.targets == "vtrace":
            raise ValueError(
                f"clip must be None with vtrace targets, which store no values, got {self.clip}"
            )
        validate_discounting(self.gamma, self.trace)
        validate_trace_caps(self.rho_cap, self.c_cap)


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """Settings of the loss.

    clip_low, clip_high: the ratio is clipped to `[1 - clip_low, 1 + clip_high]`.
    dual_clip: bounds the loss of a token of negative advantage; None for no bound, which
        stale data can make arbitrarily large.
    aggregation: how token losses become a scalar, see `objectives.aggregate`.
    entropy_coefficient: the mean entropy times this is subtracted from the loss; replay
        weights do not apply to it.
    objective: `ppo` clips the ratio to the behaviour policy, see `clipped_token_losses`; `tis`
        truncates it, see `truncated_token_losses`; `decoupled` does each to one half of it, see
        `decoupled_token_losses`; `gspo` clips that of whole rows, see `sequence_token_losses`.
    ratio_cap: where `tis` and `decoupled` truncate; None for nowhere.
    critic: of a scorer that also returns values; None without.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0
    aggregation: Aggregation = "token-mean"
    entropy_coefficient: float = 0.0
    _: dataclasses.KW_ONLY
    objective: Objective = "ppo"
    ratio_cap: float | None = 2.0
    critic: CriticConfig | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a field out of range, naming it."""
        validate_clipping(self.clip_low, self.clip_high, self.dual_clip)
        validate_aggregation(self.aggregation)
        if not self.entropy_coefficient >= 0.0:
            raise ValueError(
                f"entropy_coefficient must be at least 0, got {self.entropy_coefficient}"
            )
        validate_objective(self.objective)
        validate_ratio_cap(self.ratio_cap)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fields:
    """The fields of a batch that the loss reads, without whatever else the batch carries."""

    tokens: jax.Array
    response_mask: jax.Array
    behaviour_log_probs: jax.Array
    advantages: jax.Array
    temperature: jax.Array
    rewards: jax.Array | None = None
    value_targets: jax.Array | None = None
    values: jax.Array | None = None


def read_fields(batch: Batch, config: LossConfig) -> Fields:
    """Takes what the loss reads of a batch.

    Raises:
        ValueError: the batch lacks a field that the critic needs.
    """
    names = [field.name for field in dataclasses.fields(Fields)][:5]
    if config.critic is not None:
        names.append("rewards")
        if config.critic.targets == "stored":
            names.append("value_targets")
        if config.critic.clip is not None:
            names.append("values")
    found: dict[str, Any] = {name: getattr(batch, name, None) for name in names}
    for name, array in found.items():
        if array is None:
            raise ValueError(f"the batch must have {name} for {config.critic}")
    return Fields(**found)


def policy_token_losses(
    config: LossConfig,
    rows: Fields,
    log_probs: jax.Array,
    proximal_log_probs: jax.Array | None,
    advantages: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Computes `(losses, clipped)` of each token, `[B, T]` each, by the objective.

    Args:
        config: which objective.
        rows: of the batch.
        log_probs: float32 `[B, T]`, of the policy being trained, nats.
        proximal_log_probs: float32 `[B, T]`, of the policy before the first step on the batch;
            by default those being trained. Only the decoupled objective needs them.
        advantages: float32 `[B, T]`.
    """
    behaviour, mask = rows.behaviour_log_probs, rows.response_mask
    clips: dict[str, Any] = {
        "clip_low": config.clip_low,
        "clip_high": config.clip_high,
        "dual_clip": config.dual_clip,
    }
    match config.objective:
        case "ppo":
            return clipped_token_losses(log_probs, behaviour, advantages, mask, **clips)
        case "tis":
            return truncated_token_losses(
                log_probs, behaviour, advantages, mask, ratio_cap=config.ratio_cap
            )
        case "decoupled":
            return decoupled_token_losses(
                log_probs,
                log_probs if proximal_log_probs is None else proximal_log_probs,
                behaviour,
                advantages,
                mask,
                ratio_cap=config.ratio_cap,
                **clips,
            )
        case "gspo":
            return sequence_token_losses(log_probs, behaviour, advantages, mask, **clips)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CriticLosses:
    """What a critic says of each token, `[B, T]` float32; only `losses` has a gradient.

    losses: half the squared errors.
    advantages: V-trace's, or those stored with the batch.
    targets: what the values learn.
    td_errors: by the present values.
    """

    losses: jax.Array
    advantages: jax.Array
    targets: jax.Array
    td_errors: jax.Array


def critic_losses(
    config: CriticConfig, rows: Fields, log_probs: jax.Array, values: jax.Array
) -> CriticLosses:
    """Computes value losses, and whatever advantages go with them.

    Args:
        config: of the critic.
        rows: of the batch.
        log_probs: float32 `[B, T]`, of the policy being trained, nats.
        values: float32 `[B, T]`, of the state in which each token was chosen.
    """
    assert rows.rewards is not None, "read_fields takes them"
    mask = rows.response_mask
    now = jax.lax.stop_gradient(values)
    if config.targets == "vtrace":
        targets, advantages = vtrace(
            jax.lax.stop_gradient(log_probs) - rows.behaviour_log_probs,
            rows.rewards,
            now,
            mask,
            gamma=config.gamma,
            trace=config.trace,
            rho_cap=config.rho_cap,
            c_cap=config.c_cap,
        )
    else:
        assert rows.value_targets is not None, "read_fields takes them"
        targets, advantages = rows.value_targets, rows.advantages
    return CriticLosses(
        losses=value_losses(values, targets, mask, old_values=rows.values, clip=config.clip),
        advantages=advantages,
        targets=jnp.where(mask, targets, jnp.zeros_like(targets)),
        td_errors=td_errors(rows.rewards, now, mask, gamma=config.gamma),
    )
