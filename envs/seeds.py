"""From seeds to numbers that look random: counter-based, alike in every row and process."""

import numpy as np


def scramble(values: np.ndarray) -> np.ndarray:
    """Maps uint64 values one to one to ones whose every bit depends on all (splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def indices_of_seeds(seeds: np.ndarray, count: int) -> np.ndarray:
    """Maps seeds [B] uint64 to places in a set of so many, [B] int64, scattered over it."""
    return (scramble(seeds) % np.uint64(count)).astype(np.int64)


def uniform(seeds: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Returns one number in [0, 1) for each seed [B] uint64 and turn [B], [B] float64."""
    mixed = scramble(scramble(seeds) ^ turns.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
