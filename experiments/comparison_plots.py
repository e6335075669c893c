"""The pictures of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from experiments.drift_profile import CENTRES, DriftProfile, growth
from experiments.statistics import iqm_estimate

if TYPE_CHECKING:
    from experiments.comparison import Run

__all__ = ["plot_curves", "plot_drift"]

_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def plot_curves(groups: Mapping[str, Sequence[Run]], path: Path, *, title: str) -> None:
    """Draw held-out success against episodes and against compute, and the final success, as a PNG.

    Lines are interquartile means over seeds, bands and bars their 95% bootstrap intervals.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(14, 4.2), layout="constrained")
        data, compute, final = figure.subplots(1, 3)
        figure.suptitle(title)
        for place, (name, group) in enumerate(groups.items()):
            color = _color(place)
            length = min(len(run.success) for run in group)
            success = np.stack([run.success[:length] for run in group])
            estimates = [iqm_estimate(column, resamples=2000) for column in success.T]
            for axis, x in (
                (data, group[0].episodes[:length]),
                (compute, np.mean([run.tokens[:length] for run in group], axis=0) / 1e6),
            ):
                low, high = ([getattr(e, end) for e in estimates] for end in ("low", "high"))
                axis.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
                axis.plot(x, [e.value for e in estimates], color=color, label=name)
            last = iqm_estimate(np.array([run.final for run in group]))
            final.plot([last.low, last.high], [place, place], color=color, linewidth=5, alpha=0.4)
            final.plot([run.final for run in group], [place] * len(group), ".", color=color)
            final.plot(last.value, place, "|", color=color, markersize=18, markeredgewidth=3)
        data.set_xlabel("environment episodes")
        compute.set_xlabel("million tokens trained on")
        for axis in (data, compute):
            axis.set_ylabel("held-out success")
        data.legend(fontsize=7)
        final.set_yticks(range(len(groups)), list(groups), fontsize=8)
        final.invert_yaxis()
        final.set_xlabel("final held-out success (IQM, 95%; dots are seeds)")
        figure.savefig(path, dpi=130)


def plot_drift(groups: Mapping[str, Sequence[Run]], path: Path, *, title: str) -> None:
    """Draw KL and ESS of replayed rows against their age, with the fitted law, as a PNG.

    Dotted lines are `exp(-age/tau)` for the tau in use.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        divergence, effective = figure.subplots(1, 2)
        figure.suptitle(f"{title}: second half of the runs")
        for place, (name, group) in enumerate(groups.items()):
            profiles = [run.drift for run in group if run.drift is not None]
            if not profiles:
                continue
            count = np.sum([one.count for one in profiles], axis=0)
            shown = (count >= 20) & (CENTRES >= 1)
            kl, ess = (_mean(profiles, name) for name in ("kl", "ess"))
            power = float(np.median([growth(one).power for one in profiles]))
            label = f"{name}: age^{power:.2f}"
            color = _color(place)
            divergence.loglog(CENTRES[shown], kl[shown], "o-", color=color, ms=3, label=label)
            effective.semilogx(CENTRES[shown], ess[shown], "o-", color=color, ms=3, label=name)
            taus = [one.tau for one in profiles if one.tau is not None]
            if taus:
                fresh = np.exp(-CENTRES[shown] / np.median(taus))
                effective.semilogx(CENTRES[shown], fresh, ":", color=color, linewidth=1)
        divergence.set_ylabel("KL of a row (nats)")
        effective.set_ylabel("ESS share of an age")
        effective.set_ylim(0, 1.05)
        effective.axhline(0.5, color="#888888", linewidth=0.8)
        for axis in (divergence, effective):
            axis.set_xlabel("age (optimiser updates)")
            axis.legend(fontsize=7)
        figure.savefig(path, dpi=130)


def _mean(profiles: Sequence[DriftProfile], name: str) -> np.ndarray:
    """Return the mean over seeds, weighted by rows, of those that know it; NaN where none does."""
    values = np.array([getattr(one, name) for one in profiles])
    weight = np.where(np.isfinite(values), [one.count for one in profiles], 0)
    with np.errstate(invalid="ignore"):
        return np.where(weight > 0, values * weight, 0).sum(axis=0) / weight.sum(axis=0)


def _color(place: int) -> Any:
    return mpl.colormaps["tab10"](place % 10)
