"""How fast the replay buffer is, beside others: `python -m benchmarks.replay [--json FILE]`.

All buffers of a case are filled with the same rows and priorities, then take turns: in each
round every one of them does each operation a few times, in an order that changes from round to
round, so that whatever else the machine does hits all alike. A call ends when its results are
there; what it needs (keys, rows on the device, random slots) is made before; compilation is
not counted. `freshper` moves its clock and so decays all priorities before each draw; the
others draw by the priorities as they were last written, and `decay all` is their price for the
same: writing all N anew. Its own entry there is what a moved clock adds to a draw, the
difference of two measured times, which noise can push below zero; what ageing costs inside
every draw is part of the draw's own figure.

The others are measured where they are installed: `pip install flashbax cpprb torchrl`.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import rich.console

from benchmarks.replay_peers import (
    ALPHA,
    BETA,
    PEERS,
    TAU,
    Buffer,
    Call,
    Freshper,
    Rows,
    missing,
    packed_options,
)
from experiments.progress import Console
from freshper_jax import replay

__all__ = ["Case", "judge", "main", "measure", "packed_to_dense", "peers_ahead", "tables"]

OURS, REFERENCE = "freshper", "flashbax"
DECAY, STILL = "decay all", "sample 128, clock at rest"
# What to do, and with how many rows.
OPERATIONS = {
    "add 128": ("add", 128),
    "sample 128": ("sample", 128),
    STILL: ("still", 128),
    "sample 1024": ("sample", 1024),
    "update 128": ("update", 128),
    DECAY: ("decay", 0),
}
LARGEST = 1024
TOKENS = 512
CALLS = 5  # of an operation a turn; the first finds the caches as another buffer left them
WARM = 2  # calls that compile
FILL = 2_500  # rows a call; divides the usual sizes, so that nothing compiles twice

PACKED = "freshper packed"  # for trajectories, beside our dense buffer
MOST_PACKED_TO_DENSE = 0.45  # in bytes, with rows a third as long as the longest on average

# Rows, capacity, operation, and how many times the reference's time we may take.
TARGETS = (
    ("scalar", 100_000, "sample 128", 1.5),
    ("scalar", 1_000_000, "sample 1024", 1.0),
    ("scalar", 1_000_000, "update 128", 1.5),
    ("trajectory", 10_000, "add 128", 1.0),
    ("trajectory", 50_000, "add 128", 1.0),
)


@dataclasses.dataclass(frozen=True)
class Case:
    """Buffers of one size and one kind of rows.

    | field    | meaning                                                            |
    |----------|--------------------------------------------------------------------|
    | rows     | `scalar`, a float and an integer, or `trajectory`, 512 tokens      |
    | capacity | N, all of them filled                                              |
    """

    rows: str
    capacity: int

    def make_rows(self, rng: np.random.Generator, count: int) -> Rows:
        """Draw rows: 8 bytes each, or 4.6 KB of tokens, log-probabilities and their mask."""
        if self.rows == "scalar":
            return {
                "reward": rng.standard_normal(count, np.float32),
                "action": rng.integers(0, 4, count, np.int32),
            }
        shape = (count, TOKENS)
        return {
            "tokens": rng.integers(0, 32_000, shape, np.int32),
            "log_probs": -rng.standard_exponential(shape, np.float32),
            "mask": rng.integers(0, 2, shape, np.uint8).astype(np.bool_),
        }

    def example(self) -> Rows:
        """Make one row."""
        return {name: values[0] for name, values in self.make_rows(_rng(0), 1).items()}

    def where(self) -> dict[str, Any]:
        """Tell the fields that name this case in the report."""
        return dataclasses.asdict(self)


def measure(
    case: Case, peers: list[str], rounds: int, console: Console, *, inside_jit: bool = False
) -> dict[str, Any]:
    """Fill the buffers of one case and time their operations.

    Args:
      case: which rows, and how many.
      peers: the buffers beside ours.
      rounds: turns that each buffer gets at each operation.
      console: where progress shows.
      inside_jit: whether our functions are called inside jitted ones.

    Returns:
      `cells`, one a buffer and operation, and `memory`, one a buffer and storage.
    """
    rng, title = _rng(0), f"{case.rows} rows, N={case.capacity:,}"
    example = case.example()
    buffers: dict[str, Buffer] = {OURS: Freshper(example, case.capacity, inside_jit=inside_jit)}
    if case.rows == "trajectory":
        buffers[PACKED] = Freshper(example, case.capacity, TOKENS, inside_jit=inside_jit)
    buffers |= {name: PEERS[name](example, case.capacity) for name in peers}
    priorities = rng.lognormal(size=case.capacity).astype(np.float32)
    with console.counting(f"{title}: filling", case.capacity) as show:
        for start in range(0, case.capacity, FILL):
            slots = np.arange(start, min(start + FILL, case.capacity))
            rows = case.make_rows(rng, len(slots))
            for buffer in buffers.values():
                buffer.add(rows, priorities[slots])()
                buffer.update(slots, priorities[slots])()
            show(int(slots[-1]) + 1)

    seconds: dict[tuple[str, str], list[float]] = {}
    with console.counting(f"{title}: rounds", rounds) as show:
        for turn in range(-1, rounds):
            for operation in OPERATIONS:
                for name in _rotated(list(buffers), turn):
                    calls = list(_prepare(operation, case, buffers[name], turn))
                    taken = [_seconds(call) for call in calls]
                    if turn >= 0 and taken:
                        seconds.setdefault((operation, name), []).extend(taken)
            show(turn + 1)
    return {
        "cells": [cell | case.where() for cell in _summarise(seconds)],
        "memory": [entry | case.where() for entry in _memory(case, buffers)],
    }


def _prepare(operation: str, case: Case, buffer: Buffer, turn: int) -> Iterator[Call]:
    """Make the calls of one turn: the same ones whichever the buffer, none where none apply."""
    kind, count = OPERATIONS[operation]
    ours = isinstance(buffer, Freshper)
    if (kind == "still" and not ours) or (kind == "decay" and ours):
        return
    rng = _rng(turn + 1, list(OPERATIONS).index(operation))
    for _ in range(WARM if turn < 0 else 1 if kind == "decay" else CALLS):
        seed = int(rng.integers(2**31))
        if isinstance(buffer, Freshper) and kind == "still":
            yield buffer.sample(count, seed, moved=False)
        elif kind == "sample":
            yield buffer.sample(count, seed)
        elif kind == "add":
            values = rng.lognormal(size=count).astype(np.float32)
            yield buffer.add(case.make_rows(rng, count), values)
        else:
            every = np.arange(case.capacity)
            slots = every if kind == "decay" else rng.integers(0, case.capacity, count)
            yield buffer.update(slots, rng.lognormal(size=len(slots)).astype(np.float32))


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _rotated(names: list[str], turn: int) -> list[str]:
    first = turn % len(names)
    return names[first:] + names[:first]


def _rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _summarise(seconds: dict[tuple[str, str], list[float]]) -> list[dict[str, Any]]:
    """Reduce the times of each operation and buffer to a minimum, a median and a ratio."""
    found = {
        key: {"calls": len(times), "minimum_s": min(times), "median_s": statistics.median(times)}
        for key, times in seconds.items()
    }
    moved, still = found["sample 128", OURS], found[STILL, OURS]
    found[DECAY, OURS] = {
        "calls": moved["calls"],
        **{name: moved[name] - still[name] for name in ("minimum_s", "median_s")},
    }
    cells = []
    for (operation, name), cell in found.items():
        reference = found.get((operation, REFERENCE))
        # A difference of two times may be nothing, or less, and then has no ratio.
        if reference is None or (operation, name) == (DECAY, OURS):
            ratio = None
        else:
            ratio = cell["minimum_s"] / reference["minimum_s"]
        cells.append(
            {"operation": operation, "implementation": name, **cell, f"to_{REFERENCE}": ratio}
        )
    return cells


def _memory(case: Case, buffers: dict[str, Buffer]) -> list[dict[str, Any]]:
    """List the bytes of each buffer's state; of ours, those of each storage, planned."""
    entries: list[tuple[str, str, int | None]] = []
    for storage in ("dense", "packed") if case.rows == "trajectory" else ("dense",):
        options = packed_options(case.capacity, TOKENS if storage == "packed" else None)
        planned = replay.make_buffer(capacity=case.capacity, **options)
        state = jax.eval_shape(planned.init, case.example())
        entries.append((OURS, storage, replay.state_nbytes(state)))
    entries += [
        (name, "dense", buffers[name].nbytes()) for name in buffers if name not in (OURS, PACKED)
    ]
    names = ("implementation", "storage", "nbytes")
    return [dict(zip(names, entry, strict=True)) for entry in entries]


