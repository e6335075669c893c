"""How far replayed rows were from the policy, by age, over a whole run, and the law it follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freshper_jax.training import AGE_EDGES

__all__ = ["CENTRES", "DriftProfile", "Growth", "crossing_age", "drift_profile", "growth"]

_LEAST_ROWS = 8

# An age within each octave: the geometric mean of the ages that it holds.
_ENDS = (*AGE_EDGES[1:], 2 * AGE_EDGES[-1])
CENTRES = np.array(
    [
        np.sqrt(max(low, 0.5) * max(high - 1, 0.5))
        for low, high in zip(AGE_EDGES, _ENDS, strict=True)
    ]
)


@dataclasses.dataclass(frozen=True)
class DriftProfile:
    """Averages over the second half of a run, when every age has been seen, by octave of age.

    count: `[A]` replayed rows. kl: `[A]` mean KL of a row, nats. ess: `[A]` mean ESS share, over
      iterations that drew at least 8 rows of the octave; NaN where none did.
    tau: the decay constant in use at the end, None where rows do not age.
    """

    count: np.ndarray
    kl: np.ndarray
    ess: np.ndarray
    tau: float | None


@dataclasses.dataclass(frozen=True)
class Growth:
    """The law `KL = at_one * age^power` fitted to a profile, and what else it says.

    half_ess_age: the age at which the ESS share falls to a half, infinite if it never does.
    tau_of_rate: 1 / c of the line `KL = c * age` through the origin, the paper's tau.
    """

    at_one: float
    power: float
    half_ess_age: float
    tau_of_rate: float


def drift_profile(
    lines: Sequence[Mapping[str, Any]], tau: float | None = None
) -> DriftProfile | None:
    """Average the `age/*` metrics of a run's log; None where nothing was replayed.

    Args:
      lines: of `metrics.jsonl`.
      tau: the decay constant, where it is fixed; a measured one is read from the log.
    """
    replayed = [line for line in lines if "age/count" in line]
    late = replayed[len(replayed) // 2 :]
    if not late:
        return None
    counts = np.array([line["age/count"] for line in late])
    total = counts.sum(axis=0)

    def average(name: str, rows: np.ndarray) -> np.ndarray:
        values = np.array([line[f"age/{name}"] for line in late])
        return (values * rows).sum(axis=0) / rows.sum(axis=0)

    # The ESS share of few rows is close to 1, whatever they are.
    enough = np.where(counts >= _LEAST_ROWS, counts, 0)
    measured = [line["tau/tau"] for line in lines if "tau/tau" in line]
    with np.errstate(invalid="ignore"):  # nothing over nothing is NaN
        kl, ess = average("kl", counts), average("ess", enough)
    return DriftProfile(total, kl, ess, measured[-1] if measured else tau)


def growth(profile: DriftProfile, least: int = 20) -> Growth:
    """Fit the law by least squares in logarithms, weighted by rows.

    Octaves with fewer than `least` rows, and the age 0, are left out; with fewer than two
    octaves everything is NaN.
    """
    used = (profile.count >= least) & (CENTRES >= 1) & (profile.kl > 0)
    nan = float("nan")
    if used.sum() < 2:
        return Growth(nan, nan, nan, nan)
    age, kl, rows = CENTRES[used], profile.kl[used], profile.count[used]
    known = used & np.isfinite(profile.ess)
    # polyfit squares its weights.
    power, constant = np.polyfit(np.log(age), np.log(kl), 1, w=np.sqrt(rows))
    rate = (rows * age * kl).sum() / (rows * age**2).sum()
    return Growth(
        at_one=float(np.exp(constant)),
        power=float(power),
        half_ess_age=crossing_age(profile.ess[known], CENTRES[known], 0.5),
        tau_of_rate=float(1 / rate),
    )


def crossing_age(share: np.ndarray, age: np.ndarray, threshold: float) -> float:
    """Return the age at which a share first falls to a threshold, between octaves in logs."""
    below = np.flatnonzero(share <= threshold)
    if not len(below):
        return float("inf")
    first = below[0]
    if first == 0:
        return float(age[0])
    part = (share[first - 1] - threshold) / (share[first - 1] - share[first])
    return float(age[first - 1] * (age[first] / age[first - 1]) ** part)
