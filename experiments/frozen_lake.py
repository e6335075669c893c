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
    defaults={"all": {"task": "4x4"}},
)


def main() -> None:
    """Run the experiment that the command line describes."""
    from experiments.runner import run_from_command_line

    run_from_command_line(EXPERIMENT)


if __name__ == "__main__":
    main()
