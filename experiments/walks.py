"""What the experiments on FrozenLake and CliffWalking have in common."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from envs import Game, GameVectorEnv
from envs.boards import coordinate_words
from envs.grid_walk import (
    PLAIN,
    MapSet,
    Preset,
    Scatter,
    WalkState,
    WalkTask,
    adapt,
    build_bank,
    make_game,
    plan_walks,
    reference_score,
    turn_maps,
)
from envs.prompts import STYLES
from experiments.options import Options, OptionsError
from experiments.task import Demonstrations, Reference, Split, Task
from freshper_jax.rollout import ChatRenderer, Episodes

__all__ = ["WalkOptions", "make_walk_task"]

# A tiny policy reads a list of things and places, shorter than the drawn map.
_TINY_STYLE, _STYLE = "coordinates", "default"
_MEASURED = 32  # maps, those with the most on them, on which the length of an episode is found
_ENDLESS = 2**31 - 1  # episodes on one map, or on slippery ones, are told apart by their seeds
# Where the seeds of what is cloned and checked begin, apart from the held-out ones, from 0 on.
_CLONED, _CHECKED = 2**40, 2**41


@dataclasses.dataclass(frozen=True)
class WalkOptions:
    """Changes to what --task says; None leaves a setting as it is there."""

    horizon: int | None = None
    """Actions an episode may take."""
    success_rate: float | None = None
    """Probability that a step goes where it is meant to go; 1 on firm ground."""
    hazard_reward: float | None = None
    """Reward of a step into a hole or onto a cliff."""
    plain: float | None = None
    """Probability that a cell is no hole or cliff, where maps are drawn."""
    min_path: int | None = None
    """Steps that a shortest way must take, where maps are drawn."""
    reward_scale: float = 1.0
    """What all rewards and the format penalty are multiplied by."""


def make_walk_task(name: str, walk: WalkTask, options: Options[WalkOptions]) -> Task:
    """Make the task of a preset.

    Args:
      name: names runs, with the preset.
      walk: what is walked.
      options: of the run.

    Raises:
      OptionsError: the preset, the style of prompt or a setting is none that there is.
    """
    style = options.prompt
    if options.task not in walk.presets:
        raise OptionsError(
            f"--task: got {options.task!r}, expected one of {', '.join(walk.presets)}"
        )
    if style is not None and style not in STYLES:
        raise OptionsError(f"--prompt: got {style!r}, expected one of {', '.join(STYLES)}")
    style = style or (_TINY_STYLE if options.preset == "tiny" else _STYLE)
    try:
        preset = adapt(walk.presets[options.task], **dataclasses.asdict(options.env))
        bank = build_bank(preset.source)
    except ValueError as error:
        raise OptionsError(f"--env: {error}") from error
    train, held_out = bank.train, bank.held_out
    alone = not isinstance(preset.source, Scatter)

    def game(maps: MapSet) -> Game[WalkState]:
        return make_game(walk, maps, preset, prompt=style)

    def train_episodes(seed: int, iteration: int, count: int) -> Episodes:
        rng = np.random.default_rng([seed, iteration])
        indices = rng.choice(len(train), count, replace=count > len(train))
        return Episodes.of(rng.integers(2**62, size=count), start_indices=indices)

    def held_out_episodes(count: int) -> Episodes:
        return _numbered(np.arange(count), len(held_out))

    def demonstrations(count: int, longest: int, rows: int) -> Demonstrations:
        short = np.flatnonzero(alone | (train.shortest <= longest))[:count]
        if not len(short):
            raise OptionsError(
                f"--warm-start.longest: got {longest}, expected at least {train.shortest.min()}, "
                "the steps to the nearest goal"
            )
        maps = train.take(short)
        maps = maps.take(np.zeros(count, int)) if alone else turn_maps(maps)
        seeds = np.arange(_CLONED, _CLONED + len(maps), dtype=np.uint64)
        plans = plan_walks(preset.rules, maps, seeds, preset.horizon)
        env = GameVectorEnv(game(maps), rows)
        replies = [[env.game.action_replies[action] for action in plan] for plan in plans]
        return Demonstrations(env, _numbered(seeds, len(maps)), replies)

    def check_episodes(count: int) -> Episodes:
        seeds = np.arange(_CHECKED, _CHECKED + count)
        return _numbered(seeds, max(len(train) // 2, 1), last=len(train) - 1)

    def make_env(split: Split, rows: int, renderer: ChatRenderer) -> GameVectorEnv:
        del renderer  # a map is as long as it is
        return GameVectorEnv(game(bank.split(split)), rows)

    def max_tokens(reply_tokens: int, renderer: ChatRenderer) -> int:
        fullest = [
            maps.take(np.argsort(-_things(maps), kind="stable")[:_MEASURED])
            for maps in (train, held_out)
        ]
        totals = []
        for maps in fullest:
            env = GameVectorEnv(game(maps), len(maps))
            shown, _ = env.reset(options={"start_indices": np.arange(len(maps))})
            total = max(map(len, renderer.open(env.system_prompt, shown)))
            # After a reply that is no action a turn is the longest, and nothing ends before time.
            for _ in range(preset.horizon - 1):
                shown, *_ = env.step([""] * len(maps))
                total += max(map(len, renderer.follow(shown, [False] * len(maps))))
            totals.append(total)
        return max(totals) + preset.horizon * reply_tokens

    def references(count: int) -> tuple[Reference, ...]:
        maps = held_out.take(np.arange(min(count, len(held_out))))
        random = reference_score(preset.rules, maps, preset.horizon, "random")
        optimal = reference_score(preset.rules, maps, preset.horizon, "optimal")
        return (
            Reference("random actions", random.success, random.score),
            Reference("optimal play", optimal.success, optimal.score),
        )

    return Task(
        name=f"{name}-{options.task}",
        identity=_digest(preset, style, train, held_out),
        max_tokens=max_tokens,
        held_out_count=_ENDLESS if alone or preset.rules.success_rate < 1 else len(held_out),
        make_env=make_env,
        words=_words(walk, train, game(train).system_prompt),
        train_episodes=train_episodes,
        held_out_episodes=held_out_episodes,
        demonstrations=demonstrations,
        check_episodes=check_episodes,
        references=references,
        stop_strings=("</answer>",),
    )


def _numbered(seeds: np.ndarray, count: int, *, last: int | None = None) -> Episodes:
    """Return an episode for each seed, over so many maps in turn: the first, or the last ones."""
    indices = np.arange(len(seeds)) % count
    return Episodes.of(seeds, start_indices=indices if last is None else last - indices)


def _things(maps: MapSet) -> np.ndarray:
    """Return how many cells of each map are not plain ground."""
    return (maps.ground != PLAIN).sum(axis=(1, 2))


def _digest(preset: Preset, style: str, *map_sets: MapSet) -> str:
    """Return a digest of the maps and of how they are played and shown."""
    digest = hashlib.sha256(repr((preset, style)).encode())
    for maps in map_sets:
        digest.update(maps.cells.tobytes())
    return digest.hexdigest()


def _words(walk: WalkTask, maps: MapSet, system_prompt: str) -> tuple[str, ...]:
    """Return the words of a tiny policy's tokenizer: a thing in its place is one word."""
    _, height, width = maps.ground.shape
    things = np.delete(coordinate_words(height, width, walk.symbols), PLAIN, axis=0)
    actions = next(iter(walk.presets.values())).rules.actions
    words = (system_prompt, "<answer>", "</answer>", *actions, *things.ravel().tolist())
    return tuple(dict.fromkeys(words))
