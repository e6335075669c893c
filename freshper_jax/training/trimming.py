"""Scoring only as many columns as a batch fills, from a closed set of widths."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["filled_columns", "trim_widths", "trimmed"]

Score = Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
ScoreColumns = Callable[[Any, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def filled_columns(response_mask: jax.Array) -> jax.Array:
    """Computes, for each row, the columns up to its last response token, int32 `[B]`.

    What follows them has no part in any loss.
    """
    column = jnp.arange(1, response_mask.shape[1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(response_mask, column[None, :], 0), axis=1)


def trim_widths(tokens: int, count: int) -> tuple[int, ...]:
    """Returns `count` widths in equal steps up to `tokens`; fewer where there are too few."""
    return tuple(sorted({-(-tokens * step // count) for step in range(1, count + 1)}))


def trimmed(score: Score, count: int) -> ScoreColumns:
    """Makes a scorer that reads the narrowest of `count` widths that holds every response.

    The widths are branches of one program: nothing compiles again as lengths change, and a
    batch of short rows costs what it holds instead of what it could hold.

    Args:
        score: `(params, tokens [B, T], temperature [B]) -> (log_probs, entropy)`, causal: a
            column depends on no later one.
        count: number of widths; 1 always reads everything.

    Returns:
        `(params, tokens, temperature, columns) -> (log_probs, entropy)`, both `[B, T]` and 0
        past the width read. `columns` is int32 `[]`, the columns that matter.
    """

    def score_columns(
        params: Any, tokens: jax.Array, temperature: jax.Array, columns: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        length = tokens.shape[1]
        widths = trim_widths(length, count)

        def branch(width: int) -> Callable[[Any], tuple[jax.Array, jax.Array]]:
            def run(params: Any) -> tuple[jax.Array, jax.Array]:
                values = score(params, tokens[:, :width], temperature)
                padding = ((0, 0), (0, length - width))
                return jnp.pad(values[0], padding), jnp.pad(values[1], padding)

            return run

        if len(widths) == 1:
            return score(params, tokens, temperature)
        index = jnp.sum(columns > jnp.asarray(widths[:-1]), dtype=jnp.int32)
        return jax.lax.switch(index, [branch(width) for width in widths], params)

    return score_columns
