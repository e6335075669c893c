"""Train an agent on competition problems: `python -m experiments.aime`."""

from __future__ import annotations

from experiments.math_problems import MathOptions, make_math_task
from experiments.options import Options
from experiments.progress import Console
from experiments.task import Task

__all__ = ["make_task"]

TASKS = ("offline", "offline_easy", "offline_hard", "aime")


def make_task(options: Options, console: Console) -> Task:
    """Make the task: `offline` and its levels need no data, `aime` reads `--env.data`.

    Raises:
      OptionsError: an option is unknown, or the data cannot be read.
    """
    return make_math_task("aime", TASKS, options, getattr(options, "env", MathOptions()), console)
