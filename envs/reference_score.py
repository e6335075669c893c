"""What a way to play reaches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReferenceScore:
    """Share of episodes that succeed within the horizon, and mean sum of rewards."""

    success: float
    score: float
