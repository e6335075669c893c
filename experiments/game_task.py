"""From a game to the task of an experiment."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envs import Game, GameVectorEnv
from experiments.options import OptionsError
from experiments.task import Demonstrations, Reference, Split, Task
from freshper_jax.rollout import ChatRenderer, Episodes

__all__ = ["make_game_task"]

_MEASURED = 64  # starts on which the length of an episode is measured, and the task recognised


def make_game_task(
    name: str,
    train: Game[Any],
    held_out: Game[Any],
    *,
    words: Sequence[str],
    solve: Callable[[int], Sequence[str] | None] = lambda _: None,
    references: Callable[[int], tuple[Reference, ...]] = lambda _: (),
    longest: dict[Split, Sequence[int]] | None = None,
    identity: str = "",
    stop_strings: tuple[str, ...] = (),
    metrics: tuple[str, ...] = (),
) -> Task:
    """Make the task of two games that differ in their starts.

    Of the training starts the last eighth is kept from demonstrations, to check on.

    Args:
      name: of the task; names runs.
      train, held_out: the same game on the starts to train on and on those to measure on.
      words: what a tiny policy's tokenizer must know beside the system prompt.
      solve: from a training start to the replies that win it, None where none are shown.
      references: `(count) -> references` on the first `count` held-out starts.
      longest: starts among which those with the longest episodes are, by split; by default
        the first few. They are played with empty replies to find the tokens of an episode.
      identity: what decides episodes and is not seen in the first observations.
      stop_strings, metrics: see `Task`.

    Raises:
      OptionsError: of `demonstrations`, where there are none.
    """
    games: dict[Split, Game[Any]] = {"train": train, "held_out": held_out}
    checked = -(-train.starts // 8)

    def play(starts: np.ndarray) -> Episodes:
        return Episodes.of(starts, start_indices=starts)

    def train_episodes(seed: int, iteration: int, count: int) -> Episodes:
        rng = np.random.default_rng([seed, iteration])
        starts = rng.choice(train.starts, count, replace=count > train.starts)
        # Chance differs each time that a start is played.
        return Episodes.of(rng.integers(2**62, size=count), start_indices=starts)

    def demonstrations(count: int, most_turns: int, rows: int) -> Demonstrations:
        starts: list[int] = []
        replies: list[Sequence[str]] = []
        for start in range(train.starts - checked):
            found = solve(start)
            if found is not None and len(found) <= most_turns and len(starts) < count:
                starts.append(start)
                replies.append(found)
        if not starts:
            raise OptionsError(
                "--warm-start.traces: the task has no demonstrations that fit, expected 0"
            )
        return Demonstrations(GameVectorEnv(train, rows), play(np.array(starts)), replies)

    def max_tokens(reply_tokens: int, renderer: ChatRenderer) -> int:
        most = 0
        for split, game in games.items():
            some = (longest or {}).get(split, range(min(game.starts, _MEASURED)))
            env = GameVectorEnv(game, len(some))
            shown, _ = env.reset(seed=0, options={"start_indices": np.array(some)})
            length = np.array([len(ids) for ids in renderer.open(env.system_prompt, shown)])
            ended = np.zeros(len(some), bool)
            while True:
                length += np.where(ended, 0, reply_tokens)
                shown, _, terminated, truncated, _ = env.step([""] * len(some))
                ended |= terminated | truncated
                if ended.all():
                    break
                follow = renderer.follow(shown, [False] * len(some))
                length += np.where(ended, 0, [len(ids) for ids in follow])
            most = max(most, int(length.max()))
        return most

    return Task(
        name=name,
        identity=_digest(games, identity),
        max_tokens=max_tokens,
        held_out_count=held_out.starts,
        make_env=lambda split, rows, _: GameVectorEnv(games[split], rows),
        words=tuple(dict.fromkeys((train.system_prompt, *words))),
        train_episodes=train_episodes,
        held_out_episodes=lambda count: play(np.arange(count)),
        demonstrations=demonstrations,
        check_episodes=lambda count: play(train.starts - 1 - np.arange(count) % checked),
        references=references,
        stop_strings=stop_strings,
        metrics=metrics,
    )


def _digest(games: dict[Split, Game[Any]], identity: str) -> str:
    """Return a digest of how some episodes of the games begin, and of what else is told."""
    digest = hashlib.sha256(identity.encode())
    for game in games.values():
        starts = np.arange(min(game.starts, _MEASURED))
        shown, _ = GameVectorEnv(game, len(starts)).reset(seed=0, options={"start_indices": starts})
        facts = (game.starts, game.horizon, game.system_prompt, game.format_penalty, tuple(shown))
        digest.update(repr(facts).encode())
    return digest.hexdigest()
