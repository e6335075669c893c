"""The report of a comparison: finished runs in, tables, pictures and a page out."""

from __future__ import annotations

import base64
import csv
import dataclasses
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.comparison_plots import plot_curves, plot_drift
from experiments.drift_profile import DriftProfile, drift_profile, growth
from experiments.progress import Console
from experiments.statistics import Estimate, improvement_estimate, iqm_estimate
from freshper_jax.training import age_bin_labels

__all__ = ["Run", "area_under_curve", "by_variant", "read_runs", "write_report"]


@dataclasses.dataclass(frozen=True)
class Run:
    """What a comparison reads of one finished run.

    variant, seed: which run it is.
    episodes, tokens: `[E]` environment episodes played, and tokens that updates went through, at
      each evaluation.
    success, score: `[E]` on the held-out episodes of an evaluation.
    final, greedy: held-out success in the final table, sampled and greedy.
    drift: how far replayed rows were from the policy, by age; None without replay.
    """

    variant: str
    seed: int
    episodes: np.ndarray
    tokens: np.ndarray
    success: np.ndarray
    score: np.ndarray
    final: float
    greedy: float
    drift: DriftProfile | None


def read_runs(folders: Mapping[Path, tuple[str, int]]) -> list[Run]:
    """Read finished runs, given by folder with their variant and seed."""
    return [_read(folder, *name) for folder, name in folders.items()]


