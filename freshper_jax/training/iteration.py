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
from freshper_jax.replay import AutoTau, ReplayBuffer
from freshper_jax.rollout import EpisodeStats, Trajectory
from freshper_jax.training.metrics import Metrics, Replayed, episode_metrics, replay_metrics
from freshper_jax.training.replaying import make_replaying
from freshper_jax.training.state import RunState, TrainState

__all__ = ["IterationConfig", "Rollout", "make_iteration"]

Rollout = Callable[[Any, jax.Array, int, int], tuple[Trajectory, EpisodeStats]]

# Streams of an iteration's key.
_ROLLOUT, _REPLAY = 0, 1


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
    by_profile: bool = False,
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
      by_profile: whether rows age by the measured ESS share itself, in place of exp(-age/tau).
      place: puts a batch on the devices, split over rows where they are several.

    Age is counted in optimiser updates: a row is born at the number of updates that its
    behaviour policy had seen, and the clock of a draw is the number applied by then.
    """

    replaying = None
    if buffer is not None and config.source == "buffer":
        replaying = make_replaying(
            buffer,
            update=update,
            base_priority=base_priority,
            batch=config.batch,
            reprioritise=reprioritise,
            auto_tau=auto_tau,
            by_profile=by_profile,
            place=place,
        )
    passes = 1 + (config.updates if config.source == "fresh" else 0)

    def learn_fresh(train: TrainState, batch: Trajectory) -> tuple[TrainState, Any, RowStatistics]:
        ones = place(np.ones(len(batch.length), np.float32))
        train, found, rows = update(train, batch, ones)
        for _ in range(passes - 1):
            train, *_ = update(train, batch, ones)
        return train, found, rows

    def iterate(state: RunState) -> tuple[RunState, Metrics]:
        number, clock = int(state.iteration), int(state.train.step)
        key = jax.random.fold_in(state.key, number)
        times: dict[str, float] = {}

        with _timed(times, "rollout"):
            trajectory, episodes = rollout(
                state.train.params, jax.random.fold_in(key, _ROLLOUT), number, clock
            )

        with _timed(times, "fresh"):
            batch = prepare(state.train.params, place(trajectory))
            train, fresh, found = learn_fresh(state.train, batch)
            jax.block_until_ready(train.step)
        state = dataclasses.replace(state, train=train)

        replayed: list[Replayed] = []
        with _timed(times, "replay"):
            if replaying is not None:
                state = replaying.store(state, batch, found, clock)
                for index in range(config.updates):
                    stream = jax.random.fold_in(key, _REPLAY + index)
                    state, one = replaying.learn(state, stream, config.beta_at(number))
                    replayed.append(one)
                jax.block_until_ready(state.train.step)

        fresh, replayed = jax.device_get((fresh, replayed))
        metrics = episode_metrics(trajectory, episodes)
        metrics |= {f"fresh/{name}": float(value) for name, value in fresh.items()}
        if replayed:
            metrics |= replay_metrics(replayed)
        if replaying is not None:
            metrics |= replaying.metrics(state)
        metrics |= {"updates": float(state.train.step), "skipped": float(state.train.skipped)}
        metrics |= {f"time/{name}": seconds for name, seconds in times.items()}
        trained = passes * int(np.sum(trajectory.length))
        trained += sum(int(np.sum(one.lengths)) for one in replayed)
        metrics["speed/sampled_tokens"] = episodes.sampled_tokens / times["rollout"]
        metrics["speed/trained_tokens"] = trained / (times["fresh"] + times["replay"])
        return dataclasses.replace(state, iteration=state.iteration + 1), metrics

    return iterate


@contextmanager
def _timed(times: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    times[name] = time.perf_counter() - start
