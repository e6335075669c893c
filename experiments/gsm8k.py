"""Train an agent on word problems: `python -m experiments.gsm8k`."""

from __future__ import annotations

from envs.math_problems.arithmetic import LEVELS
from experiments.math_problems import MathOptions, make_math_task
from experiments.options import Options
from experiments.progress import Console
from experiments.task import Task

__all__ = ["make_task"]

TASKS = ("arithmetic", *LEVELS, "gsm8k")


def make_task(options: Options, console: Console) -> Task:
    """Make the task: `arithmetic` and its levels are made offline, `gsm8k` reads `--env.data`.

    Raises:
      OptionsError: an option is unknown, or the data cannot be read.
    """
    return make_math_task("gsm8k", TASKS, options, getattr(options, "env", MathOptions()), console)
