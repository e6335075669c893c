"""Environments of NQ Search, for rollouts and for gymnasium."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from envs import checks
from envs.game import Game
from envs.nq_search.game import PRESETS, Rules, make_game
from envs.nq_search.offline import make_facts
from envs.nq_search.questions import split_questions
from envs.nq_search.readers import read_questions
from envs.retrieval import Retriever, make_corpus, make_retriever
from envs.single_env import GameEnv
from envs.vector_env import GameVectorEnv


def make_nq_search(
    preset: str | Rules = "default",
    num_envs: int = 1,
    *,
    seed: int | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> GameVectorEnv:
    """Makes the vector environment; without a file of questions, of the offline ones.

    Args:
        preset: `default`, `search-r1`, `paper`, or rules of your own.
        num_envs: the number of rows.
        seed: of the generator that draws questions where `reset` is given no seed.
        render_mode: None; there is nothing to see but text.
        **options: `split`, `data` and `retriever`, see `named_game`; `trim` and `failures`,
            see `make_game`; further ones change the preset, see `Rules`.
    """
    return GameVectorEnv(
        named_game(preset, **options), num_envs, seed=seed, render_mode=render_mode
    )


def make_single_nq_search(
    preset: str | Rules = "default", *, render_mode: str | None = None, **options: Any
) -> GameEnv:
    """Makes the environment of one row; see `make_nq_search`."""
    return GameEnv(named_game(preset, **options), render_mode=render_mode)


def named_game(
    preset: str | Rules = "default",
    *,
    split: str = "train",
    data: str | Path | None = None,
    retriever: Retriever | None = None,
    trim: Callable[..., list[str]] | None = None,
    failures: int = 8,
    **changes: Any,
) -> Game[Any]:
    """Makes the game of a preset.

    Args:
        preset: the name of rules, or rules.
        split: `train` or `held_out`; questions of a file are split by their content.
        data: a file of questions; by default the offline ones.
        retriever: what searches; by default BM25 over the offline passages.
        trim, failures: see `make_game`.
        **changes: fields of `Rules`.

    Raises:
        ValueError: an argument is out of range, or a file is given without a retriever.
    """
    if isinstance(preset, str):
        checks.one_of("preset", preset, tuple(PRESETS))
    rules = PRESETS[preset] if isinstance(preset, str) else preset
    if data is None:
        questions = make_facts().split.split(split)
    elif retriever is None:
        raise ValueError("retriever must be given with data: the offline passages do not fit it")
    else:
        questions = split_questions(read_questions(data)).split(split)
    if retriever is None:
        retriever = offline_retriever()
    settings = {} if trim is None else {"trim": trim}
    return make_game(
        questions, retriever, rules=replace(rules, **changes), failures=failures, **settings
    )


@functools.cache
def offline_retriever(kind: str = "bm25") -> Retriever:
    """Returns a retriever over the offline passages; they are indexed once a process."""
    return make_retriever(make_corpus(make_facts().passages), kind)
