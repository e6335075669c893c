"""What a checker says of a reply."""

from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np


class Verdict(IntEnum):
    """What a checker says of a reply; all but `RIGHT` count as wrong."""

    WRONG = 0
    """The answer was read and is another."""
    RIGHT = 1
    """The answer is equal to the gold one."""
    NO_ANSWER = 2
    """The reply holds no answer in the form asked for."""
    UNREADABLE = 3
    """There is an answer, but no value could be read from it."""
    UNDECIDED = 4
    """No stage could tell whether it is equal: out of time, too large, or no stage knows."""


# `(golds [B], replies [B]) -> verdicts [B] int8`; a pure function, whatever the batch.
Checker = Callable[[Sequence[str], Sequence[str]], np.ndarray]
