"""Freshness-aware prioritized replay as pure functions; needs only jax, chex and numpy."""

from freshper_jax.replay import base_priority, theory
from freshper_jax.replay.auto_tau import AutoTau, AutoTauState
from freshper_jax.replay.base_priority import (
    absolute_return,
    constant,
    length,
    mean_absolute_advantage,
    mean_absolute_td_error,
)
from freshper_jax.replay.buffer import ReplayBuffer, make_buffer
from freshper_jax.replay.reweigh import reweigh
from freshper_jax.replay.sharded import make_sharded_buffer
from freshper_jax.replay.storage import state_nbytes
from freshper_jax.replay.theory import (
    ess_fraction_bound_from_kl,
    ess_fraction_from_renyi2,
    ess_of_log_weights,
    freshness,
    mean_drawn_age,
    priority_half_life,
    renyi2_divergence,
    sampling_half_life,
    tau_from_drift_rate,
    tau_from_half_life,
)
from freshper_jax.replay.types import Handles, ReplayState, ReplayStats, Sample
from freshper_jax.replay.weights import effective_sample_size

__all__ = [
    "AutoTau",
    "AutoTauState",
    "Handles",
    "ReplayBuffer",
    "ReplayState",
    "ReplayStats",
    "Sample",
    "absolute_return",
    "base_priority",
    "constant",
    "effective_sample_size",
    "ess_fraction_bound_from_kl",
    "ess_fraction_from_renyi2",
    "ess_of_log_weights",
    "freshness",
    "length",
    "make_buffer",
    "make_sharded_buffer",
    "mean_absolute_advantage",
    "mean_absolute_td_error",
    "mean_drawn_age",
    "priority_half_life",
    "renyi2_divergence",
    "reweigh",
    "sampling_half_life",
    "state_nbytes",
    "tau_from_drift_rate",
    "tau_from_half_life",
    "theory",
]
