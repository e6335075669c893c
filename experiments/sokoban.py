"""Train an agent to play Sokoban: `python -m experiments.sokoban`."""

from __future__ import annotations

import numpy as np

from envs.sokoban import (
    ACTIONS,
    SYMBOLS,
    Preset,
    SokobanVectorEnv,
    coordinate_words,
    get_preset,
    load_bank,
    make_level_set,
    make_sokoban,
    optimal_reference,
    random_reference,
    solve,
)
from envs.sokoban.symmetry import symmetries
from experiments.progress import Console
from experiments.task import Demonstrations, Reference, Task
from freshper_jax.rollout import Episodes

__all__ = ["main", "make_task"]

# What a tiny policy reads: a list of things and places, a third shorter than the drawn board.
PROMPT = "coordinates"


def make_task(preset: str, console: Console) -> Task:
    """Make the task of a difficulty preset; its level bank is built once, then cached.

    Raises:
      ValueError: the preset is unknown.
    """
    settings = get_preset(preset)
    with console.counting(f"Sokoban levels ({preset})") as progress:
        bank = load_bank(settings, progress=progress)
    train, held_out = bank.train, bank.held_out

    def play(indices: np.ndarray) -> Episodes:
        return Episodes.of(indices, level_indices=indices)

    def train_episodes(seed: int, iteration: int, count: int) -> Episodes:
        rng = np.random.default_rng([seed, iteration])
        return play(rng.choice(len(train), count, replace=count > len(train)))

    def held_out_episodes(count: int) -> Episodes:
        return play(np.arange(count) % len(held_out))

    def demonstrations(count: int, longest: int, rows: int) -> Demonstrations:
        short = np.flatnonzero(train.optimal_lengths <= longest)[:count]
        levels = make_level_set(np.concatenate(list(symmetries(train.cells[short]))))
        env = SokobanVectorEnv(levels, rows, horizon=settings.horizon, prompt=PROMPT)
        plans = [solve(cells) or () for cells in levels.cells]
        replies = [[f"<answer>{ACTIONS[action]}</answer>" for action in plan] for plan in plans]
        return Demonstrations(env, play(np.arange(len(levels))), replies)

    def check_episodes(count: int) -> Episodes:
        return play(len(train) - 1 - np.arange(count) % len(train))

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
        make_env=lambda split, rows: make_sokoban(settings, rows, split=split, prompt=PROMPT),
        words=_words(settings),
        train_episodes=train_episodes,
        held_out_episodes=held_out_episodes,
        demonstrations=demonstrations,
        check_episodes=check_episodes,
        references=references,
    )


def _words(preset: Preset) -> tuple[str, ...]:
    """Return the words of a tiny policy's tokenizer: a thing in its place is one word."""
    env = make_sokoban(preset, 1, prompt=PROMPT)
    things = np.delete(coordinate_words(preset.height, preset.width), SYMBOLS.index("_"), axis=0)
    return (env.system_prompt, "<answer>", "</answer>", *ACTIONS, *things.ravel().tolist())


def main() -> None:
    """Run the experiment that the command line describes."""
    from experiments.runner import run_from_command_line

    run_from_command_line("sokoban", make_task)


if __name__ == "__main__":
    main()
