"""What an update of the policy replaces, and what an iteration does."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from freshper_jax.replay import AutoTauState, ReplayState
from freshper_jax.training.optimizer import Optimizer

Params = Any  # a pytree of arrays


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Parameters and what the optimizer knows about them.

    params: pytree of float arrays.
    opt_state: pytree of arrays, the optimizer's own.
    step: `[]` int32, optimiser updates applied; the clock of every schedule.
    skipped: `[]` int32, updates left out because the loss or a gradient was not finite.
    """

    params: Params
    opt_state: Any
    step: jax.Array  # []
    skipped: jax.Array  # []


def init_train_state(params: Params, optimizer: Optimizer) -> TrainState:
    """Starts training at `params`, with both counters at 0.

    The state holds `params` themselves, so a donating update deletes the caller's arrays.
    """
    return TrainState(
        params=params,
        opt_state=optimizer.init(params),
        step=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
    )


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
