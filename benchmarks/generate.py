"""How fast decoding is, beside Hugging Face: `python -m benchmarks.generate [--json FILE]`.

Both sides hold the same random weights of SmolLM2-135M's shapes in float32 and use as many
threads as this process may use cores; they take turns, in an order that changes from round to
round, so that whatever else the machine does hits both. Compilation is not counted. Tokens are
sampled at temperature 1.

- decode: 128 tokens a row after a prompt that is in the cache, at batch 1 and 16.
- episode: ten turns, each of 60 tokens read and 20 drawn, at batch 16. Ours keeps its cache.
  `transformers` is `model.generate` on the whole conversation, as a plain user has it;
  `transformers, cache kept` hands the cache of the turn before back to it.
- bandwidth: the least time in which all cores together can read the weights once, by looking for
  their largest number, against the time of a token at batch 1.

Hugging Face is measured where it is installed: `pip install torch transformers`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.generate_peers import Freshper, Shape, Side, Transformers, cores, missing
from freshper_jax.models import ModelConfig

__all__ = ["CONFIG", "GOALS", "judge", "main", "measure", "tables"]

CONFIG = ModelConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1_536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    rope_theta=100_000.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)
OURS, THEIRS, KEPT = "freshper", "transformers", "transformers, cache kept"
STREAM = "weights read once"
EPISODE = "episode"
# How many times the rate of `transformers` each case is to reach.
GOALS = {"decode, batch 1": 1.0, "decode, batch 16": 1.0, EPISODE: 2.0}


def measure(
    config: ModelConfig,
    shape: Shape,
    *,
    batches: tuple[int, ...] = (1, 16),
    rounds: int = 5,
    episode_rounds: int = 2,
    with_peer: bool = True,
) -> dict[str, Any]:
    """Time every case on every side.

    Args:
      config: the model's shapes.
      shape: how much is decoded.
      batches: rows of the decodes.
      rounds: turns of each side at each decode.
      episode_rounds: turns of each side at the episode; 0 leaves it out.
      with_peer: whether to measure transformers.

    Returns:
      `cells`, one a case and side; `bandwidth`; and `logits_difference`, the largest between
      the sides, None where there is one.
    """
    rng = np.random.default_rng(0)
    ours = Freshper(config, shape)
    sides: dict[str, Side] = {OURS: ours}
    if with_peer:
        sides[THEIRS] = Transformers(config, ours.params, shape)

    def draw(*size: int) -> np.ndarray:
        return rng.integers(config.vocab_size, size=size, dtype=np.int32)

    prompt = draw(2, shape.prompt)
    logits = [side.logits(prompt) for side in sides.values()]
    difference = float(np.abs(logits[0] - logits[1]).max()) if with_peer else None

    cells, reading = [], []
    read = _reader(ours.params)
    for rows in batches:
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        prompt = draw(rows, shape.prompt)
        for turn in range(-1, rounds):
            for name in _rotated(list(sides), turn):
                taken = sides[name].decode(prompt)
                if turn >= 0:
                    seconds[name].append(taken)
            reading += [read() for _ in range(3)]
        cells += _summarise(f"decode, batch {rows}", rows * shape.new, seconds)
    if episode_rounds:
        if with_peer:
            sides[KEPT] = Transformers(config, ours.params, shape, keeps_cache=True)
        seconds = {name: [] for name in sides}
        observations = draw(shape.turns, shape.rows, shape.observation)
        ours.episode(observations)
        for turn in range(episode_rounds):
            for name in _rotated(list(sides), turn):
                seconds[name].append(sides[name].episode(observations))
        cells += _summarise(EPISODE, shape.rows * shape.turns * shape.reply, seconds)
    nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(ours.params))
    return {
        "cells": cells,
        "bandwidth": _bandwidth(nbytes, reading, shape.new, cells),
        "logits_difference": difference,
    }


def _reader(params: Any) -> Callable[[], float]:
    """Make what reads all weights once, on all cores, and returns the seconds that it took."""
    flat = np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(params)])
    parts = np.array_split(flat, cores())

    def read() -> float:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(np.max, parts))  # the threads are there
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            return time.perf_counter() - start

    return read


def _rotated(names: list[str], turn: int) -> list[str]:
    first = turn % len(names)
    return names[first:] + names[:first]


def _summarise(case: str, tokens: int, seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Reduce each side's times to a minimum, a median and rates of tokens drawn."""
    least = {name: min(times) for name, times in seconds.items()}
    return [
        {
            "case": case,
            "implementation": name,
            "rounds": len(times),
            "minimum_s": least[name],
            "median_s": statistics.median(times),
            "tokens_per_s": tokens / least[name],
            "rate_to_transformers": least[THEIRS] / least[name] if THEIRS in least else None,
        }
        for name, times in seconds.items()
    ]