def judge(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold the cells against the targets.

    Returns:
      One entry a target; `ratio` and `passed` are None where a side was not measured.
    """
    ratios = {
        (cell["rows"], cell["capacity"], cell["operation"]): cell[f"to_{REFERENCE}"]
        for cell in cells
        if cell["implementation"] == OURS
    }
    verdicts = []
    for rows, capacity, operation, most in TARGETS:
        ratio = ratios.get((rows, capacity, operation))
        verdicts.append(
            {
                "rows": rows,
                "capacity": capacity,
                "operation": operation,
                f"most_to_{REFERENCE}": most,
                "ratio": ratio,
                "passed": None if ratio is None else ratio <= most,
            }
        )
    return verdicts


def packed_to_dense(memory: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare the bytes of our storages, for each size of which both are known."""
    sizes = {
        (entry["capacity"], entry["storage"]): entry["nbytes"]
        for entry in memory
        if entry["implementation"] == OURS and entry["rows"] == "trajectory"
    }
    ratios = {
        capacity: nbytes / sizes[capacity, "dense"]
        for (capacity, storage), nbytes in sizes.items()
        if storage == "packed"
    }
    return [
        {"capacity": capacity, "ratio": ratio, "passed": ratio <= MOST_PACKED_TO_DENSE}
        for capacity, ratio in ratios.items()
    ]


def peers_ahead(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """List where another buffer is faster than ours, by the minimum, and how many times."""

    def place(cell: dict[str, Any]) -> tuple[str, int, str]:
        return cell["rows"], cell["capacity"], cell["operation"]

    ours = {place(cell): cell["minimum_s"] for cell in cells if cell["implementation"] == OURS}
    return [
        {
            "implementation": cell["implementation"],
            "rows": cell["rows"],
            "capacity": cell["capacity"],
            "operation": cell["operation"],
            "times": ours[place(cell)] / cell["minimum_s"],
        }
        for cell in cells
        if cell["operation"] != DECAY
        and cell["implementation"] != PACKED
        and cell["minimum_s"] < ours[place(cell)]
    ]


def tables(report: dict[str, Any]) -> str:
    """Write the report as Markdown."""
    there = {cell["implementation"] for cell in report["cells"]}
    names = [OURS, *([PACKED] if PACKED in there else []), *report["peers"]]
    cells = {
        (cell["rows"], cell["capacity"], cell["operation"], cell["implementation"]): cell
        for cell in report["cells"]
    }
    places = list(dict.fromkeys(key[:3] for key in cells))
    lines = _table(
        ["rows", "N", "minimum / median of", *names, f"{OURS} to {REFERENCE}"],
        [
            [
                rows,
                f"{capacity:,}",
                operation,
                *(_times(cells.get((rows, capacity, operation, name))) for name in names),
                _ratio(cells.get((rows, capacity, operation, OURS), {}).get(f"to_{REFERENCE}")),
            ]
            for rows, capacity, operation in places
        ],
    )
    lines += [
        "",
        f"`{DECAY}` of {OURS}: what a moved clock adds to `sample 128`, noise included.",
        "",
    ]
    lines += _table(
        ["rows", "N", "buffer", "storage", "state"],
        [
            [
                entry["rows"],
                f"{entry['capacity']:,}",
                entry["implementation"],
                entry["storage"],
                "not told" if entry["nbytes"] is None else f"{entry['nbytes'] / 1e6:,.1f} MB",
            ]
            for entry in report["memory"]
        ],
    )
    marks = {True: "passed", False: "MISSED", None: "not measured"}
    lines += ["", f"Targets, by the minimum, in times of {REFERENCE}:", ""]
    lines += _table(
        ["target", "at most", "measured", ""],
        [
            [
                f"{entry['operation']}, {entry['rows']}, N={entry['capacity']:,}",
                f"{entry[f'most_to_{REFERENCE}']:.1f}",
                _ratio(entry["ratio"]),
                marks[entry["passed"]],
            ]
            for entry in report["targets"]
        ],
    )
    for entry in report["packed"]:
        lines += [
            "",
            f"Packed to dense bytes, N={entry['capacity']:,}: {entry['ratio']:.2f}, at most "
            f"{MOST_PACKED_TO_DENSE}: {marks[entry['passed']]}",
        ]
    lines += ["", f"Where another buffer is faster than {OURS}, by the minimum:", ""]
    ahead: dict[str, list[str]] = {}
    for entry in report["peers_ahead"]:
        place = f"{entry['times']:.1f} times ({entry['rows']}, N={entry['capacity']:,})"
        ahead.setdefault(f"{entry['implementation']}, {entry['operation']}", []).append(place)
    lines += [f"- {what}: {', '.join(where)}" for what, where in sorted(ahead.items())]
    if not ahead:
        lines.append("- nowhere" if report["peers"] else "- nothing was compared")
    return "\n".join(lines)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]


def _times(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    scale, unit, digits = (1e6, "us", 0) if abs(cell["median_s"]) < 1e-3 else (1e3, "ms", 2)
    least, middle = (f"{cell[name] * scale:.{digits}f}" for name in ("minimum_s", "median_s"))
    return f"{least} / {middle} {unit}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main() -> None:
    """Measure, print the tables, and write the figures as JSON where asked to."""
    parser = argparse.ArgumentParser(description="How fast the replay buffer is, beside others.")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=30, help="turns at each operation")
    sizes: dict[str, Any] = {"type": int, "nargs": "*", "metavar": "N"}
    parser.add_argument("--sizes", **sizes, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--trajectory-sizes", **sizes, default=[10_000, 50_000])
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument(
        "--inside-jit", action="store_true", help="call ours inside jitted functions, as a part"
    )
    options = parser.parse_args()
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if min(options.sizes + options.trajectory_sizes, default=LARGEST) < LARGEST:
        parser.error(f"sizes: at least {LARGEST}, the rows of the largest batch")
    absent = missing(options.peers)
    for name, why in absent.items():
        print(f"{name} is left out: {why}")
    peers = [name for name in options.peers if name not in absent]
    cases = [Case("scalar", size) for size in options.sizes]
    cases += [Case("trajectory", size) for size in options.trajectory_sizes]
    report: dict[str, Any] = {
        "versions": _versions(peers),
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.system(),
            "processor": platform.machine(),
            "backend": jax.default_backend(),
        },
        "settings": {
            "rounds": options.rounds,
            "inside_jit": options.inside_jit,
            "calls_a_round": CALLS,
            "alpha": ALPHA,
            "beta": BETA,
            "tau": TAU,
        },
        "peers": peers,
        "missing": absent,
        "cells": [],
        "memory": [],
    }
    console = Console(rich.console.Console(stderr=True))
    for case in cases:
        found = measure(case, peers, options.rounds, console, inside_jit=options.inside_jit)
        for name in found:
            report[name] += found[name]
        gc.collect()  # the buffers of one case must be gone before the next one fills its own
    report["targets"] = judge(report["cells"])
    report["packed"] = packed_to_dense(report["memory"])
    report["peers_ahead"] = peers_ahead(report["cells"])
    print(tables(report))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def _versions(peers: list[str]) -> dict[str, str]:
    """Look up what the figures depend on."""
    names = ["jax", "jaxlib", "numpy", *peers, *(["torch"] if "torchrl" in peers else [])]
    versions = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version()} | versions


if __name__ == "__main__":
    main()
