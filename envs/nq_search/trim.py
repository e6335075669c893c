"""Cutting retrieved text to a budget."""

import re
from collections.abc import Callable, Sequence

# `(texts, budget) -> texts`, each a beginning of what it was, of at most `budget` tokens.
Trim = Callable[[Sequence[str], int], list[str]]

_WORD = re.compile(r"\S+")


def trim_words(texts: Sequence[str], budget: int) -> list[str]:
    """Cuts texts to at most `budget` words each, parted by white space."""
    return [_first_words(text, budget) for text in texts]


def _first_words(text: str, budget: int) -> str:
    end = 0
    for _, word in zip(range(budget), _WORD.finditer(text), strict=False):
        end = word.end()
    return text[:end]
