"""Train an agent to play Sokoban: `python -m experiments.sokoban`."""

from __future__ import annotations

import numpy as np

from envs.sokoban import (
    ACTIONS,
    Preset,
    get_preset,
    load_bank,
    make_sokoban,
    optimal_reference,
    random_reference,
    solve,
)
from experiments.progress import Console
from experiments.task import Reference, Task
from freshper_jax.rollout import Episodes

__all__ = ["main", "make_task"]


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

    def demonstrations(count: int, longest: int) -> tuple[Episodes, list[list[str]]]:
        short = np.flatnonzero(train.optimal_lengths <= longest)[:count]
        plans = [solve(train.cells[index]) or () for index in short]
        return play(short), [[f"<answer>{ACTIONS[a]}</answer>" for a in plan] for plan in plans]

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
        make_env=lambda split, rows, prompt: make_sokoban(
            settings, rows, split=split, prompt=prompt
        ),
        words=_words(settings),
        train_episodes=train_episodes,
        held_out_episodes=held_out_episodes,
        demonstrations=demonstrations,
        check_episodes=check_episodes,
        references=references,
    )


def _words(preset: Preset) -> tuple[str, ...]:
    """Return the words of a tiny policy's tokenizer.

    A cell is a word. So is a border with the line break in it: the frame of a board then
    takes few tokens, and a cell lies at the same offset in every board.
    """
    wall = "#" * preset.width
    borders = (f"{wall}\n#", "#\n#", f"#\n{wall}", f"\n{wall}", "\n#")
    env = make_sokoban(preset, 1, prompt="minimal")
    return (env.system_prompt, "<answer>", "</answer>", *ACTIONS, *"#_O√XPS", *borders)


def main() -> None:
    """Run the experiment that the command line describes."""
    from experiments.runner import run_from_command_line

    run_from_command_line("sokoban", make_task)


if __name__ == "__main__":
    main()
