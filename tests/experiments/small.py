"""Runs small enough for tests: a random policy, few episodes, a small buffer."""

from pathlib import Path

import rich.console

from experiments.experiment import Experiment
from experiments.progress import Console
from experiments.runner import parse_options, run
from experiments.sokoban import EXPERIMENT

FLAGS = (
    "--episodes=8",
    "--iterations=4",
    "--replay.batch=8",
    "--replay.capacity=64",
    "--warm-start.traces=0",
    "--evaluation.every=2",
    "--evaluation.episodes=8",
    "--evaluation.final-episodes=16",
    "--checkpoint-every=2",
    "--max-tokens=96",
    "--learning.microbatches=1",
)


def run_small(out: Path, *flags: str, experiment: Experiment = EXPERIMENT) -> tuple[Path, str]:
    """Run with the flags and return the run directory and what was printed."""
    options = parse_options(experiment, [*FLAGS, f"--out={out}", *flags])
    with (out.parent / f"{out.name}.txt").open("w+") as file:
        console = Console(rich.console.Console(file=file, width=120), every=1)
        path = run(options, experiment.make_task, console)
        file.seek(0)
        return path, file.read()
