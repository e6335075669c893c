"""How fast the environments are: `python -m benchmarks.envs [--json FILE]`.

All rates are per second of CPU time of one core.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from envs import GameVectorEnv
from envs.actions import parse_actions
from envs.cliff_walking import make_cliff_walking
from envs.frozen_lake import make_frozen_lake
from envs.sokoban import (
    ACTIONS,
    PRESETS,
    LevelSet,
    build_bank,
    make_boards,
    make_game,
    render_rgb,
    render_text,
    solve,
    step,
)
from envs.sokoban.generation import carve_layouts, solvable_starts

ROWS = 1024
TARGETS = {
    "steps_per_s": 1_000_000,
    "boards_to_text_per_s": 100_000,
    "layouts_6x6_per_s": 150,
}
ITERATION_STEPS = 10_240  # the paper's iteration: 128 groups of 8 episodes of 10 turns
ITERATION_SECONDS = 0.2  # at most, parsing and rendering included, in every style of prompt
STYLES = ("minimal", "coordinates", "default", "reference")


def rate(run: Callable[[], object], items: int, *, seconds: float = 0.5, repeats: int = 3) -> float:
    """Returns items a CPU second of `run`, which handles `items` a call; best of the repeats."""
    run()
    best = 0.0
    for _ in range(repeats):
        calls, start = 0, time.process_time()
        while (used := time.process_time() - start) < seconds:
            run()
            calls += 1
        best = max(best, calls * items / used)
    return best


def measure() -> dict[str, float]:
    """Returns every figure by name."""
    start = time.process_time()
    levels = build_bank(PRESETS["simple"]).train
    figures = {"bank_simple_build_s": time.process_time() - start}
    for name in ("hard", "long"):
        start = time.process_time()
        build_bank(PRESETS[name])
        figures[f"bank_{name}_build_s"] = time.process_time() - start
    rng = np.random.default_rng(0)
    boards = make_boards(levels.cells[:ROWS])
    actions = rng.integers(0, len(ACTIONS), ROWS)
    replies = [f"<answer>{ACTIONS[action]}</answer>" for action in actions]
    wordy = "I look at the board and think. " * 15 + replies[0]
    figures |= {
        "steps_per_s": rate(lambda: step(boards, actions), ROWS),
        "boards_to_text_per_s": rate(lambda: render_text(boards.cells), ROWS),
        "boards_to_spaced_text_per_s": rate(lambda: render_text(boards.cells, spaced=True), ROWS),
        "boards_to_rgb_per_s": rate(lambda: render_rgb(boards.cells[0]), 1),
        "replies_parsed_per_s": rate(lambda: parse_actions(wordy, ACTIONS), 1),
        "text_env_steps_per_s_minimal": _text_env_rate(levels, replies, "minimal"),
        "text_env_steps_per_s_default": _text_env_rate(levels, replies, "default"),
        "levels_solved_per_s": rate(lambda: [solve(cells) for cells in levels.cells[:200]], 200),
    }
    for size, boxes, longest in ((6, 1, 19), (8, 2, 20)):
        draw = np.random.default_rng(0)

        def generate(size=size, boxes=boxes, longest=longest, draw=draw) -> object:
            return solvable_starts(carve_layouts(draw, 64, size, size, boxes), longest)

        figures[f"layouts_{size}x{size}_per_s"] = rate(generate, 64)
    return figures | measure_iterations(levels)


def grid_tasks(levels: LevelSet) -> dict[str, Callable[[str], GameVectorEnv]]:
    """Returns by name how each task that is played on a grid is made in a style of prompt."""
    return {
        "sokoban": lambda style: GameVectorEnv(make_game(levels, horizon=10, prompt=style), ROWS),
        "frozen_lake_4x4": lambda style: make_frozen_lake("4x4", ROWS, prompt=style),
        "frozen_lake_slippery_8x8": lambda style: make_frozen_lake(
            "slippery-8x8", ROWS, prompt=style, horizon=10
        ),
        "cliff_walking": lambda style: make_cliff_walking(
            "standard", ROWS, prompt=style, horizon=10
        ),
    }


def measure_iterations(levels: LevelSet) -> dict[str, float]:
    """Returns the CPU seconds of `ITERATION_STEPS` steps of each grid task, by task and style."""
    return {
        f"iteration_{name}_{style}_s": iteration_seconds(make(style))
        for name, make in grid_tasks(levels).items()
        for style in STYLES
    }


def iteration_seconds(env: GameVectorEnv, *, repeats: int = 3) -> float:
    """Returns the CPU seconds of `ITERATION_STEPS` steps with long replies; best of the repeats.

    Every tenth turn the rows start anew, and the replies are what a model that thinks first
    gives: some fifty words, and one of the actions at random.
    """
    rng = np.random.default_rng(0)
    thought = "I look at the board and think. " * 7
    turns = [
        [f"<think>{thought}</think>{env.game.action_replies[a]}" for a in row]
        for row in rng.integers(0, len(env.game.action_replies), (10, env.num_envs))
    ]
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for step_number in range(ITERATION_STEPS // env.num_envs):
            if step_number % len(turns) == 0:
                env.reset(seed=0)
            env.step(turns[step_number % len(turns)])
        best = min(best, time.process_time() - start)
    return best


def _text_env_rate(levels: LevelSet, replies: list[str], prompt: str) -> float:
    """Returns replies a CPU second through the whole environment, parsing and text included."""
    env = GameVectorEnv(make_game(levels, horizon=1_000_000, prompt=prompt), ROWS)
    env.reset(options={"start_indices": np.arange(ROWS)})
    return rate(lambda: env.step(replies), ROWS)


def main() -> None:
    """Measures, prints a table, and writes the figures as JSON where asked to."""
    parser = argparse.ArgumentParser(description="How fast the environments are, on one core.")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    path = parser.parse_args().json
    if path is not None and not path.parent.is_dir():
        parser.error(f"--json: there is no folder {path.parent}")
    figures = measure()
    for name, value in figures.items():
        target = f"  (at least {TARGETS[name]:,})" if name in TARGETS else ""
        if name.startswith("iteration_"):
            target = f"  (at most {ITERATION_SECONDS})"
        print(f"{name:44} {value:>14,.{3 if name.endswith('_s') and value < 10 else 1}f}{target}")
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
