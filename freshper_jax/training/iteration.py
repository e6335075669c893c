"""One iteration: roll out, learn from the fresh batch, store it, learn from replayed ones."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import jax
import numpy as np

from freshper_jax.objectives import RowStatistics
from freshper_jax.replay import AutoTau, AutoTauState, ReplayBuffer, ReplayState
from freshper_jax.rollout import EpisodeStats, Trajectory
from freshper_jax.training.drift import drift_by_age
from freshper_jax.training.state import TrainState

__all__ = ["IterationConfig", "Metrics", "Rollout", "RunState", "make_iteration"]

Metrics = dict[str, float | list[float]]
Rollout = Callable[[Any, jax.Array, int, int], tuple[Trajectory, EpisodeStats]]

# Streams of an iteration's key.
_ROLLOUT, _REPLAY = 0, 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunState:
    """Everything that a run changes; to save and restore it is to resume the run bit for bit.

    train: the policy and its optimizer.
    replay: what the buffer holds, None where the run has no buffer.
    key: the run's typed PRNG key; it never changes, iterations fold their number into it.
    iteration: `[]` int32, iterations done.
    tau: the divergence measured so far, None where tau is fixed.
    """

    train: TrainState
    replay: ReplayState | None
    key: jax.Array  # []
    iteration: jax.Array  # []
    tau: AutoTauState | None = None


@dataclasses.dataclass(frozen=True)
class IterationConfig:
    """Where the extra updates of an iteration come from.

    iterations: of the whole run, over which beta moves.
    source: `buffer` draws replayed batches, `fresh` passes over the fresh batch again (the
        same compute without replay), `none` makes no extra update.
    updates: extra updates an iteration.
    batch: rows of a replayed batch.
    beta: importance exponent at the first and the last iteration, linear between.
    """

    iterations: int
    source: Literal["buffer", "fresh", "none"] = "buffer"
    updates: int = 2
    batch: int = 64
    beta: tuple[float, float] = (0.4, 1.0)

    def beta_at(self, iteration: int) -> float:
        """Return the importance exponent of an iteration."""
        share = min(iteration / max(self.iterations - 1, 1), 1.0)
        return self.beta[0] + (self.beta[1] - self.beta[0]) * share


def make_iteration(
    *,
    rollout: Rollout,
    prepare: Callable[[Any, Trajectory], Trajectory],
    update: Callable[..., tuple[TrainState, dict[str, jax.Array], Any]],
    buffer: ReplayBuffer | None,
    base_priority: Callable[[Trajectory, RowStatistics], jax.Array],
    config: IterationConfig,
    reprioritise: bool = False,
    auto_tau: AutoTau | None = None,
    place: Callable[[Any], Any] = jax.device_put,
) -> Callable[[RunState], tuple[RunState, Metrics]]:
    """Make `iterate(state) -> (state, metrics)`, which gives the old state's arrays away.

    Args:
      rollout: `(params, key, iteration, policy_version) -> (trajectory, statistics)`.
      prepare: `(params, trajectory) -> trajectory`, sets the advantages of a collected batch;
        they are stored with it and never computed again, so a replayed row keeps the baseline
        it was collected with.
      update: from `make_update`.
      buffer: where fresh rows go; None without replay.
      base_priority: `(trajectory, rows) -> [B]`, with the statistics of the rows from the first
        update on them.
      config: the extra updates.
      reprioritise: whether replayed rows are given `base_priority` anew, by what the update on
        them found; their age goes on from when they were collected.
      auto_tau: how tau follows from what the replay updates measure; None leaves the buffer's.
      place: puts a batch on the devices, split over rows where they are several.

    Age is counted in optimiser updates: a row is born at the number of updates that its
    behaviour policy had seen, and the clock of a draw is the number applied by then.
    """

    rule, learn = _tau_rule(auto_tau)

    def iterate(state: RunState) -> tuple[RunState, Metrics]:
        number, clock = int(state.iteration), int(state.train.step)
        key = jax.random.fold_in(state.key, number)
        train, replay, drift = state.train, state.replay, state.tau
        times: dict[str, float] = {}
        metrics: Metrics = {}

        with _timed(times, "rollout"):
            trajectory, episodes = rollout(
                train.params, jax.random.fold_in(key, _ROLLOUT), number, clock
            )
        metrics |= episode_metrics(trajectory, episodes)

        with _timed(times, "fresh"):
            batch = prepare(train.params, place(trajectory))
            ones = place(np.ones(len(trajectory.length), np.float32))
            passes = 1 + (config.updates if config.source == "fresh" else 0)
            train, fresh, found = update(train, batch, ones)
            for _ in range(passes - 1):
                train, *_ = update(train, batch, ones)
            jax.block_until_ready(train.step)

        replayed: list[Any] = []
        draws: list[Any] = []
        with _timed(times, "replay"):
            if buffer is not None and replay is not None and config.source == "buffer":
                rules = buffer.rules
                replay, _ = buffer.add(
                    replay,
                    batch,
                    base_priority(batch, found),
                    clock,
                    lengths=batch.length if rules.storage == "packed" else None,
                    groups=group_names(trajectory, number) if rules.group_size > 1 else None,
                )
                beta = config.beta_at(number)
                for index in range(config.updates):
                    draw = jax.random.fold_in(key, _REPLAY + index)
                    tau = rule(drift)
                    sample = buffer.sample(replay, draw, config.batch, train.step, beta, tau=tau)
                    replay = buffer.mark_drawn(replay, sample.handles)
                    train, measured, statistics = update(
                        train, place(sample.data), place(sample.weights)
                    )
                    if reprioritise:
                        again = base_priority(sample.data, statistics)
                        replay = buffer.update(replay, sample.handles, again)
                    drift = learn(drift, sample.ages, statistics)
                    replayed.append(measured)
                    draws.append((statistics, sample.ages, sample.ess, sample.data.length))
                jax.block_until_ready(train.step)

        fresh, replayed, draws = jax.device_get((fresh, replayed, draws))
        trained_tokens = passes * int(np.sum(trajectory.length))
        metrics |= {f"fresh/{name}": float(value) for name, value in fresh.items()}
        if replayed:
            metrics |= {
                f"replay/{name}": float(np.mean([one[name] for one in replayed]))
                for name in replayed[0]
            }
            rows, ages, ess, lengths = zip(*draws, strict=True)
            all_ages = np.concatenate(ages)
            metrics["replay/age_mean"] = float(all_ages.mean())
            metrics["replay/age_max"] = float(all_ages.max())
            metrics["replay/weight_ess"] = float(np.mean(ess)) / config.batch
            by_age = drift_by_age(
                all_ages, jax.tree.map(lambda *parts: np.concatenate(parts), *rows)
            )
            metrics |= {f"age/{name}": values for name, values in by_age.items()}
            trained_tokens += int(np.sum(lengths))
        if buffer is not None and replay is not None and config.source == "buffer":
            tau = rule(drift)
            metrics |= buffer_metrics(buffer, replay, int(train.step), tau)
            if auto_tau is not None and drift is not None:
                metrics |= tau_metrics(auto_tau, drift, tau)
        metrics |= {"updates": float(train.step), "skipped": float(train.skipped)}
        metrics |= {f"time/{name}": seconds for name, seconds in times.items()}
        metrics["speed/sampled_tokens"] = episodes.sampled_tokens / times["rollout"]
        metrics["speed/trained_tokens"] = trained_tokens / (times["fresh"] + times["replay"])
        state = RunState(train, replay, state.key, state.iteration + 1, drift)
        return state, metrics

    return iterate


def group_names(trajectory: Trajectory, iteration: int) -> np.ndarray:
    """Name the group of each row `[B]` as no other iteration does: ids count anew in each."""
    _, group = np.unique(trajectory.group_id, return_inverse=True)
    return (iteration * len(group) + group).astype(np.int32)


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


def tau_metrics(auto_tau: AutoTau, drift: AutoTauState, tau: jax.Array) -> Metrics:
    """Return the tau that the next draw will use, and the evidence for it by octave of age."""
    shares, count = jax.device_get((auto_tau.ess_shares(drift), drift.count))
    return {"tau/tau": float(tau), "tau/ess": shares.tolist(), "tau/count": count.tolist()}


def _tau_rule(auto_tau: AutoTau | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make `(drift) -> tau` and `(drift, ages, row statistics) -> drift`; without a rule, tau is
    None, which leaves the buffer's own."""
    if auto_tau is None:
        return lambda _: None, lambda drift, *_: drift
    rule = auto_tau

    @jax.jit
    def learn(drift: AutoTauState, ages: jax.Array, rows: RowStatistics) -> AutoTauState:
        return rule.update(drift, ages, rows.log_ratio, rows.token_count > 0)

    return jax.jit(rule.tau), learn


def buffer_metrics(
    buffer: ReplayBuffer, replay: ReplayState, clock: int, tau: jax.Array | None = None
) -> Metrics:
    """Return what the buffer holds, in scalars, by the tau given or the buffer's own."""
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


@contextmanager
def _timed(times: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    times[name] = time.perf_counter() - start
