"""Checkpoints of named pytrees, written by orbax and committed by one rename.

A run's checkpoint directory holds one folder a step:

    00000017/
        items/          orbax, one item a name: policy, optimizer, replay, rng, ...
        meta.json       the step, the configuration, and what else the caller says
        manifest.json   the shape of every array and the size of every file

A folder is written under a dotted name and renamed once it is whole, so a process killed at
any moment leaves the earlier checkpoints and none that is half written. A folder whose files
do not match its manifest (a truncated copy, say) counts as absent.
"""

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

_PARTIAL = ".partial-"
_DISCARDED = ".discarded-"
_WRITER_SECONDS = 10.0  # to wait for a writer of a failed save


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message names the path and says why."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What `restore` found.

    step: the step it was saved at.
    items: the restored pytrees by name.
    meta: what the caller gave `save` as `meta`.
    passed_over: newer checkpoints that are cut short, each with the reason.
    """

    step: int
    items: dict[str, Any]
    meta: dict[str, Any]
    passed_over: tuple[str, ...]


def save(
    directory: str | os.PathLike,
    step: int,
    items: Mapping[str, Any],
    *,
    meta: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Writes a checkpoint and discards all but the newest `keep`.

    Args:
        directory: of the run's checkpoints; made if absent.
        step: at least 0, not saved yet.
        items: pytrees by name; their leaves are jax or numpy arrays, typed keys included.
        meta: JSON values that belong to it.
        config: JSON values; `restore` refuses to resume under another configuration.
        keep: checkpoints to keep, at least 1.

    Returns:
        The checkpoint's folder.

    Raises:
        ValueError: a bad step, `keep`, name, or array without elements.
        TypeError: `meta` or `config` is not JSON, or a leaf not an array.
        CheckpointError: the step is there already, or writing failed (a full disk); earlier
            checkpoints stay as they are.
    """
    if step < 0:
        raise ValueError(f"step must be at least 0, got {step}")
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    if not items:
        raise ValueError("items must hold at least one named pytree")
    layout = {name: _layout(name, tree) for name, tree in items.items()}
    for name, tree in items.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if leaf.size == 0:  # orbax has no form for it
                place = jax.tree_util.keystr(path)
                raise ValueError(f"item {name!r} has an array without elements at {place}")
    record = _to_json({"step": step, "config": config, "meta": meta or {}})

    root = Path(directory).absolute()
    target, partial = root / _folder(step), root / f"{_PARTIAL}{_folder(step)}"
    if target.exists() and _fault(target) is None:
        raise CheckpointError(f"step {step} is already saved at {target}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        _clean(root)
        with _orbax_contained():
            ocp.save_checkpointables(partial / "items", dict(items))
        (partial / "meta.json").write_text(json.dumps(record, indent=1))
        manifest = {"items": layout, "files": _file_sizes(partial)}
        (partial / "manifest.json").write_text(json.dumps(manifest))
        if target.exists():  # cut short, so of no use to anyone
            _discard(target)
        partial.rename(target)
        for old in complete_steps(root)[:-keep]:
            _discard(root / _folder(old))
    except Exception as error:
        shutil.rmtree(partial, ignore_errors=True)
        latest = latest_step(root)
        kept = "there is no earlier one" if latest is None else f"step {latest} stays valid"
        raise CheckpointError(
            f"cannot write the checkpoint of step {step} to {root} ({kept}): {_reason(error)}"
        ) from error
    return target


def restore(
    directory: str | os.PathLike,
    abstract_items: Mapping[str, Any],
    *,
    step: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Reads the named items of the newest complete checkpoint, or of a given one.

    Args:
        directory: of the run's checkpoints.
        abstract_items: for each item wanted, a pytree like the one saved, of arrays or
            `jax.ShapeDtypeStruct`; arrays come back with the shardings these carry, on the
            default device where they carry none. Only these items are read.
        step: the newest complete one by default.
        config: when given, it must equal the saved one.

    Raises:
        CheckpointError: there is no such directory or checkpoint, the checkpoint is cut short
            and there is no older one, an item is missing or shaped otherwise, or the
            configuration is another; the differing keys are listed.
    """
    root = Path(directory).absolute()
    step, passed_over = _choose(root, step)
    folder = root / _folder(step)
    record = json.loads((folder / "meta.json").read_text())
    if config is not None:
        differences = _config_differences(record["config"], _to_json(config))
        if differences:
            raise CheckpointError(
                f"{folder} was made by another configuration: " + "; ".join(differences)
            )
    layout = json.loads((folder / "manifest.json").read_text())["items"]
    items = {}
    for name, abstract in abstract_items.items():
        if name not in layout:
            raise CheckpointError(
                f"{folder} holds no item {name!r}, only {', '.join(sorted(layout))}"
            )
        differences = _layout_differences(layout[name], _layout(name, abstract))
        if differences:
            raise CheckpointError(
                f"item {name!r} of {folder} is shaped otherwise: " + "; ".join(differences)
            )
        try:
            with _orbax_contained():
                items[name] = ocp.load(
                    folder / "items",
                    jax.tree.map(_with_sharding, abstract),
                    checkpointable_name=name,
                )
        except Exception as error:
            raise CheckpointError(
                f"cannot read item {name!r} of {folder}: {_reason(error)}"
            ) from error
    return Checkpoint(step=step, items=items, meta=record["meta"], passed_over=passed_over)


def complete_steps(directory: str | os.PathLike) -> list[int]:
    """Lists the steps of the complete checkpoints, ascending; empty without a directory."""
    root = Path(directory)
    return [step for step in saved_steps(root) if _fault(root / _folder(step)) is None]


def latest_step(directory: str | os.PathLike) -> int | None:
    """Returns the step of the newest complete checkpoint, or None."""
    steps = complete_steps(directory)
    return steps[-1] if steps else None


def read_meta(directory: str | os.PathLike, step: int | None = None) -> dict[str, Any]:
    """Reads `step`, `config` and `meta` of a checkpoint without its arrays.

    Raises:
        CheckpointError: as `restore` does for a missing or cut-short checkpoint.
    """
    root = Path(directory).absolute()
    step, _ = _choose(root, step)
    return json.loads((root / _folder(step) / "meta.json").read_text())


def _folder(step: int) -> str:
    return f"{step:08d}"


def saved_steps(directory: str | os.PathLike) -> list[int]:
    """Lists the steps of all checkpoints, complete or not, ascending."""
    root = Path(directory)
    if not root.is_dir():
        return []
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdecimal())


def _choose(root: Path, step: int | None) -> tuple[int, tuple[str, ...]]:
    """Picks the checkpoint to read; returns it with the newer ones that are cut short."""
    if not root.is_dir():
        raise CheckpointError(f"there is no checkpoint directory {root}")
    saved = saved_steps(root)
    if step is not None:
        if step not in saved:
            known = ", ".join(map(str, saved)) or "none"
            raise CheckpointError(f"{root} has no checkpoint of step {step}; it has {known}")
        saved = [step]
    passed_over: list[str] = []
    for candidate in reversed(saved):
        folder = root / _folder(candidate)
        fault = _fault(folder)
        if fault is None:
            return candidate, tuple(passed_over)
        passed_over.append(f"{folder} is cut short: {fault}")
    if passed_over:
        raise CheckpointError("no complete checkpoint: " + "; ".join(passed_over))
    raise CheckpointError(f"there is no checkpoint in {root}")


def _fault(folder: Path) -> str | None:
    """Says what keeps a checkpoint folder from being complete, or None."""
    try:
        files = json.loads((folder / "manifest.json").read_text())["files"]
    except FileNotFoundError:
        return "manifest.json is missing"
    except (ValueError, KeyError):
        return "manifest.json is damaged"
    for name, size in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} of {size} bytes"
    return None


def _file_sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _discard(folder: Path) -> None:
    """Removes a checkpoint; it is renamed first, so that no half of it is ever listed."""
    doomed = folder.with_name(f"{_DISCARDED}{folder.name}")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _clean(root: Path) -> None:
    """Removes what a killed process left behind."""
    for path in root.iterdir():
        if path.name.startswith((_PARTIAL, _DISCARDED)):
            shutil.rmtree(path)


def _layout(name: str, tree: Any) -> dict[str, str]:
    """Describes each leaf of a pytree by its path, as `float32[3,4]`."""

    def describe(path: Any, leaf: Any) -> str:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(
                f"item {name!r} must hold arrays, got {type(leaf).__name__} at "
                f"{jax.tree_util.keystr(path)}"
            )
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"

    return {
        jax.tree_util.keystr(path): describe(path, leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _layout_differences(saved: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    return [
        f"{leaf or 'the leaf'} is {saved.get(leaf, 'absent')}, expected {wanted.get(leaf, 'none')}"
        for leaf in sorted(saved.keys() | wanted.keys())
        if saved.get(leaf) != wanted.get(leaf)
    ]


def _config_differences(saved: Any, current: Any) -> list[str]:
    before, now = dict(_flatten(saved)), dict(_flatten(current))
    return [
        f"{key or 'config'} was {before.get(key, 'absent')!r}, now {now.get(key, 'absent')!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, "absent") != now.get(key, "absent")
    ]


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


def _to_json(value: Mapping[str, Any]) -> Any:
    """Returns the value as JSON would give it back; raises TypeError where it cannot."""
    return json.loads(json.dumps(value))


def _with_sharding(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


@contextlib.contextmanager
def _orbax_contained() -> Iterator[None]:
    """Keeps a failure of orbax to the one error it raises.

    Its other writers may still be at work then: they would fill the folder that is being
    removed, and each would log a traceback of its own.
    """
    logger = logging.getLogger("absl")
    level = logger.level
    before = set(threading.enumerate())
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    except Exception:
        for writer in set(threading.enumerate()) - before:
            writer.join(timeout=_WRITER_SECONDS)
        raise
    finally:
        logger.setLevel(level)
