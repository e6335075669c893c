"""What random and optimal play reach: `python -m experiments.references [TASK/PRESET ...]`.

They are measured on the held-out episodes of the final table of an experiment, whose
presets are named as its command and its `--task` are: `frozen_lake/4x4`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import rich.console
from rich.table import Column, Table

from experiments.experiment import Experiment
from experiments.options import OptionsError
from experiments.progress import Console
from experiments.runner import parse_options

__all__ = ["main", "reference_table"]

# What is shown where nothing is named.
PRESETS = (
    *(f"sokoban/{name}" for name in ("simple", "hard", "long")),
    *(f"frozen_lake/{name}" for name in ("4x4", "8x8", "slippery-4x4", "slippery-8x8", "paper")),
    *(f"frozen_lake/{name}" for name in ("fixed-4x4", "fixed-8x8", "corners-4x4", "corners-8x8")),
    *(f"cliff_walking/{name}" for name in ("standard", "slippery", "random", "paper")),
    *(f"nq_search/{name}" for name in ("invented", "one_hop", "facts")),
    *(f"gsm8k/{name}" for name in ("arithmetic", "long_stories")),
    *(f"aime/{name}" for name in ("offline", "offline_hard")),
)


def reference_table(names: Sequence[str], console: Console) -> Table:
    """Return the table of the references of presets, each named as `task/preset`.

    Raises:
      OptionsError: there is no such task or preset.
    """
    table = Table(Column("task", no_wrap=True), "episodes", "play", "success", "score")
    for name in names:
        experiment, _, preset = name.partition("/")
        options = parse_options(_find(experiment), [f"--task={preset}"])
        task = _find(experiment).make_task(options, console)
        count = min(options.evaluation.final_episodes, task.held_out_count)
        for one in task.references(count):
            table.add_row(name, str(count), one.name, f"{one.success:.3f}", f"{one.score:.3f}")
    return table


def _find(name: str) -> Experiment:
    try:
        return importlib.import_module(f"experiments.{name}").EXPERIMENT
    except (ImportError, AttributeError) as error:
        raise OptionsError(f"no experiment of the name {name!r}") from error


def main() -> None:
    """Print the table of the presets named on the command line."""
    parser = argparse.ArgumentParser(description="What random and optimal play reach.")
    parser.add_argument("presets", nargs="*", metavar="TASK/PRESET", help="frozen_lake/4x4, say")
    console = rich.console.Console()
    try:
        names = parser.parse_args().presets or PRESETS
        console.print(reference_table(names, Console(console)))
    except OptionsError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
