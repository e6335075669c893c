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


def start_indices(indices: Any, count: int, starts: int) -> np.ndarray:
    """Returns [count] int64 places among so many starts."""
    indices = np.asarray(indices)
    if indices.shape != (count,) or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(
            f"start_indices must be {count} integers, not {indices.dtype} {indices.shape}"
        )
    if indices.min() < 0 or indices.max() >= starts:
        raise ValueError(
            f"start_indices must be in 0 to {starts - 1}, not {indices.min()} to {indices.max()}"
        )
    return indices.astype(np.int64)


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
