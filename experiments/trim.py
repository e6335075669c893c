"""Cutting text to a number of a tokenizer's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["make_token_trim"]


def make_token_trim(tokenizer: Any) -> Callable[[Sequence[str], int], list[str]]:
    """Make a function `(texts, budget) -> texts` from a fast tokenizer.

    Each result is a beginning of its text that takes at most `budget` tokens, read by itself.
    """

    def trim(texts: Sequence[str], budget: int) -> list[str]:
        texts = list(texts)
        while texts:
            read = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
            long = [len(ids) > budget for ids in read["input_ids"]]
            if not any(long):
                break
            # What is left of a word that was cut may take more tokens than before: look again.
            texts = [
                text[: min(places[budget][0], len(text) - 1)] if cut else text
                for text, places, cut in zip(texts, read["offset_mapping"], long, strict=True)
            ]
        return texts

    return trim
