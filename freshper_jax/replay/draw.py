"""Exact stratified draws from N masses by a short search through sums of blocks.

One float32 uniform has 2^23 values and cannot address a million rows; a float32 running sum
over them is not even monotone. So a draw descends a tree of a few levels of at most
sixteen children, and at each level compares integers: the children's masses are rounded to
shares of about 2^30 units, and the draw's position inside the parent, an integer too, gets
fresh random bits before it is compared. A child without mass has no units and is never
entered; strata are exact, and hold through all levels.
"""

import math

import jax
import jax.numpy as jnp

__all__ = ["apportion", "block_sums", "draw_stratified"]

_UNITS = 1 << 30
_BRANCHING = 16  # the fastest on CPU: search costs draws x children x levels


def block_sums(masses: jax.Array) -> list[jax.Array]:
    """Sums masses over blocks, blocks of blocks, and so on up to one root.

    Args:
      masses: `[N]` float32, >= 0.

    Returns:
      The levels from coarse to fine, each `[parents, children]` float32; the last one holds
      the masses themselves, padded with zeros.
    """
    rows = masses.shape[0]
    depth = max(1, math.ceil(round(math.log(rows, _BRANCHING), 9)))
    children = max(2, math.ceil(round(rows ** (1 / depth), 9)))
    level = jnp.pad(masses, (0, children**depth - rows)).reshape(-1, children)
    levels = [level]
    while level.shape[0] > 1:
        level = jnp.sum(level, axis=1).reshape(-1, children)
        levels.append(level)
    return levels[::-1]


def draw_stratified(key: jax.Array, levels: list[jax.Array], draws: int) -> jax.Array:
    """Draws rows with replacement, one from each of `draws` equal strata of the total mass.

    Args:
      key: typed PRNG key; it is consumed.
      levels: what `block_sums` returned.
      draws: how many rows to draw, below 2^30.

    Returns:
      `[draws]` int32 indices of rows, in ascending order, each of positive mass; all 0 when
      there is no mass at all.

    Source: stratified proportional sampling, Prioritized Experience Replay, arXiv 1511.05952,
    appendix B.2.1.
    """
    node = jnp.zeros((draws,), jnp.int32)
    offset = jnp.arange(draws, dtype=jnp.int32)
    span = jnp.full((draws,), draws, jnp.int32)
    for level, level_key in zip(levels, jax.random.split(key, len(levels)), strict=True):
        child, offset, span = _descend(level_key, level[node], offset, span)
        node = node * level.shape[1] + child
    return node


def _descend(
    key: jax.Array, masses: jax.Array, offset: jax.Array, span: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Finds the child that holds the position offset / span of its parent's mass.

    Args:
      key: typed PRNG key.
      masses: `[B, children]` float32.
      offset: `[B]` int32 unit inside the parent, at least 0 and below span.
      span: `[B]` int32 units of the parent, from 1 to 2^30.

    Returns:
      `[B]` int32 each: the child, the unit inside it, its units.
    """
    fineness = _UNITS // span
    target = offset * fineness + jax.random.randint(key, offset.shape, 0, fineness)
    units = apportion(masses, span * fineness)
    ends = jnp.cumsum(units, axis=1, dtype=jnp.int32)
    child = jnp.sum(ends <= target[:, None], axis=1, dtype=jnp.int32)
    child_span = jnp.take_along_axis(units, child[:, None], axis=1)[:, 0]
    child_end = jnp.take_along_axis(ends, child[:, None], axis=1)[:, 0]
    return child, target - (child_end - child_span), child_span


def apportion(masses: jax.Array, total: jax.Array) -> jax.Array:
    """Rounds masses to whole units that add up to the total exactly.

    Args:
      masses: `[B, children]` float32, >= 0.
      total: `[B]` int32 units to share out, more than 2^29.

    Returns:
      `[B, children]` int32; what rounding left over goes to the largest child, where it
      weighs least.
    """
    whole = jnp.maximum(jnp.sum(masses, axis=1), jnp.finfo(jnp.float32).tiny)
    shares = masses / whole[:, None]
    units = jnp.round(shares * total.astype(jnp.float32)[:, None]).astype(jnp.int32)
    rest = total - jnp.sum(units, axis=1, dtype=jnp.int32)
    largest = jnp.argmax(masses, axis=1).astype(jnp.int32)
    place = jnp.arange(masses.shape[1], dtype=jnp.int32)
    return units + jnp.where(place[None, :] == largest[:, None], rest[:, None], 0)
