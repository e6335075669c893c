"""Estimates with intervals."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import stats

__all__ = [
    "Estimate",
    "improvement_estimate",
    "interquartile_mean",
    "iqm_estimate",
    "mean_estimate",
    "share_estimate",
]


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


def interquartile_mean(values: np.ndarray) -> float:
    """Return the mean of the middle half of values `[runs]` (Agarwal et al., 2021)."""
    return float(stats.trim_mean(np.asarray(values, np.float64), 0.25))


def iqm_estimate(runs: np.ndarray, *, seed: int = 0, resamples: int = 10_000) -> Estimate:
    """Return the interquartile mean of runs with its 95% percentile bootstrap interval.

    Runs are drawn with replacement; of several tasks each is a stratum that is drawn on its
    own and all scores are averaged together (Agarwal et al., "Deep reinforcement learning at
    the edge of the statistical precipice", 2021).

    Args:
      runs: `[runs]` scores, or `[runs, tasks]`.
      seed: of the bootstrap.
      resamples: bootstrap samples.
    """
    scores = np.asarray(runs, np.float64).reshape(len(runs), -1)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(scores), (resamples, *scores.shape))
    samples = np.take_along_axis(scores[None], drawn, axis=1).reshape(resamples, -1)
    means = stats.trim_mean(samples, 0.25, axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(interquartile_mean(scores.ravel()), float(low), float(high))


def improvement_estimate(
    ours: np.ndarray, theirs: np.ndarray, *, seed: int = 0, resamples: int = 10_000
) -> Estimate:
    """Return the probability that a run of ours beats one of theirs, with its 95% interval.

    It is the share of pairs in which ours is larger, ties counted half: Mann and Whitney's U
    over the number of pairs. The interval is a percentile bootstrap over the runs of both.

    Args:
      ours, theirs: `[runs]` scores; the numbers of runs may differ.
      seed: of the bootstrap.
      resamples: bootstrap samples.
    """
    first, second = (np.asarray(runs, np.float64) for runs in (ours, theirs))
    wins = (first[:, None] > second) + 0.5 * (first[:, None] == second)
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(first), (resamples, len(first)))
    columns = rng.integers(0, len(second), (resamples, len(second)))
    means = wins[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2))
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(wins.mean()), float(low), float(high))
