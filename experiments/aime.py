"""Train an agent on competition problems: `python -m experiments.aime`."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.math_problems import PRETRAINED, MathOptions, make_math_task
from experiments.options import Options
from experiments.progress import Console
from experiments.task import Task

__all__ = ["EXPERIMENT", "main", "make_task"]

TASKS = ("offline", "offline_easy", "offline_hard", "aime")


def make_task(options: Options, console: Console) -> Task:
    """Make the task: `offline` and its levels need no data, `aime` reads `--env.data`.

    Raises:
      OptionsError: an option is unknown, or the data cannot be read.
    """
    return make_math_task("aime", TASKS, options, console)


EXPERIMENT = Experiment(
    "aime",
    make_task,
    env=MathOptions,
    defaults={
        "all": {"task": "offline"},
        "tiny": {
            "iterations": 300,
            "max_new_tokens": 48,
            "warm_start": {"traces": 20_000},
            "evaluation": {"final_episodes": 512},
        },
        "pretrained": PRETRAINED,
    },
)


def main() -> None:
    """Run the experiment that the command line describes."""
    from experiments.runner import run_from_command_line

    run_from_command_line(EXPERIMENT)


if __name__ == "__main__":
    main()
