"""From options to the parts that say what is learnt: advantages, loss and base priorities."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments.learning import LearningOptions
from experiments.options import Options
from freshper_jax import replay
from freshper_jax.models import LanguageModel, ValueModel
from freshper_jax.objectives import (
    RowStatistics,
    generalised_advantages,
    group_advantages,
    group_mean,
    kl_penalty_rewards,
    masked_sum,
    reinforce_plus_plus,
    whiten,
)
from freshper_jax.rollout import Trajectory
from freshper_jax.training import CriticConfig, LossConfig

__all__ = ["BASE_PRIORITIES", "make_loss", "make_prepare"]


def make_loss(learning: LearningOptions) -> LossConfig:
    """Return the settings of the loss."""
    rho_cap, c_cap = learning.trace_caps
    critic = CriticConfig(
        targets="vtrace" if learning.advantage == "vtrace" else "stored",
        coefficient=learning.value_coefficient,
        clip=learning.value_clip,
        gamma=learning.discount,
        trace=learning.trace,
        rho_cap=rho_cap,
        c_cap=c_cap,
    )
    return LossConfig(
        clip_low=learning.clip,
        clip_high=learning.clip,
        dual_clip=learning.dual_clip,
        aggregation=learning.aggregation,
        entropy_coefficient=learning.entropy_coefficient,
        objective=learning.objective,
        ratio_cap=learning.ratio_cap,
        critic=critic if learning.has_critic else None,
    )


def make_prepare(
    options: Options,
    model: LanguageModel,
    critic: ValueModel | None,
    *,
    whole: Callable[[Any], Any],
    reference: Any,
) -> Callable[[Any, Trajectory], Trajectory]:
    """Make the function that gives a fresh batch its advantages, and values where a critic has.

    Args:
      options: of the run.
      model: scores the reference of a KL penalty.
      critic: values states; None without a value head.
      whole: from trained params to those that the model's functions take.
      reference: trained params that a KL penalty refers to.

    Returns:
      `(params, trajectory) -> trajectory`, with the params that collected it.
    """
    learning = options.learning
    estimators: dict[str, Callable[[Any, Trajectory], Trajectory]] = {
        "reinforce++": functools.partial(_reinforce_plus_plus, options),
        "grpo": functools.partial(_grpo, learning),
        "gae": functools.partial(_gae, learning, critic),
        "vtrace": lambda _, batch: batch,  # the update makes them
    }
    advantages_of = estimators[learning.advantage]

    @jax.jit
    def prepare(params: Any, reference: Any, batch: Trajectory) -> Trajectory:
        penalised = batch
        if learning.kl_coefficient > 0:
            scores, _ = model.token_log_probs(
                reference, batch.tokens, batch.temperature, jnp.asarray(batch.response_mask)
            )
            rewards = kl_penalty_rewards(
                jnp.asarray(batch.rewards),
                jnp.asarray(batch.behaviour_log_probs),
                scores,
                jnp.asarray(batch.response_mask),
                coefficient=learning.kl_coefficient,
            )
            penalised = batch.replace(rewards=rewards)
        prepared = advantages_of(params, penalised)
        # Rows are kept with the rewards that were given, but where a critic learns others.
        return prepared if learning.has_critic else prepared.replace(rewards=batch.rewards)

    needs_params, needs_reference = learning.advantage == "gae", learning.kl_coefficient > 0
    reference = whole(reference) if needs_reference else None
    return lambda params, batch: prepare(whole(params) if needs_params else None, reference, batch)


def _reinforce_plus_plus(options: Options, _: Any, batch: Trajectory) -> Trajectory:
    baseline = None
    if options.group_size > 1:
        baseline = group_mean(jnp.asarray(batch.return_), jnp.asarray(batch.group_id))
    return batch.replace(
        advantages=reinforce_plus_plus(
            jnp.asarray(batch.rewards),
            jnp.asarray(batch.response_mask),
            gamma=options.learning.discount,
            advantage_clip=options.learning.advantage_clip,
            baseline=baseline,
        )
    )


def _grpo(learning: LearningOptions, _: Any, batch: Trajectory) -> Trajectory:
    mask = jnp.asarray(batch.response_mask)
    returns = masked_sum(jnp.asarray(batch.rewards), mask, axis=1)
    return batch.replace(
        advantages=group_advantages(
            returns, jnp.asarray(batch.group_id), mask, scale=learning.group_std
        )
    )


def _gae(
    learning: LearningOptions, critic: ValueModel | None, params: Any, batch: Trajectory
) -> Trajectory:
    assert critic is not None, "gae brings a value head"
    mask = jnp.asarray(batch.response_mask)
    values = critic.token_values(params, jnp.asarray(batch.tokens))
    advantages, targets = generalised_advantages(
        jnp.asarray(batch.rewards), values, mask, gamma=learning.discount, trace=learning.trace
    )
    advantages = whiten(advantages, mask)
    if learning.advantage_clip is not None:
        advantages = jnp.clip(advantages, -learning.advantage_clip, learning.advantage_clip)
    return batch.replace(
        advantages=advantages,
        value_targets=targets,
        values=None if learning.value_clip is None else values,
    )


def _td_error(_: Any, rows: RowStatistics) -> jax.Array:
    ones = jnp.ones((len(rows.td_error), 1), bool)
    return replay.mean_absolute_td_error(rows.mean_td_error[:, None], ones)


BASE_PRIORITIES: dict[str, Callable[[Any, RowStatistics], jax.Array]] = {
    "return": lambda batch, _: replay.absolute_return(batch.return_),
    "advantage": lambda batch, _: replay.mean_absolute_advantage(
        batch.advantages, batch.response_mask
    ),
    "td_error": _td_error,
    "length": lambda batch, _: replay.length(batch.length),
    "constant": lambda batch, _: replay.constant(len(batch.length)),
}
