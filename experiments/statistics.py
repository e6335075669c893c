"""Estimates with intervals."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import stats

__all__ = ["Estimate", "mean_estimate", "share_estimate"]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value with the bounds of its 95% interval."""

    value: float
    low: float
    high: float


def share_estimate(hits: np.ndarray) -> Estimate:
    """Return the share of true values with Wilson's 95% interval (Wilson, 1927)."""
    count = int(np.sum(hits))
    interval = stats.binomtest(count, len(hits)).proportion_ci(method="wilson")
    return Estimate(count / len(hits), float(interval.low), float(interval.high))


def mean_estimate(values: np.ndarray, *, seed: int = 0) -> Estimate:
    """Return the mean with its 95% bootstrap interval (bias-corrected, Efron, 1987).

    Equal values have an interval of width 0.
    """
    data = np.asarray(values, np.float64)
    if len(data) < 2 or np.ptp(data) == 0:
        return Estimate(float(data.mean()), float(data.mean()), float(data.mean()))
    interval = stats.bootstrap(
        (data,), np.mean, n_resamples=2000, rng=np.random.default_rng(seed)
    ).confidence_interval
    return Estimate(float(data.mean()), float(interval.low), float(interval.high))
