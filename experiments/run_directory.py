"""The directory a run leaves behind: configuration, metrics, TensorBoard events, checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import scalar

from freshper_jax.training import saved_steps

__all__ = ["RunDirectory", "RunError", "check_free", "has_checkpoints", "open_run"]


class RunError(RuntimeError):
    """A run cannot start or go on; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """An open run directory; every line of `metrics.jsonl` is one iteration, 0 the start."""

    path: Path
    events: EventsWriter

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints lie."""
        return self.path / "checkpoints"

    def log(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Append one iteration's metrics to the file and its scalars to TensorBoard."""
        with _metrics_path(self.path).open("a") as file:
            file.write(json.dumps({"iteration": iteration, **metrics}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        _write_events(self.events, iteration, metrics)

    def history(self) -> list[dict[str, Any]]:
        """Return the logged iterations in order."""
        return _read_lines(_metrics_path(self.path))

    def close(self) -> None:
        """Close what is open."""
        self.events.close()


def check_free(path: Path, *, resume: bool) -> None:
    """Make sure that a run may use a directory, before anything is computed for it.

    A run that has saved nothing yet is begun anew, with or without `resume`.

    Raises:
      RunError: `path` is no directory, holds other things than a run, or holds a run and
        `resume` is off; or `resume` is on and there is no run.
    """
    try:
        if path.exists() and not path.is_dir():
            raise RunError(f"--out: {path} is a file, expected a directory")
        used = path.is_dir() and any(path.iterdir())
    except OSError as error:
        raise RunError(f"--out: cannot read {path}: {error}") from error
    if used and not (path / "config.json").exists():
        raise RunError(f"--out: {path} holds other files, choose another directory")
    if has_checkpoints(path) and not resume:
        raise RunError(
            f"--out: {path} already holds a run; add --resume to continue it, "
            "or choose another directory"
        )
    if resume and not used:
        raise RunError(f"--resume: there is no run in {path}")


def open_run(path: Path, configuration: Mapping[str, Any], *, last_iteration: int) -> RunDirectory:
    """Open a directory that `check_free` let pass, to go on after `last_iteration`.

    Metrics and events of later iterations are dropped: the run makes them again. With -1 a
    new run begins.

    Raises:
      RunError: the directory cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        kept = [
            line
            for line in (_read_lines(_metrics_path(path)) if last_iteration >= 0 else [])
            if line["iteration"] <= last_iteration
        ]
        if last_iteration < 0:
            _write_atomically(path / "config.json", json.dumps(configuration, indent=2) + "\n")
        _write_atomically(_metrics_path(path), "".join(json.dumps(line) + "\n" for line in kept))
        shutil.rmtree(path / "tensorboard", ignore_errors=True)
        (path / "tensorboard").mkdir()
        events = EventsWriter(str(path / "tensorboard" / "events"))
        for line in kept:
            _write_events(events, line["iteration"], line)
    except OSError as error:
        raise RunError(f"--out: cannot write to {path}: {error}") from error
    return RunDirectory(path, events)


def has_checkpoints(path: Path) -> bool:
    """Say whether a run in `path` got far enough to be continued."""
    return bool(saved_steps(path / "checkpoints"))


def _metrics_path(path: Path) -> Path:
    return path / "metrics.jsonl"


def _write_events(events: EventsWriter, iteration: int, metrics: Mapping[str, Any]) -> None:
    """Write scalars at once, on this thread, so that a full disk is an error here."""
    for name, value in metrics.items():
        if isinstance(value, float):
            summary = scalar(name, value)
            events.write_event(Event(wall_time=time.time(), step=iteration, summary=summary))
    events.flush()


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a last line that was cut short by a kill is left out."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(path.suffix + ".partial")
    temporary.write_text(text)
    temporary.replace(path)
