"""Reads off a tree of integers the distribution that draws from it follow, exactly."""

import numpy as np


def level_of(ends, nodes, parents):
    """Splits the probabilities of some nodes among their children, in units of the node."""
    units = np.diff(np.asarray(ends[:nodes], np.int64), axis=1, prepend=0)
    total = np.maximum(units.sum(axis=1, keepdims=True), 1)
    return (parents[:, None] * units / total).reshape(-1)


def induced_probabilities(forest):
    """Multiplies, for each leaf, its share of the units of every node above it.

    Args:
      forest: what `plant` returned.

    Returns:
      `[N]` float64.
    """
    lower = -(-forest.leaves // 16)
    upper = -(-lower // 16)
    units = np.diff(np.asarray(forest.crown, np.int64), prepend=0)
    chances = units / max(units.sum(), 1)
    chances = level_of(forest.ends[lower:], upper, chances[:upper])
    return level_of(forest.ends, lower, chances[:lower])[: forest.leaves]
