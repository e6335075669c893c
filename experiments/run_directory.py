"""The directory a run leaves behind: configuration, metrics, TensorBoard events, episodes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

__all__ = ["RunDirectory", "RunError", "open_run"]


class RunError(RuntimeError):
    """A run cannot start or go on; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """An open run directory; every line of `metrics.jsonl` is one iteration."""

    path: Path
    events: SummaryWriter

    @property
    def metrics_path(self) -> Path:
        """Where the metrics lie."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints lie."""
        return self.path / "checkpoints"

    def log(self, iteration: int, metrics: Mapping[str, float | list[float]]) -> None:
        """Append one iteration's metrics to the file and its scalars to TensorBoard."""
        with self.metrics_path.open("a") as file:
            file.write(json.dumps({"iteration": iteration, **metrics}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for name, value in metrics.items():
            if isinstance(value, (int, float)):
                self.events.add_scalar(name, value, iteration)

    def has_checkpoints(self) -> bool:
        """Say whether a run has got far enough to be continued."""
        return self.checkpoints.is_dir() and any(
            entry.name.isdecimal() for entry in self.checkpoints.iterdir()
        )

    def cut_after(self, iteration: int) -> None:
        """Drop the metrics of later iterations, which a resumed run makes again."""
        kept = [line for line in self.history() if line["iteration"] <= iteration]
        _write_atomically(self.metrics_path, "".join(json.dumps(line) + "\n" for line in kept))

    def history(self) -> list[dict[str, Any]]:
        """Return the logged iterations in order."""
        return _read_lines(self.metrics_path)

    def close(self) -> None:
        """Flush what is still in memory."""
        self.events.close()


def open_run(path: Path, configuration: Mapping[str, Any], *, resume: bool) -> RunDirectory:
    """Create a run directory, or open one to continue it.

    Raises:
      RunError: the directory is in use and `resume` is off, or it cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise RunError(f"--out: {path} is a file, expected a directory")
    if path.is_dir() and any(path.iterdir()) and not resume:
        raise RunError(
            f"--out: {path} already holds a run; add --resume to continue it, "
            "or choose another directory"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        config = path / "config.json"
        if not config.exists():
            _write_atomically(config, json.dumps(configuration, indent=2) + "\n")
        events = SummaryWriter(str(path / "tensorboard"))
    except OSError as error:
        raise RunError(f"--out: cannot write to {path}: {error}") from error
    return RunDirectory(path, events)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a last line that was cut short by a kill is left out."""
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(path.suffix + ".partial")
    temporary.write_text(text)
    temporary.replace(path)
