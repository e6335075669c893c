"""An experiment: a task, what it is told on the command line, and the defaults that suit it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from experiments.options import NoEnvOptions, Options, override, preset_defaults
from experiments.progress import Console
from experiments.task import Task

__all__ = ["Experiment"]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What `python -m experiments.<name>` runs.

    name: names the command and its runs.
    make_task: `(options, console) -> task`.
    env: a frozen dataclass of the task's own flags, `--env.*`; every field has a default.
    defaults: what suits the task, as overrides of `Options` by preset; those of `all` come
      first, then those of `pretrained` for all but the tiny preset. A mapping in place of a
      value overrides fields of that group.
    """

    name: str
    make_task: Callable[[Options, Console], Task]
    env: type = NoEnvOptions
    defaults: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def options(self, preset: str) -> Options:
        """Return the defaults of a preset.

        Raises:
          OptionsError: the preset is unknown.
        """
        options = preset_defaults(preset, Options(env=self.env()))
        kinds = ("all", preset) if preset == "tiny" else ("all", "pretrained", preset)
        for kind in kinds:
            options = override(options, self.defaults.get(kind, {}))
        return options
