"""What an experiment needs to know of a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from freshper_jax.rollout import Episodes, TextVectorEnv

__all__ = ["Reference", "Split", "Task"]

Split = Literal["train", "held_out"]


@dataclasses.dataclass(frozen=True)
class Reference:
    """What a policy that is no model reaches: `success` a share, `score` the task's own."""

    name: str
    success: float
    score: float


@dataclasses.dataclass(frozen=True)
class Task:
    """A task as pure functions over its fixed training and held-out episodes.

    name: names runs and caches.
    make_env: `(split, rows, prompt) -> environment`; prompt is `minimal` for tiny policies.
    words: what a word-level tokenizer must know, for tiny policies.
    train_episodes: `(seed, iteration, count) -> Episodes`, the same at every call.
    held_out_episodes: `(count) -> Episodes`, distinct where the supply allows.
    demonstrations: `(count, longest) -> (Episodes, replies)`, solutions of training episodes
      that take at most `longest` turns.
    check_episodes: `(count) -> Episodes` from training, apart from the demonstrations.
    references: `(count) -> references` on the held-out episodes.
    """

    name: str
    make_env: Callable[[Split, int, str], TextVectorEnv]
    words: tuple[str, ...]
    train_episodes: Callable[[int, int, int], Episodes]
    held_out_episodes: Callable[[int], Episodes]
    demonstrations: Callable[[int, int], tuple[Episodes, Sequence[Sequence[str]]]]
    check_episodes: Callable[[int], Episodes]
    references: Callable[[int], tuple[Reference, ...]]
