"""The end of a run: its table, its pictures and a sample of its episodes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from experiments.statistics import Estimate, mean_estimate, share_estimate
from experiments.task import Reference
from freshper_jax.rollout import ChatRenderer, EpisodeStats, Trajectory

__all__ = ["make_table", "render_episodes", "summarise", "write_results"]

Row = Mapping[str, Estimate]


def summarise(episodes: EpisodeStats) -> dict[str, Estimate]:
    """Return success and score with 95% intervals."""
    return {"success": share_estimate(episodes.success), "score": mean_estimate(episodes.score)}


def make_table(title: str, measured: Mapping[str, Row], references: Sequence[Reference]) -> Table:
    """Return the final table: what was measured, and the references beside it."""
    table = Table("policy", "success", "95%", "score", "95%", title=title)
    for name, row in measured.items():
        success, score = row["success"], row["score"]
        table.add_row(
            name,
            f"{success.value:.3f}",
            f"{success.low:.3f} to {success.high:.3f}",
            f"{score.value:.2f}",
            f"{score.low:.2f} to {score.high:.2f}",
        )
    for reference in references:
        table.add_row(reference.name, f"{reference.success:.3f}", "", f"{reference.score:.2f}", "")
    return table


def write_results(path: Path, measured: Mapping[str, Row], references: Sequence[Reference]) -> None:
    """Write the final table as JSON."""
    values: dict[str, object] = {
        name: {key: [e.value, e.low, e.high] for key, e in row.items()}
        for name, row in measured.items()
    }
    for reference in references:
        values[reference.name] = {"success": reference.success, "score": reference.score}
    path.write_text(json.dumps(values, indent=2) + "\n")


def render_episodes(
    path: Path, renderer: ChatRenderer, trajectory: Trajectory, episodes: EpisodeStats, count: int
) -> None:
    """Write the first episodes as text, the policy's own words between guillemets."""
    parts = []
    for row in range(min(count, len(episodes.score))):
        length = int(trajectory.length[row])
        tokens = np.asarray(trajectory.tokens[row, :length])
        mine = np.asarray(trajectory.response_mask[row, :length])
        edges = [0, *(np.flatnonzero(np.diff(mine)) + 1), length]
        pieces = []
        for start, end in itertools.pairwise(edges):
            text = renderer.tokenizer.decode(tokens[start:end].tolist())
            pieces.append(f"«{text}»" if mine[start] else text)
        outcome = "solved" if episodes.success[row] else "not solved"
        parts.append(
            f"## Episode {row + 1}: {outcome}, score {episodes.score[row]:.1f}, "
            f"{episodes.turns[row]} turns\n\n```text\n{''.join(pieces)}\n```\n"
        )
    path.write_text("\n".join(parts))
