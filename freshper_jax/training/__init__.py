"""Train state, update, loop, checkpoints and metrics."""

from freshper_jax.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    complete_steps,
    latest_step,
    read_meta,
    restore,
    save,
    saved_steps,
)
from freshper_jax.training.cloning import CloningConfig, clone
from freshper_jax.training.drift import AGE_EDGES, age_bin_labels, drift_by_age
from freshper_jax.training.iteration import IterationConfig, Rollout, make_iteration
from freshper_jax.training.lengths import halvings, in_length_order, length_order
from freshper_jax.training.loss import Batch, CriticConfig, LossConfig
from freshper_jax.training.metrics import Metrics
from freshper_jax.training.optimizer import (
    Optimizer,
    OptimizerConfig,
    make_optimizer,
    make_schedule,
)
from freshper_jax.training.state import RunState, TrainState, init_train_state
from freshper_jax.training.update import (
    TokenLogProbs,
    make_cloning_update,
    make_update,
)

__all__ = [
    "AGE_EDGES",
    "Batch",
    "Checkpoint",
    "CheckpointError",
    "CloningConfig",
    "CriticConfig",
    "IterationConfig",
    "LossConfig",
    "Metrics",
    "Optimizer",
    "OptimizerConfig",
    "Rollout",
    "RunState",
    "TokenLogProbs",
    "TrainState",
    "age_bin_labels",
    "clone",
    "complete_steps",
    "drift_by_age",
    "halvings",
    "in_length_order",
    "init_train_state",
    "latest_step",
    "length_order",
    "make_cloning_update",
    "make_iteration",
    "make_optimizer",
    "make_schedule",
    "make_update",
    "read_meta",
    "restore",
    "save",
    "saved_steps",
]
