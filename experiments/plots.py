"""The pictures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from freshper_jax.training import AGE_EDGES, age_bin_labels

__all__ = ["plot_ages", "plot_learning"]

_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
_BLUE, _ORANGE, _GREY = "#2563a8", "#d97706", "#888888"


def plot_learning(
    history: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    title: str,
    episodes: int,
    references: Mapping[str, float],
) -> None:
    """Draw success, score and drift against the episodes played, as a PNG.

    Args:
      history: the lines of `metrics.jsonl`.
      path: of the picture.
      title: of the picture.
      episodes: fresh episodes an iteration.
      references: success of policies that are no model, drawn as levels.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(12, 3.6), layout="constrained")
        success, score, drift = figure.subplots(1, 3)
        figure.suptitle(title)
        for axis in (success, score, drift):
            axis.set_xlabel("environment episodes")

        x, y = _series(history, "rollout/success", episodes)
        success.plot(x, y, color=_GREY, alpha=0.35, linewidth=0.8)
        success.plot(x, _smooth(y), color=_GREY, label="training episodes (smoothed)")
        x, y = _series(history, "held_out/success", episodes)
        _, low = _series(history, "held_out/success_low", episodes)
        _, high = _series(history, "held_out/success_high", episodes)
        success.fill_between(x, low, high, color=_BLUE, alpha=0.2, linewidth=0)
        success.plot(x, y, "o-", color=_BLUE, markersize=3, label="held-out episodes (95%)")
        for name, value in references.items():
            success.axhline(value, color=_GREY, linestyle=":", linewidth=1)
            success.annotate(
                name, (0, value), xytext=(2, 2), textcoords="offset points", fontsize=7
            )
        success.set_ylim(0, 1.05)
        success.set_title("success (sampled)")
        success.legend(fontsize=7, loc="lower right")

        x, y = _series(history, "rollout/score", episodes)
        score.plot(x, y, color=_GREY, alpha=0.35, linewidth=0.8)
        score.plot(x, _smooth(y), color=_GREY, label="training episodes (smoothed)")
        x, y = _series(history, "held_out/score", episodes)
        score.plot(x, y, "o-", color=_BLUE, markersize=3, label="held-out episodes")
        score.set_title("score")
        score.legend(fontsize=7, loc="lower right")

        for name, color in (("fresh", _BLUE), ("replay", _ORANGE)):
            x, y = _series(history, f"{name}/ess_fraction", episodes)
            if len(x):
                drift.plot(x, _smooth(y), color=color, label=f"{name}: ESS share")
                x, y = _series(history, f"{name}/clip_fraction", episodes)
                drift.plot(x, _smooth(y), color=color, linestyle="--", label=f"{name}: clipped")
        drift.set_ylim(0, 1.05)
        drift.set_title("drift from the behaviour policy")
        drift.legend(fontsize=7)
        figure.savefig(path, dpi=130)


def plot_ages(
    history: Sequence[Mapping[str, Any]], path: Path, *, title: str, tau: float | None
) -> None:
    """Draw how old replayed rows were, and how far from the policy by age, as a PNG.

    Args:
      history: the lines of `metrics.jsonl`; those without replay are passed over.
      path: of the picture.
      title: of the picture.
      tau: the decay constant in use, optimiser updates, or None.
    """
    lines = [line for line in history if "age/count" in line]
    labels = age_bin_labels()
    count = np.array([line["age/count"] for line in lines]).reshape(-1, len(labels))
    total = count.sum(axis=0)
    # Late in a run every age has been seen, so the profile is of its second half.
    late = slice(len(lines) // 2, None)
    weight = count[late].sum(axis=0)

    def average(name: str) -> np.ndarray:
        values = np.array([line[f"age/{name}"] for line in lines]).reshape(-1, len(labels))
        return (values[late] * count[late]).sum(axis=0) / np.maximum(weight, 1)

    shown = np.flatnonzero(total) if total.any() else np.arange(0)
    places = np.arange(len(shown))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        drawn, distance = figure.subplots(1, 2)
        figure.suptitle(title)
        drawn.bar(places, total[shown] / max(total.sum(), 1), color=_BLUE)
        drawn.set_title("ages drawn")
        drawn.set_ylabel("share of replayed rows")
        distance.plot(places, average("ess")[shown], "o-", color=_BLUE, label="ESS share")
        if tau is not None:
            centre = np.array([*AGE_EDGES[1:], 2 * AGE_EDGES[-1]]) * 0.5 + np.array(AGE_EDGES) * 0.5
            freshness = np.exp(-centre[shown] / tau)
            distance.plot(places, freshness, ":", color=_GREY, label=f"exp(-age/{tau:g})")
        distance.set_ylim(0, 1.05)
        kl = distance.twinx()
        kl.plot(places, average("kl")[shown], "s-", color=_ORANGE, markersize=4)
        kl.set_ylabel("KL of a row (nats)", color=_ORANGE)
        kl.grid(visible=False)
        distance.set_title("drift by age, second half of the run")
        distance.legend(fontsize=7, loc="center left")
        for axis in (drawn, distance):
            axis.set_xticks(places, [labels[i] for i in shown], rotation=45, fontsize=7)
            axis.set_xlabel("age (optimiser updates)")
        figure.savefig(path, dpi=130)


def _series(
    history: Sequence[Mapping[str, Any]], name: str, episodes: int
) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(line["iteration"] * episodes, line[name]) for line in history if name in line]
    x, y = zip(*pairs, strict=True) if pairs else ((), ())
    return np.asarray(x), np.asarray(y)


def _smooth(values: np.ndarray, share: float = 0.15) -> np.ndarray:
    """Return the exponential moving average, started at the first value."""
    smooth, level = [], values[0] if len(values) else 0.0
    for value in values:
        level += share * (value - level)
        smooth.append(level)
    return np.asarray(smooth)
