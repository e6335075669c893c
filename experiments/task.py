"""What an experiment needs to know of a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from freshper_jax.rollout import ChatRenderer, Episodes, TextVectorEnv

__all__ = ["Demonstrations", "Reference", "Split", "Task"]

Split = Literal["train", "held_out"]


@dataclasses.dataclass(frozen=True)
class Reference:
    """What a policy that is no model reaches: `success` a share, `score` the task's own."""

    name: str
    success: float
    score: float


@dataclasses.dataclass(frozen=True)
class Demonstrations:
    """Episodes to be cloned: the environment that plays them, and the replies of each."""

    env: TextVectorEnv
    episodes: Episodes
    replies: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task as pure functions over its fixed training and held-out episodes.

    name: names runs.
    identity: a digest of all that decides the episodes; names caches.
    max_tokens: tokens that the longest episode can take, `(tokens of a reply, renderer) -> T`.
    held_out_count: distinct held-out episodes.
    make_env: `(split, rows, renderer) -> environment`; the chat format is there for tasks that
      cut what they show at a number of tokens.
    words: what a word-level tokenizer must know, for tiny policies.
    train_episodes: `(seed, iteration, count) -> Episodes`, the same at every call.
    held_out_episodes: `(count) -> Episodes`, distinct.
    demonstrations: `(count, longest, rows) -> Demonstrations`, solutions of at most `longest`
      turns of `count` training episodes, and what follows from them by symmetry.
    check_episodes: `(count) -> Episodes` from training, apart from the demonstrations.
    references: `(count) -> references` on the held-out episodes.
    stop_strings: what ends a reply of a pretrained model, which may go on after its answer.
    metrics: infos, beside success and score, whose means over episodes are reported.
    """

    name: str
    identity: str
    max_tokens: Callable[[int, ChatRenderer], int]
    held_out_count: int
    make_env: Callable[[Split, int, ChatRenderer], TextVectorEnv]
    words: tuple[str, ...]
    train_episodes: Callable[[int, int, int], Episodes]
    held_out_episodes: Callable[[int], Episodes]
    demonstrations: Callable[[int, int, int], Demonstrations]
    check_episodes: Callable[[int], Episodes]
    references: Callable[[int], tuple[Reference, ...]]
    stop_strings: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
