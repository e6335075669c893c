"""What an iteration tells of itself, in scalars and in lists by octave of age."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from freshper_jax.objectives import RowStatistics
from freshper_jax.replay import AutoTau, AutoTauState, ReplayBuffer, ReplayState
from freshper_jax.rollout import EpisodeStats, Trajectory
from freshper_jax.training.drift import drift_by_age

__all__ = [
    "Metrics",
    "Replayed",
    "buffer_metrics",
    "episode_metrics",
    "replay_metrics",
    "tau_metrics",
]

Metrics = dict[str, float | list[float]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Replayed:
    """What an update on a drawn batch found.

    metrics: of the update.
    rows: statistics of each row, `[B]` each.
    ages, lengths: `[B]` int32, of the rows, in optimiser updates and in tokens.
    ess: float32 scalar, effective sample size of the importance weights, in rows.
    """

    metrics: dict[str, jax.Array]
    rows: RowStatistics
    ages: jax.Array
    lengths: jax.Array
    ess: jax.Array


def episode_metrics(trajectory: Trajectory, episodes: EpisodeStats) -> Metrics:
    """Return the means of a fresh batch's episodes."""
    return {
        "rollout/reward": float(np.mean(trajectory.return_)),
        "rollout/score": float(episodes.score.mean()),
        "rollout/success": float(episodes.success.mean()),
        "rollout/valid_actions": float(episodes.valid.mean()),
        "rollout/effective_actions": float(episodes.effective.mean()),
        "rollout/turns": float(episodes.turns.mean()),
        "rollout/length": float(np.mean(trajectory.length)),
        "rollout/cut": float(episodes.cut.mean()),
        "rollout/sampled_tokens": float(episodes.sampled_tokens),
    }


def replay_metrics(replayed: Sequence[Replayed]) -> Metrics:
    """Return the means over the replay updates of an iteration, and their drift by age.

    Args:
      replayed: of each update, at least one, on the host.
    """
    ages = np.concatenate([one.ages for one in replayed])
    rows = jax.tree.map(lambda *parts: np.concatenate(parts), *(one.rows for one in replayed))
    means = {
        name: float(np.mean([one.metrics[name] for one in replayed]))
        for name in replayed[0].metrics
    }
    return {
        **{f"replay/{name}": value for name, value in means.items()},
        "replay/age_mean": float(ages.mean()),
        "replay/age_max": float(ages.max()),
        "replay/weight_ess": float(np.mean([one.ess / len(one.ages) for one in replayed])),
        **{f"age/{name}": values for name, values in drift_by_age(ages, rows).items()},
    }


def buffer_metrics(
    buffer: ReplayBuffer, replay: ReplayState, clock: int, tau: jax.Array | None = None
) -> Metrics:
    """Return what the buffer holds, by the tau given or the buffer's own."""
    stats = jax.device_get(buffer.stats(replay, clock, tau=tau))
    return {
        "buffer/size": float(stats.size),
        "buffer/evicted": float(stats.evicted),
        "buffer/never_drawn_share": float(stats.never_drawn_share),
        "buffer/evicted_undrawn_share": float(stats.evicted_undrawn_share),
        "buffer/mean_draws": float(stats.mean_draws),
        "buffer/age_median": float(stats.age_quantiles[2]),
        "buffer/freshness_median": float(stats.freshness_quantiles[2]),
        "buffer/priority_ess": float(stats.priority_ess),
        "buffer/replaced_priorities": float(stats.replaced_priorities),
    }


def tau_metrics(auto_tau: AutoTau, drift: AutoTauState, tau: jax.Array) -> Metrics:
    """Return the tau that the next draw will use, and the evidence for it by octave of age."""
    shares, count = jax.device_get((auto_tau.ess_shares(drift), drift.count))
    return {"tau/tau": float(tau), "tau/ess": shares.tolist(), "tau/count": count.tolist()}
