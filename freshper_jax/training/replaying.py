"""The part of an iteration that keeps rows and learns from them again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from freshper_jax.objectives import RowStatistics
from freshper_jax.replay import (
    AutoTau,
    AutoTauState,
    ReplayBuffer,
    ReplayState,
    Sample,
    reweigh,
)
from freshper_jax.rollout import Trajectory
from freshper_jax.training.metrics import Metrics, Replayed, buffer_metrics, tau_metrics
from freshper_jax.training.state import RunState

__all__ = ["Replaying", "group_names", "make_replaying"]


@dataclasses.dataclass(frozen=True)
class Replaying:
    """Functions of a run's state, whose arrays they give away.

    store: `(state, batch, row statistics, clock) -> state`, keeps a fresh batch.
    learn: `(state, key, beta) -> (state, replayed)`, one update on a drawn batch.
    metrics: `(state) -> metrics` of what is held; it gives nothing away.
    """

    store: Callable[[RunState, Trajectory, RowStatistics, int], RunState]
    learn: Callable[[RunState, jax.Array, float], tuple[RunState, Replayed]]
    metrics: Callable[[RunState], Metrics]


def make_replaying(
    buffer: ReplayBuffer,
    *,
    update: Callable[..., tuple[Any, dict[str, jax.Array], RowStatistics]],
    base_priority: Callable[[Trajectory, RowStatistics], jax.Array],
    batch: int,
    reprioritise: bool,
    auto_tau: AutoTau | None,
    by_profile: bool,
    place: Callable[[Any], Any],
) -> Replaying:
    """Make the functions; `make_iteration` documents the arguments, `batch` is rows of a draw."""
    tau_of = None if auto_tau is None else jax.jit(auto_tau.tau)

    @jax.jit
    def observe(
        drift: AutoTauState | None, ages: jax.Array, rows: RowStatistics
    ) -> AutoTauState | None:
        if auto_tau is None or drift is None:
            return None
        return auto_tau.update(drift, ages, rows.log_ratio, rows.token_count > 0)

    @jax.jit
    def aged(replay: ReplayState, clock: jax.Array, drift: AutoTauState) -> ReplayState:
        assert auto_tau is not None, "a profile is measured by it"
        return reweigh(replay, clock, lambda ages: auto_tau.log_freshness(drift, ages))

    def draw(state: RunState, key: jax.Array, beta: float) -> Sample:
        clock = state.train.step
        if by_profile:
            replay = aged(state.replay, clock, state.tau)
            return buffer.sample(replay, key, batch, clock, beta, tau=math.inf)
        tau = None if tau_of is None else tau_of(state.tau)
        return buffer.sample(state.replay, key, batch, clock, beta, tau=tau)

    def store(state: RunState, rows: Trajectory, found: RowStatistics, clock: int) -> RunState:
        replay, _ = buffer.add(
            state.replay,
            rows,
            base_priority(rows, found),
            clock,
            lengths=rows.length if buffer.rules.storage == "packed" else None,
            groups=group_names(rows, int(state.iteration)) if buffer.rules.group_size > 1 else None,
        )
        return dataclasses.replace(state, replay=replay)

    def learn(state: RunState, key: jax.Array, beta: float) -> tuple[RunState, Replayed]:
        sample = draw(state, key, beta)
        assert state.replay is not None, "there is a buffer"
        replay = buffer.mark_drawn(state.replay, sample.handles)
        train, metrics, rows = update(state.train, place(sample.data), place(sample.weights))
        if reprioritise:
            replay = buffer.update(replay, sample.handles, base_priority(sample.data, rows))
        drift = observe(state.tau, sample.ages, rows)
        replayed = Replayed(metrics, rows, sample.ages, sample.data.length, sample.ess)
        return dataclasses.replace(state, train=train, replay=replay, tau=drift), replayed

    def metrics(state: RunState) -> Metrics:
        assert state.replay is not None, "there is a buffer"
        clock = int(state.train.step)
        if auto_tau is None or tau_of is None or state.tau is None:
            return buffer_metrics(buffer, state.replay, clock)
        tau = tau_of(state.tau)
        held = buffer_metrics(buffer, state.replay, clock, tau)
        return held | tau_metrics(auto_tau, state.tau, tau)

    return Replaying(store, learn, metrics)


def group_names(rows: Trajectory, iteration: int) -> np.ndarray:
    """Name the group of each row `[B]` as no other iteration does: ids count anew in each."""
    _, group = np.unique(rows.group_id, return_inverse=True)
    return (iteration * len(group) + group).astype(np.int32)
