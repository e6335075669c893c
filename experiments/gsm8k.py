"""Train an agent on word problems: `python -m experiments.gsm8k`."""

from __future__ import annotations

from envs.math_problems.arithmetic import LEVELS
from experiments.experiment import Experiment
from experiments.math_problems import PRETRAINED, MathOptions, make_math_task
from experiments.options import Options
from experiments.progress import Console
from experiments.task import Task

__all__ = ["EXPERIMENT", "main", "make_task"]

TASKS = ("arithmetic", *LEVELS, "gsm8k")


def make_task(options: Options, console: Console) -> Task:
    """Make the task: `arithmetic` and its levels are made offline, `gsm8k` reads `--env.data`.

    Raises:
      OptionsError: an option is unknown, or the data cannot be read.
    """
    return make_math_task("gsm8k", TASKS, options, console)


EXPERIMENT = Experiment(
    "gsm8k",
    make_task,
    env=MathOptions,
    defaults={
        "all": {"task": "arithmetic"},
        "tiny": {
            "iterations": 300,
            "max_new_tokens": 24,
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
