"""How far replayed data lies from the policy, by its age."""

from __future__ import annotations

import numpy as np

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


def drift_by_age(
    ages: np.ndarray, log_ratios: np.ndarray, kl: np.ndarray
) -> dict[str, list[float]]:
    """Summarise replayed rows by octave of age.

    Args:
      ages: `[R]` optimiser updates since each row was collected.
      log_ratios: `[R]` sum over a row's response tokens of log policy - log behaviour.
      kl: `[R]` sum over a row's response tokens of the k3 estimate, in nats.

    Returns:
      One number a bin of `AGE_EDGES`: `count`, mean `kl` a sequence, and `ess`, Kong's
      effective share of the sequence ratios (method section 1.4, step 1). Empty bins hold 0.
    """
    bins = np.searchsorted(AGE_EDGES, ages, side="right") - 1
    size = len(AGE_EDGES)
    count = np.bincount(bins, minlength=size).astype(np.float64)
    total_kl = np.bincount(bins, weights=kl.astype(np.float64), minlength=size)
    ess = np.zeros(size)
    for index in np.flatnonzero(count):
        logs = log_ratios[bins == index].astype(np.float64)
        ratios = np.exp(logs - logs.max())
        ess[index] = ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())
    return {
        "count": count.tolist(),
        "kl": (total_kl / np.maximum(count, 1)).tolist(),
        "ess": ess.tolist(),
    }
