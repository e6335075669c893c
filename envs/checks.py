"""Checks of arguments: each returns the value in its canonical form or raises.

A ValueError or TypeError names the field, the value and what was expected.
"""

import operator
from typing import Any

import numpy as np


def reset_mask(mask: Any, count: int) -> np.ndarray:
    """Returns the rows to reset, [count] bool; all of them for None."""
    mask = np.ones(count, bool) if mask is None else np.asarray(mask)
    if mask.shape != (count,) or mask.dtype != np.bool_:
        raise ValueError(
            f"reset_mask must be bool of shape ({count},), not {mask.dtype} {mask.shape}"
        )
    return mask


def level_indices(indices: Any, count: int, levels: int) -> np.ndarray:
    """Returns [count] int64 places in a set of so many levels."""
    indices = np.asarray(indices)
    if indices.shape != (count,) or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(
            f"level_indices must be {count} integers, not {indices.dtype} {indices.shape}"
        )
    if indices.min() < 0 or indices.max() >= levels:
        raise ValueError(
            f"level_indices must be in 0 to {levels - 1}, not {indices.min()} to {indices.max()}"
        )
    return indices.astype(np.int64)


def moves(given: Any, count: int, codes: int) -> np.ndarray:
    """Returns [count, M] integers below `codes`, M at least 1."""
    moves = np.asarray(given)
    if moves.ndim != 2 or len(moves) != count or not np.issubdtype(moves.dtype, np.integer):
        raise ValueError(
            f"moves must be integers of shape ({count}, M), not {moves.dtype} {moves.shape}"
        )
    if not moves.size or moves.min() < 0 or moves.max() >= codes:
        raise ValueError(f"moves must be in 0 to {codes - 1}, at least one a row: {moves.tolist()}")
    return moves


def integer(field: str, value: Any) -> int:
    """Returns an integer of any integer type as int."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{field} must be an integer, not {value!r}") from error


def positive(field: str, value: Any) -> int:
    """Returns an integer that is at least 1."""
    count = integer(field, value)
    if count < 1:
        raise ValueError(f"{field} must be at least 1, not {value}")
    return count


def finite(field: str, value: float) -> float:
    """Returns a finite number as float."""
    if not np.isfinite(value):
        raise ValueError(f"{field} must be finite, not {value}")
    return float(value)


def one_of(field: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """Returns a value that is among the allowed ones."""
    if value not in allowed:
        raise ValueError(f"{field} must be one of {allowed}, not {value!r}")
    return value
