"""What the commands that run experiments have in common."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

from experiments.experiment import Experiment
from experiments.options import OptionsError

__all__ = ["experiment_named", "split_flags"]


def experiment_named(task: str) -> Experiment:
    """Return the experiment that `--task` names.

    Raises:
      OptionsError: there is none.
    """
    name = f"experiments.{task}"
    if not task.isidentifier() or importlib.util.find_spec(name) is None:
        raise OptionsError(f"--task: got {task!r}, expected the name of an experiment")
    module = importlib.import_module(name)
    if not hasattr(module, "EXPERIMENT"):
        raise OptionsError(f"--task: got {task!r}, which is a module but no experiment")
    return module.EXPERIMENT


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before a lone `--` and those after it, which are flags of every run."""
    words = list(arguments)
    ours = words.index("--") if "--" in words else len(words)
    return words[:ours], words[ours + 1 :]