def _read(folder: Path, variant: str, seed: int) -> Run:
    config = json.loads((folder / "config.json").read_text())
    results = json.loads((folder / "results.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = np.cumsum(
        [
            line.get("speed/trained_tokens", 0.0)
            * (line.get("time/fresh", 0.0) + line.get("time/replay", 0.0))
            for line in lines
        ]
    )
    tau = config["replay"]["tau"]
    measured = [place for place, line in enumerate(lines) if "held_out/success" in line]

    def values(name: str) -> np.ndarray:
        return np.array([lines[place][name] for place in measured], np.float64)

    return Run(
        variant=variant,
        seed=seed,
        episodes=values("iteration") * config["episodes"],
        tokens=trained[measured],
        success=values("held_out/success"),
        score=values("held_out/score"),
        final=results[f"{config['arm']}, sampled"]["success"][0],
        greedy=results[f"{config['arm']}, greedy"]["success"][0],
        drift=drift_profile(lines, None if tau in ("auto", "profile") else tau),
    )


def by_variant(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs by variant, in the order in which these first come."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.variant, []).append(run)
    return groups


def area_under_curve(run: Run) -> float:
    """Return the mean held-out success over the episodes of a run, by trapezia."""
    if len(run.episodes) < 2:
        return float(run.success.mean())
    span = run.episodes[-1] - run.episodes[0]
    return float(np.trapezoid(run.success, run.episodes) / span)


def write_report(
    out: Path, task: str, runs: Sequence[Run], *, command: str, console: Console
) -> None:
    """Write `report.md` and `.html`, `curves.png`, `drift.png`; `runs`, `curves`, `drift.csv`."""
    groups = by_variant(runs)
    counts = sorted({len(group) for group in groups.values()})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    title = f"{task}: {len(groups)} variants, {seeds} seeds each"
    pictures = ["curves.png"]
    plot_curves(groups, out / "curves.png", title=title)
    if any(run.drift is not None for run in runs):
        plot_drift(groups, out / "drift.png", title=title)
        pictures.append("drift.png")
    _write_csv(out, runs)
    sections = [
        ("Held-out success", _success_table(groups)),
        ("Probability that a run of the row beats one of the column", _improvement_table(groups)),
    ]
    if len(pictures) > 1:
        sections.append(("Drift of the policy from replayed rows", _drift_table(groups)))
    _write_markdown(out / "report.md", title, command, sections, pictures)
    _write_html(out / "report.html", title, command, sections, pictures)
    console.say((out / "report.md").read_text())
    console.say(f"Report: {out / 'report.html'}")


Table = Sequence[Sequence[str]]  # the first row names the columns


def _success_table(groups: Mapping[str, Sequence[Run]]) -> Table:
    finals = {name: np.array([run.final for run in group]) for name, group in groups.items()}
    first = next(iter(groups))
    base = iqm_estimate(finals[first]).value
    rows = [
        [
            "variant",
            "seeds",
            "final, IQM [95%]",
            "final, mean",
            "area under curve, IQM [95%]",
            "greedy, mean",
            f"final / {first}",
        ]
    ]
    for name, group in groups.items():
        final = iqm_estimate(finals[name])
        area = iqm_estimate(np.array([area_under_curve(run) for run in group]))
        greedy = float(np.mean([run.greedy for run in group]))
        rows.append(
            [
                name,
                str(len(group)),
                _interval(final),
                f"{finals[name].mean():.3f}",
                _interval(area),
                f"{greedy:.3f}",
                f"{final.value / base:.2f}" if base else "",
            ]
        )
    return rows


def _improvement_table(groups: Mapping[str, Sequence[Run]]) -> Table:
    finals = {name: np.array([run.final for run in group]) for name, group in groups.items()}
    rows = [["", *finals]]
    for name, ours in finals.items():
        cells = [
            "" if name == other else _interval(improvement_estimate(ours, theirs), digits=2)
            for other, theirs in finals.items()
        ]
        rows.append([name, *cells])
    return rows


def _drift_table(groups: Mapping[str, Sequence[Run]]) -> Table:
    rows = [
        [
            "variant",
            "KL of a row at age 1, nats",
            "grows as age to the power",
            "age where the ESS share is a half",
            "1 / rate through the origin",
            "tau in use at the end",
        ]
    ]
    for name, group in groups.items():
        profiles = [run.drift for run in group if run.drift is not None]
        if not profiles:
            continue
        laws = [growth(profile) for profile in profiles]
        taus = [profile.tau for profile in profiles if profile.tau is not None]
        rows.append(
            [
                name,
                _range([law.at_one for law in laws], 3),
                _range([law.power for law in laws], 2),
                _range([law.half_ess_age for law in laws], 0),
                _range([law.tau_of_rate for law in laws], 0),
                _range(taus, 0) if taus else "none",
            ]
        )
    return rows


def _interval(estimate: Estimate, digits: int = 3) -> str:
    value, low, high = (f"{x:.{digits}f}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def _range(values: Sequence[float], digits: int) -> str:
    """Return the median of the seeds' values, and their range."""
    known = [value for value in values if np.isfinite(value)]
    if not known:
        return "not reached"
    middle, low, high = (f"{f(known):.{digits}f}" for f in (np.median, np.min, np.max))
    missing = f", not reached in {len(values) - len(known)}" if len(known) < len(values) else ""
    return f"{middle} ({low} to {high}{missing})"


def _write_csv(out: Path, runs: Sequence[Run]) -> None:
    finals, curves, drifts = [], [], []
    for run in runs:
        name, drift = (run.variant, run.seed), run.drift
        tau = "" if drift is None or drift.tau is None else f"{drift.tau:.4g}"
        shares = (run.final, run.greedy, area_under_curve(run))
        finals.append([*name, *(f"{share:.4f}" for share in shares), tau])
        points = zip(run.episodes, run.tokens, run.success, run.score, strict=True)
        for episodes, tokens, success, score in points:
            row = [f"{episodes:.0f}", f"{tokens:.0f}", f"{success:.4f}", f"{score:.3f}"]
            curves.append([*name, *row])
        if drift is not None:
            bins = zip(age_bin_labels(), drift.count, drift.kl, drift.ess, strict=True)
            for age, rows, kl, ess in bins:
                if rows:
                    share = f"{ess:.4f}" if np.isfinite(ess) else ""
                    drifts.append([*name, age, f"{rows:.0f}", f"{kl:.4g}", share])
    _write_rows(out / "runs.csv", "variant seed final greedy area tau", finals)
    _write_rows(out / "curves.csv", "variant seed episodes trained_tokens success score", curves)
    _write_rows(out / "drift.csv", "variant seed age rows kl ess", drifts)


def _write_rows(path: Path, names: str, rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([names.split(), *rows])


def _write_markdown(
    path: Path,
    title: str,
    command: str,
    sections: Sequence[tuple[str, Table]],
    pictures: Sequence[str],
) -> None:
    parts = [f"# {title}", f"```bash\n{command}\n```"]
    parts += [f"![{Path(name).stem}]({name})" for name in pictures]
    for heading, table in sections:
        head, *rows = table
        lines = [_pipes(head), _pipes(["---"] * len(head)), *map(_pipes, rows)]
        parts.append(f"## {heading}\n\n" + "\n".join(lines))
    path.write_text("\n\n".join(parts) + "\n")


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "img{max-width:100%}table{border-collapse:collapse}"
    "td,th{border-bottom:1px solid #ccc;padding:.3rem .8rem;text-align:left}"
    "pre{background:#f4f4f4;padding:.6rem}"
)


def _write_html(
    path: Path,
    title: str,
    command: str,
    sections: Sequence[tuple[str, Table]],
    pictures: Sequence[str],
) -> None:
    """Write one page that holds its pictures."""
    parts = [f"<h1>{html.escape(title)}</h1>", f"<pre>{html.escape(command)}</pre>"]
    for name in pictures:
        data = base64.b64encode((path.parent / name).read_bytes()).decode()
        parts.append(f'<img alt="{Path(name).stem}" src="data:image/png;base64,{data}">')
    for heading, (head, *rows) in sections:
        parts.append(f"<h2>{html.escape(heading)}</h2>")
        parts.append("<table>" + _cells("th", head) + "".join(_cells("td", r) for r in rows))
        parts.append("</table>")
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )
    path.write_text(page)


def _cells(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
