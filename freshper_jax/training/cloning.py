"""Behaviour cloning of demonstrated trajectories, until the policy is good enough to start from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from freshper_jax.rollout import Trajectory
from freshper_jax.training.state import TrainState

__all__ = ["CloningConfig", "clone"]


@dataclasses.dataclass(frozen=True)
class CloningConfig:
    """When cloning stops, and on how much at a time.

    target: success at which it stops. max_updates: updates after which it stops in any case.
    check_every: updates between measurements of success. batch: rows an update.
    """

    target: float
    max_updates: int
    check_every: int
    batch: int


def clone(
    state: TrainState,
    demonstrations: Trajectory,
    *,
    update: Callable[..., tuple[TrainState, dict[str, Any]]],
    measure: Callable[[Any], float],
    config: CloningConfig,
    seed: int,
    report: Callable[[int, float, float], None] = lambda *_: None,
) -> tuple[TrainState, float]:
    """Raise the likelihood of demonstrated replies until `measure` reaches the target.

    Args:
      state: to start from; its arrays are given away.
      demonstrations: `[R, T]` rows, host arrays.
      update: from `make_cloning_update`.
      measure: `(params) -> success`, a share.
      config: when to stop.
      seed: of the order of rows; every row comes once before any comes again.
      report: called with updates done, loss and success at each measurement.

    Returns:
      The state and its last measured success.

    Raises:
      ValueError: there are fewer demonstrations than one batch takes.
    """
    rows = len(demonstrations.length)
    if rows < config.batch:
        raise ValueError(f"demonstrations: got {rows}, expected at least a batch of {config.batch}")
    rng = np.random.default_rng(seed)
    order = np.empty(0, np.int64)
    success = 0.0
    for done in range(1, config.max_updates + 1):
        if len(order) < config.batch:
            order = np.concatenate([order, rng.permutation(rows)])
        chosen, order = order[: config.batch], order[config.batch :]
        state, metrics = update(
            state, demonstrations.tokens[chosen], demonstrations.response_mask[chosen]
        )
        if done % config.check_every == 0 or done == config.max_updates:
            success = measure(state.params)
            report(done, float(metrics["loss"]), success)
            if success >= config.target:
                break
    return state, success
