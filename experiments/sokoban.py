"""Train an agent to play Sokoban: `python -m experiments.sokoban`."""

from __future__ import annotations

import hashlib

import numpy as np

from envs import Game, GameVectorEnv
from envs.prompts import STYLES
from envs.sokoban import (
    ACTIONS,
    PRESETS,
    SYMBOLS,
    LevelSet,
    Preset,
    SokobanState,
    coordinate_words,
    load_bank,
    make_game,
    make_level_set,
    optimal_reference,
    random_reference,
    solve,
)
from envs.symmetry import symmetries
from experiments.experiment import Experiment
from experiments.options import Options, OptionsError
from experiments.progress import Console
from experiments.task import Demonstrations, Reference, Split, Task
from freshper_jax.rollout import ChatRenderer, Episodes

__all__ = ["EXPERIMENT", "main", "make_task"]

# A tiny policy reads a list of things and places, a third shorter than the drawn board.
_TINY_STYLE, _STYLE = "coordinates", "default"
_MEASURED = 256  # boards, those with the most on them, on which the length of an episode is found


def make_task(options: Options, console: Console) -> Task:
    """Make the task of a difficulty preset; its level bank is built once, then cached.

    Raises:
      OptionsError: the preset or the style of prompt is unknown.
    """
    preset, style = options.task, options.prompt
    if preset not in PRESETS:
        raise OptionsError(f"--task: got {preset!r}, expected one of {', '.join(PRESETS)}")
    if style is not None and style not in STYLES:
        raise OptionsError(f"--prompt: got {style!r}, expected one of {', '.join(STYLES)}")
    style = style or (_TINY_STYLE if options.preset == "tiny" else _STYLE)
    settings = PRESETS[preset]
    with console.counting(f"Sokoban levels ({preset})") as progress:
        bank = load_bank(settings, progress=progress)
    train, held_out = bank.train, bank.held_out

    def game(levels: LevelSet) -> Game[SokobanState]:
        return make_game(levels, horizon=settings.horizon, prompt=style)

    def play(indices: np.ndarray) -> Episodes:
        return Episodes.of(indices, start_indices=indices)

    def train_episodes(seed: int, iteration: int, count: int) -> Episodes:
        rng = np.random.default_rng([seed, iteration])
        return play(rng.choice(len(train), count, replace=count > len(train)))

    def held_out_episodes(count: int) -> Episodes:
        return play(np.arange(count))

    def demonstrations(count: int, longest: int, rows: int) -> Demonstrations:
        short = np.flatnonzero(train.optimal_lengths <= longest)[:count]
        levels = make_level_set(np.concatenate(list(symmetries(train.cells[short]))))
        env = GameVectorEnv(game(levels), rows)
        replies = [[f"<answer>{ACTIONS[a]}</answer>" for a in _plan(c)] for c in levels.cells]
        return Demonstrations(env, play(np.arange(len(levels))), replies)

    def check_episodes(count: int) -> Episodes:
        return play(len(train) - 1 - np.arange(count) % (len(train) // 2))

    def make_env(split: Split, rows: int, renderer: ChatRenderer) -> GameVectorEnv:
        del renderer  # a board is as long as it is
        return GameVectorEnv(game(bank.split(split)), rows)

    def max_tokens(reply_tokens: int, renderer: ChatRenderer) -> int:
        openings, turns = [], []
        for split in ("train", "held_out"):
            env = make_env(split, _MEASURED, renderer)
            fullest = np.argsort(-_things(bank.split(split)), kind="stable")[:_MEASURED]
            indices = np.resize(fullest, _MEASURED)
            shown, _ = env.reset(options={"start_indices": indices})
            openings += renderer.open(env.system_prompt, shown)
            # After a reply that is no action a turn is the longest.
            shown, *_ = env.step([""] * _MEASURED)
            turns += renderer.follow(shown, [False] * _MEASURED)
        opening, turn = max(map(len, openings)), max(map(len, turns))
        return opening + (settings.horizon - 1) * turn + settings.horizon * reply_tokens

    def references(count: int) -> tuple[Reference, ...]:
        levels = held_out.take(np.arange(min(count, len(held_out))))
        random = random_reference(levels, settings.horizon)
        optimal = optimal_reference(levels, settings.horizon)
        return (
            Reference("random actions", random.success, random.score),
            Reference("optimal play", optimal.success, optimal.score),
        )

    return Task(
        name=f"sokoban-{preset}",
        identity=_digest(settings, style, train, held_out),
        max_tokens=max_tokens,
        held_out_count=len(held_out),
        make_env=make_env,
        words=_words(settings, game(train).system_prompt),
        train_episodes=train_episodes,
        held_out_episodes=held_out_episodes,
        demonstrations=demonstrations,
        check_episodes=check_episodes,
        references=references,
        stop_strings=("</answer>",),
    )


def _plan(cells: np.ndarray) -> tuple[int, ...]:
    plan = solve(cells)
    if plan is None:
        raise RuntimeError("a level of the bank has no solution")
    return plan


def _things(levels: LevelSet) -> np.ndarray:
    """Return how many cells inside each board's frame are not bare floor."""
    inside = levels.cells[:, 1:-1, 1:-1].reshape(len(levels), -1)
    return (inside != SYMBOLS.index("_")).sum(axis=1)


def _digest(preset: Preset, style: str, *level_sets: LevelSet) -> str:
    """Return a digest of the levels and of how they are played and shown."""
    digest = hashlib.sha256(repr((preset, style)).encode())
    for levels in level_sets:
        digest.update(levels.cells.tobytes())
    return digest.hexdigest()


def _words(preset: Preset, system_prompt: str) -> tuple[str, ...]:
    """Return the words of a tiny policy's tokenizer: a thing in its place is one word."""
    things = np.delete(coordinate_words(preset.height, preset.width), SYMBOLS.index("_"), axis=0)
    return (system_prompt, "<answer>", "</answer>", *ACTIONS, *things.ravel().tolist())


EXPERIMENT = Experiment("sokoban", make_task)


def main() -> None:
    """Run the experiment that the command line describes."""
    from experiments.runner import run_from_command_line

    run_from_command_line(EXPERIMENT)


if __name__ == "__main__":
    main()
