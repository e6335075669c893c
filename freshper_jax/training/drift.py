"""How far replayed data lies from the policy, by its age."""

from __future__ import annotations

import numpy as np
from jax.typing import ArrayLike

from freshper_jax.objectives import RowStatistics

__all__ = ["AGE_EDGES", "age_bin_labels", "drift_by_age"]

# Octaves of age in optimiser updates; the last bin is open.
AGE_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def age_bin_labels() -> list[str]:
    """Return a name for each age bin, such as "4-7"."""
    ends = (*AGE_EDGES[1:], None)
    return [
        f"{low}+" if high is None else (str(low) if high == low + 1 else f"{low}-{high - 1}")
        for low, high in zip(AGE_EDGES, ends, strict=True)
    ]


def drift_by_age(ages: np.ndarray, rows: RowStatistics) -> dict[str, list[float]]:
    """Summarise replayed rows by octave of age, from the update's own forward pass.

    Args:
      ages: `[R]` optimiser updates since each row was collected.
      rows: sums over the response tokens of each row, numpy arrays `[R]`.

    Returns:
      One number a bin of `AGE_EDGES`; empty bins hold 0. `count` of rows; means over rows of
      the KL of a sequence, nats, by the estimators k1 and k3: `kl_k1`, `kl` (Schulman, 2020);
      `token_kl`, k3 a response token; `ess`, Kong's effective share of the sequence ratios, and
      `renyi2`, its negative logarithm, nats (method section 1.4, steps 1 and 4), which n rows
      never show above log n; `clip_fraction` of response tokens; `log_ratio_low`,
      `log_ratio_median` and `log_ratio_high`, the tenth, fiftieth and ninetieth percentile of
      the sequence log-ratio, nats.
    """
    bins = np.searchsorted(AGE_EDGES, ages, side="right") - 1
    size = len(AGE_EDGES)

    def total(values: ArrayLike | None = None) -> np.ndarray:
        weights = None if values is None else np.asarray(values, np.float64)
        return np.bincount(bins, weights=weights, minlength=size).astype(np.float64)

    count, tokens = total(), np.maximum(total(rows.token_count), 1)
    ess = np.zeros(size)
    quantiles = np.zeros((3, size))
    for index in np.flatnonzero(count):
        logs = np.asarray(rows.log_ratio)[bins == index].astype(np.float64)
        ratios = np.exp(logs - logs.max())
        ess[index] = ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())
        quantiles[:, index] = np.quantile(logs, (0.1, 0.5, 0.9))
    summary = {
        "count": count,
        "kl": total(rows.kl_k3) / np.maximum(count, 1),
        "kl_k1": total(rows.kl_k1) / np.maximum(count, 1),
        "token_kl": total(rows.kl_k3) / tokens,
        "ess": ess,
        "renyi2": -np.log(np.where(ess > 0, ess, 1.0)),
        "clip_fraction": total(rows.clipped) / tokens,
        **dict(
            zip(("log_ratio_low", "log_ratio_median", "log_ratio_high"), quantiles, strict=True)
        ),
    }
    return {name: values.tolist() for name, values in summary.items()}
