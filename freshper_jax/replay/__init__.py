"""Freshness-aware prioritized replay as pure functions; needs only jax and chex."""

from freshper_jax.replay import base_priority
from freshper_jax.replay.base_priority import (
    absolute_return,
    constant,
    length,
    mean_absolute_advantage,
    mean_absolute_td_error,
)
from freshper_jax.replay.buffer import ReplayBuffer, make_buffer
from freshper_jax.replay.storage import state_nbytes
from freshper_jax.replay.types import Handles, ReplayState, ReplayStats, Sample
from freshper_jax.replay.weights import effective_sample_size

__all__ = [
    "Handles",
    "ReplayBuffer",
    "ReplayState",
    "ReplayStats",
    "Sample",
    "absolute_return",
    "base_priority",
    "constant",
    "effective_sample_size",
    "length",
    "make_buffer",
    "mean_absolute_advantage",
    "mean_absolute_td_error",
    "state_nbytes",
]
