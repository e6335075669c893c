"""Seconds an iteration of the main job takes, by phase: `python -m benchmarks.iteration`."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from experiments.progress import Console
from experiments.runner import parse_options, run
from experiments.sokoban import EXPERIMENT, make_task

__all__ = ["main", "measure"]

_WARM = 3  # iterations that compile


def measure(iterations: int, flags: list[str]) -> dict[str, float]:
    """Run the main job from a random start, whose episodes are as long as they get.

    Args:
      iterations: counted ones, after those that compile.
      flags: further flags of `experiments.sokoban`.

    Returns:
      The median seconds of an iteration and of its phases.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            f"--out={folder}/run",
            f"--iterations={iterations + _WARM}",
            "--warm-start.traces=0",
            "--evaluation.every=0",
            "--evaluation.episodes=1",
            "--evaluation.final-episodes=1",
            f"--checkpoint-every={iterations + _WARM}",
            *flags,
        ]
        path = run(parse_options(EXPERIMENT, arguments), make_task, Console())
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    counted = lines[1 + _WARM :]
    names = ("time/iteration", "time/rollout", "time/fresh", "time/replay")
    return {name: statistics.median(line[name] for line in counted) for name in names}


def main() -> None:
    """Print the medians, and write them where `--json` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    known, flags = parser.parse_known_args()
    figures = measure(known.iterations, flags)
    for name, seconds in figures.items():
        print(f"{name:16} {seconds:.3f} s")
    if known.json:
        known.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
