"""Train state, update, loop, checkpoints and metrics."""

from freshper_jax.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    complete_steps,
    latest_step,
    read_meta,
    restore,
    save,
)
from freshper_jax.training.optimizer import (
    Optimizer,
    OptimizerConfig,
    make_optimizer,
    make_schedule,
)
from freshper_jax.training.state import TrainState, init_train_state
from freshper_jax.training.update import (
    Batch,
    LossConfig,
    TokenLogProbs,
    make_cloning_update,
    make_update,
)

__all__ = [
    "Batch",
    "Checkpoint",
    "CheckpointError",
    "LossConfig",
    "Optimizer",
    "OptimizerConfig",
    "TokenLogProbs",
    "TrainState",
    "complete_steps",
    "init_train_state",
    "latest_step",
    "make_cloning_update",
    "make_optimizer",
    "make_schedule",
    "make_update",
    "read_meta",
    "restore",
    "save",
]
