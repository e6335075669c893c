"""Spaces of text."""

from typing import Any

from gymnasium import spaces

LONGEST = 1 << 16
PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"


class FreeText(spaces.Text):
    """Any string up to a length; samples are of printable ASCII characters."""

    def __init__(self, max_length: int = LONGEST, *, min_length: int = 0) -> None:
        super().__init__(max_length, min_length=min_length, charset=PRINTABLE)

    def contains(self, x: Any) -> bool:
        """Says whether `x` is a string of a length allowed, of whatever characters."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length