def _bandwidth(
    nbytes: int, reading: list[float], new: int, cells: list[dict[str, Any]]
) -> dict[str, Any]:
    """Compare the time of a token at batch 1 with that of reading the weights."""
    fastest = min(reading)
    shares = {
        cell["implementation"]: fastest / (cell["minimum_s"] / new)
        for cell in cells
        if cell["case"] == "decode, batch 1"
    }
    return {"weights_nbytes": nbytes, "read_gb_per_s": nbytes / fastest / 1e9, "share": shares}


def judge(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold our rates against the goals; None where a side was not measured."""
    ratios = {
        cell["case"]: cell["rate_to_transformers"]
        for cell in cells
        if cell["implementation"] == OURS
    }
    return [
        {
            "case": case,
            "at_least": goal,
            "ratio": ratios.get(case),
            "passed": None if ratios.get(case) is None else ratios[case] >= goal,
        }
        for case, goal in GOALS.items()
    ]


def tables(report: dict[str, Any]) -> str:
    """Write the report as Markdown."""
    rows = [
        [
            cell["case"],
            cell["implementation"],
            f"{cell['minimum_s']:.2f} / {cell['median_s']:.2f} s",
            f"{cell['tokens_per_s']:.1f}",
            _ratio(cell["rate_to_transformers"]),
        ]
        for cell in report["cells"]
    ]
    head = ["case", "side", "minimum / median", "tokens drawn a second", f"rate to {THEIRS}"]
    lines = _table(head, rows)
    marks = {True: "passed", False: "MISSED", None: "not measured"}
    lines += ["", "Goals, by the minimum:", ""]
    lines += _table(
        ["case", "at least", "measured", ""],
        [
            [goal["case"], f"{goal['at_least']:.1f}", _ratio(goal["ratio"]), marks[goal["passed"]]]
            for goal in report["goals"]
        ],
    )
    limit = report["bandwidth"]
    lines += [
        "",
        f"Reading {limit['weights_nbytes'] / 1e6:,.1f} MB of weights once: "
        f"{limit['read_gb_per_s']:.1f} GB/s.",
    ]
    lines += [
        f"A token at batch 1 reaches {share:.0%} of that limit ({name})."
        for name, share in limit["share"].items()
    ]
    if report["logits_difference"] is not None:
        lines.append(f"Largest difference of logits: {report['logits_difference']:.1e}.")
    return "\n".join(lines)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main() -> None:
    """Measure, print the tables, and write the figures as JSON where asked to."""
    parser = argparse.ArgumentParser(description="How fast decoding is, beside Hugging Face.")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=5, help="turns at each decode")
    parser.add_argument(
        "--episode-rounds", type=int, default=2, help="turns at the episode; 0: none"
    )
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16], metavar="B")
    parser.add_argument("--alone", action="store_true", help="measure this project only")
    options = parser.parse_args()
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    if options.rounds < 1 or options.episode_rounds < 0:
        parser.error("--rounds: at least 1, and --episode-rounds: at least 0")
    if min(options.batches, default=1) < 1:
        parser.error("--batches: at least 1 each")
    absent = "--alone" if options.alone else missing()
    if absent:
        print(f"{THEIRS} is left out: {absent}")
    found = measure(
        CONFIG,
        Shape(),
        batches=tuple(options.batches),
        rounds=options.rounds,
        episode_rounds=options.episode_rounds,
        with_peer=absent is None,
    )
    names = ["jax", "jaxlib", "numpy", *(() if absent else ("torch", "transformers"))]
    report = {
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in names},
        "machine": {
            "cpus": os.cpu_count(),
            "threads": cores(),
            "system": platform.system(),
            "processor": platform.machine(),
            "backend": jax.default_backend(),
        },
        "missing": absent,
        **found,
        "goals": judge(found["cells"]),
    }
    print(tables(report))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
