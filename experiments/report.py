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


def summarise(episodes: EpisodeStats, metrics: Sequence[str] = ()) -> dict[str, Estimate]:
    """Return success, score and the means of the infos named, with 95% intervals."""
    row = {"success": share_estimate(episodes.success), "score": mean_estimate(episodes.score)}
    for name in metrics:
        values = episodes.infos[name]
        row[name] = share_estimate(values) if values.dtype == np.bool_ else mean_estimate(values)
    return row


def make_table(
    title: str,
    measured: Mapping[str, Row],
    references: Sequence[Reference],
    metrics: Sequence[str] = (),
) -> Table:
    """Return the final table: what was measured, and the references beside it."""
    names = [name.replace("_", " ") for name in metrics]
    table = Table("policy", "success", "95%", "score", "95%", *names, title=title)
    for name, row in measured.items():
        success, score = row["success"], row["score"]
        table.add_row(
            name,
            f"{success.value:.3f}",
            f"{success.low:.3f} to {success.high:.3f}",
            f"{score.value:.2f}",
            f"{score.low:.2f} to {score.high:.2f}",
            *(f"{row[name].value:.3f}" for name in metrics),
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
