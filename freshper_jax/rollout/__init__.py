"""Multi-turn episodes over text environments.

A policy and a vectorised environment make `Trajectory` batches: append-only token rows with
the log-probability of every sampled token under the distribution it was sampled from.
"""

from freshper_jax.rollout.chat import ChatRenderer, make_chat_renderer
from freshper_jax.rollout.collect import (
    Episodes,
    EpisodeStats,
    Policy,
    Replies,
    RolloutError,
    TextVectorEnv,
    collect,
)
from freshper_jax.rollout.policies import ModelPolicy, ScriptedPolicy
from freshper_jax.rollout.trajectory import Trajectory
from freshper_jax.rollout.word_tokenizer import make_word_tokenizer

__all__ = [
    "ChatRenderer",
    "EpisodeStats",
    "Episodes",
    "ModelPolicy",
    "Policy",
    "Replies",
    "RolloutError",
    "ScriptedPolicy",
    "TextVectorEnv",
    "Trajectory",
    "collect",
    "make_chat_renderer",
    "make_word_tokenizer",
]
