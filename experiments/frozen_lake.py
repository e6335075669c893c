"""Train an agent to cross a frozen lake: `python -m experiments.frozen_lake`."""

from __future__ import annotations

from envs.frozen_lake import FROZEN_LAKE
from experiments.experiment import Experiment
from experiments.options import Options
from experiments.progress import Console
from experiments.task import Task
from experiments.walks import WalkOptions, make_walk_task

__all__ = ["EXPERIMENT", "main"]


def _make_task(options: Options[WalkOptions], console: Console) -> Task:
    del console  # maps are drawn in a moment
    return make_walk_task("frozen_lake", FROZEN_LAKE, options)


EXPERIMENT = Experiment(
    "frozen_lake",
    _make_task,
    env=WalkOptions,
    defaults={
        "all": {"task": "4x4"},
        # Walks are short, so an iteration takes twice as many as elsewhere. They pay 1 or nothing:
        # without a bonus on entropy the policy settles on the first ways that lead anywhere.
        "tiny": {
            "iterations": 150,
            "episodes": 128,
            "learning": {"learning_rate": 1e-3, "entropy_coefficient": 0.02},
            "warm_start": {"check_every": 5},
        },
    },
)


def main() -> None:
    """Run the experiment that the command line describes."""
    from experiments.runner import run_from_command_line

    run_from_command_line(EXPERIMENT)


if __name__ == "__main__":
    main()
