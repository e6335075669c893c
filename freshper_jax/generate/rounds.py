"""Decoding in rounds, so that the host can end a row at a string its text contains."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from freshper_jax.generate.cache import KVCache, cut_rows
from freshper_jax.generate.decode import IDLE, STOP, STOP_STRING, Generation
from freshper_jax.generate.extend import UnstackedParams
from freshper_jax.generate.generator import Generator
from freshper_jax.generate.sampling import SamplingParams
from freshper_jax.models import Params


def first_stop(
    ids: Sequence[int],
    stop_strings: Sequence[str],
    text_of: Callable[[Sequence[int]], str],
    *,
    checked: int = 0,
) -> int | None:
    """Counts the tokens up to the one that completes a stop string; None where none does.

    Args:
      ids: tokens of one reply.
      stop_strings: strings that end it, wherever in a token they end.
      text_of: decodes tokens to text.
      checked: tokens known to complete none.
    """

    def ends(count: int) -> bool:
        text = text_of(ids[:count])
        return any(string in text for string in stop_strings)

    if checked >= len(ids) or not ends(len(ids)):
        return None
    return next(count for count in range(checked + 1, len(ids) + 1) if ends(count))


def decode_rounds(
    generator: Generator,
    params: Params | UnstackedParams,
    cache: KVCache,
    logits: jax.Array,
    key: jax.Array,
    row_seeds: ArrayLike,
    sampling: SamplingParams,
    stop_ids: ArrayLike,
    budgets: ArrayLike,
    *,
    max_new: int,
    stop_strings: Sequence[str],
    text_of: Callable[[Sequence[int]], str],
    round_tokens: int = 16,
) -> tuple[KVCache, jax.Array, Generation]:
    """Decodes as `Generator.decode` does, and ends a row at a stop string too.

    The host looks at the text after every round. A row that drew past its stop string in a
    round is cut after the token that completes the string, in the Generation and in the cache;
    what it keeps is what one call without rounds would have drawn.

    Args:
      generator: from `make_generator`; the arguments after it are those of its `decode`.
      stop_strings: non-empty strings that end a row.
      text_of: decodes a reply's tokens to text.
      round_tokens: tokens a round.

    Returns:
      The cache, the logits and the Generation, in numpy arrays. The logits of a row that
      was cut (reason STOP_STRING) are unspecified: append to it before it decodes again.

    Raises ValueError on an empty stop string or a round of no tokens.
    """
    if round_tokens < 1:
        raise ValueError(f"round_tokens must be at least 1, got {round_tokens}")
    if isinstance(stop_strings, str) or not all(stop_strings):
        raise ValueError(f"stop_strings must be non-empty strings, got {stop_strings!r}")
    left = np.minimum(np.asarray(budgets, np.int32), max_new)
    rows = len(left)
    fields: dict[str, Any] = {
        "tokens": np.zeros((rows, max_new), np.int32),
        "counts": np.zeros(rows, np.int32),
        "log_probs": np.zeros((rows, max_new), np.float32),
        "log_probs_t1": np.zeros((rows, max_new), np.float32),
        "stop_reason": np.full(rows, IDLE, np.int8),
    }
    drawn = Generation(**fields)
    while (left > 0).any():
        cache, logits, part = generator.decode(
            params, cache, logits, key, row_seeds, sampling, stop_ids,
            np.minimum(left, round_tokens), max_new=min(round_tokens, max_new),
        )  # fmt: skip
        part = jax.device_get(part)
        excess = np.zeros(rows, np.int32)
        for row in np.flatnonzero(left > 0).tolist():
            excess[row] = _take(drawn, part, row, stop_strings, text_of)
        ended = (drawn.stop_reason == STOP) | (drawn.stop_reason == STOP_STRING)
        # A row that drew less than it might has no room left in its cache.
        full = part.counts < np.minimum(left, round_tokens)
        left = np.where(ended | full, 0, left - part.counts)
        if excess.any():
            cache = cut_rows(cache, excess)
    return cache, logits, drawn


def _take(
    drawn: Any,
    part: Any,
    row: int,
    stop_strings: Sequence[str],
    text_of: Callable[[Sequence[int]], str],
) -> int:
    """Moves a row's tokens of a round into `drawn`, and returns how many it had too many."""
    before, count = int(drawn.counts[row]), int(part.counts[row])
    reason = part.stop_reason[row]
    drawn.tokens[row, before : before + count] = part.tokens[row, :count]
    ids = drawn.tokens[row, : before + count].tolist()
    # A stop id is no text: with or without it the string is complete.
    end = first_stop(ids, stop_strings, text_of, checked=before)
    kept = count if end is None else end - before
    drawn.tokens[row, before + kept :] = 0
    for name in ("log_probs", "log_probs_t1"):
        getattr(drawn, name)[row, before : before + kept] = getattr(part, name)[row, :kept]
    drawn.counts[row] = before + kept
    if count > 0 or before == 0:
        drawn.stop_reason[row] = reason if end is None else STOP_STRING
    return count - kept
