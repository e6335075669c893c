"""Batches in an order in which their parts hold rows of like length."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from freshper_jax.training.state import TrainState

__all__ = ["halvings", "in_length_order", "length_order"]

Update = Callable[..., tuple[TrainState, dict[str, jax.Array], Any]]


def halvings(length: int, *, least: int = 32, count: int = 3) -> tuple[int, ...]:
    """Return a length halved up to `count` times, rounded up to multiples of 16, from `least` on.

    They are the `widths` of `make_update` for rows of which many are far shorter than `length`.
    """
    halves = (math.ceil(length / 2**power / 16) * 16 for power in range(1, count + 1))
    return tuple(sorted({max(half, least) for half in halves if max(half, least) < length}))


def length_order(response_mask: jax.Array, parts: int) -> jax.Array:
    """Order rows so that every `parts`-th row from m on are neighbours in length.

    Such are the parts of `make_update`. A part then has rows in every stretch of the batch, so
    that each device of a mesh has its share.

    Args:
      response_mask: `[B, T]` bool; a row is as long as its last response token.
      parts: how many there are; they divide `B`.

    Returns:
      `[B]` int32, the rows in their new order.
    """
    rows, length = response_mask.shape
    places = jnp.arange(1, length + 1, dtype=jnp.int32)
    ends = jnp.max(jnp.where(response_mask, places, 0), axis=1)
    return jnp.argsort(ends).reshape(parts, rows // parts).T.reshape(-1).astype(jnp.int32)


def in_length_order(update: Update, parts: int, place: Callable[[Any], Any]) -> Update:
    """Make an update that has its rows in `length_order`; it tells of them in their old order.

    Args:
      update: from `make_update`, with so many microbatches.
      parts: microbatches.
      place: puts a batch on the devices.
    """
    if parts == 1:
        return update

    @jax.jit
    def arrange(batch: Any, weights: jax.Array) -> tuple[Any, jax.Array]:
        order = length_order(batch.response_mask, parts)
        return jax.tree.map(lambda leaf: leaf[order], (batch, weights)), jnp.argsort(order)

    @jax.jit
    def restore(rows: Any, back: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[back], rows)

    def ordered(state: TrainState, batch: Any, weights: jax.Array) -> Any:
        arranged, back = arrange(batch, weights)
        state, metrics, rows = update(state, *place(arranged))
        return state, metrics, restore(rows, back)

    return ordered
