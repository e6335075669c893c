"""Exact stratified draws: a search, in integers, through running sums of shares.

One float32 uniform has 2^23 values and cannot address a million rows; a float32 running sum
over them is not even monotone. So masses are kept as nodes of sixteen children: a node holds
the running sums of its children's shares in units of 2^-30, integers, and a draw descends
from node to node with an integer position that gets fresh random bits at every level. A
child without mass has no unit and is never entered; strata hold through all levels.
"""

import dataclasses

import jax
import jax.numpy as jnp

__all__ = ["FAN_OUT", "Position", "bits_for_draws", "descend", "position", "running_shares"]

FAN_OUT = 16  # the fastest on CPU: an update costs fan-out x levels, a draw levels
UNITS = 1 << 30


def running_shares(masses: jax.Array, total: jax.Array) -> jax.Array:
    """Rounds the children's shares of each node to units and adds them up along the node.

    Args:
      masses: `[FAN_OUT, n]` float32, >= 0, the first children of all nodes first.
      total: `[n]` float32, their sums, each 0 or a normal number.

    Returns:
      `[n, FAN_OUT]` int32 running sums that end within 2^10 of 2^30, or all 0 for no mass.
    """
    # A little less than 2^30, so that rounding in float32 cannot carry a sum beyond it.
    scale = jnp.float32(UNITS - 512) / jnp.where(total > 0, total, 1.0)

    def one_child(sofar: jax.Array, child: jax.Array) -> tuple[jax.Array, jax.Array]:
        sofar = sofar + (child * scale).astype(jnp.int32)
        return sofar, sofar

    # A loop keeps XLA from computing each share anew for each of the sums it is part of.
    _, ends = jax.lax.scan(one_child, jnp.zeros(total.shape, jnp.int32), masses)
    return ends.T


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Position:
    """Where draws are: inside which node, and where in it.

    | field  | shape   | meaning                                             |
    |--------|---------|-----------------------------------------------------|
    | node   | B int32 | the node, counted inside its level                  |
    | offset | B int32 | the unit inside the node, at least 0 and below span |
    | span   | B int32 | the units of the node, from 1 to 2^30               |
    | bits   | B int32 | 30 random bits, less those already used             |
    """

    node: jax.Array
    offset: jax.Array
    span: jax.Array
    bits: jax.Array


def bits_for_draws(key: jax.Array, draws: int) -> tuple[jax.Array, jax.Array]:
    """Makes the random bits of a batch of draws.

    Args:
      key: typed PRNG key; it is consumed.
      draws: B.

    Returns:
      Two times `[B]` int32, 30 random bits each: one for the first position, one for all
      others, which take from it only what they need.
    """
    words = (jax.random.bits(key, (2, draws), jnp.uint32) >> 2).astype(jnp.int32)
    return words[0], words[1]


def position(
    offset: jax.Array, span: jax.Array, total: jax.Array, bits: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Stretches a position among few units over many, and fills the gaps with random bits.

    The result is uniform over the units that belong to the offset, to within about three
    units of 2^30: int32 has no room for offset * total, so the product is taken in parts.

    Args:
      offset: `[B]` int32 unit inside the parent, at least 0 and below span.
      span: `[B]` int32 units of the parent, from 1 to 2^30.
      total: `[B]` int32 units to stretch them over, from 0 to 2^30.
      bits: `[B]` int32, 30 random bits.

    Returns:
      `[B]` int32 from 0 to total - 1, and the `[B]` random bits that were not used up.
    """
    # total / span = whole + (fifteenth + rest) / 2^15, where fifteenth is an integer too. The
    # products by which the remainders are found overflow alike on both sides of a difference
    # that fits.
    each = 1.0 / span.astype(jnp.float32)
    whole = (total.astype(jnp.float32) * each).astype(jnp.int32)
    # float32 knows the quotient to 24 bits; the remainder tells what is missing.
    whole += jnp.floor((total - whole * span).astype(jnp.float32) * each).astype(jnp.int32)
    left = total - whole * span
    fifteenth = (left.astype(jnp.float32) * each * 32768.0).astype(jnp.int32)
    rest = (left * 32768 - fifteenth * span).astype(jnp.float32) * each
    start = (
        offset * whole
        + (offset >> 15) * fifteenth
        + (((offset & 32767) * fifteenth) >> 15)
        + (offset.astype(jnp.float32) * rest * (1.0 / 32768.0)).astype(jnp.int32)
    )
    width = whole + 1
    unused = (bits.astype(jnp.uint32) * width.astype(jnp.uint32)).astype(jnp.int32) & (UNITS - 1)
    place = jnp.clip(start + _high_product(bits, width), 0, total - 1)
    return place, unused


def descend(
    ends: jax.Array,
    first_rows: list[int],
    at: Position,
    some: jax.Array,
    fresh_bits: jax.Array | None = None,
) -> Position:
    """Goes down some levels: at each, finds the child that holds the position.

    Args:
      ends: `[M, FAN_OUT]` int32 running sums of the nodes of all levels.
      first_rows: where each level begins in `ends`, in the order of the descent.
      at: where to begin.
      some: bool scalar, false for a tree without mass, which is not descended.
      fresh_bits: `[B]` int32, 30 random bits to use from the second level on, in place of
        those that the first one leaves.

    Returns:
      The position inside the children of the last level.
    """
    flat = ends.reshape(-1)
    levels = len(first_rows)
    rows = jnp.array([*first_rows, 0], jnp.int32)

    def place_in(level: jax.Array | int, at: Position) -> tuple[jax.Array, jax.Array]:
        last = jnp.minimum((rows[level] + at.node) * FAN_OUT + FAN_OUT - 1, flat.shape[0] - 1)
        total = flat.at[last].get(mode="promise_in_bounds")
        # Past the last level there is no node to be placed in, and no bit to be spent.
        return position(at.offset, at.span, jnp.where(level < levels, total, 0), at.bits)

    def one_level(
        level: jax.Array, carry: tuple[Position, jax.Array]
    ) -> tuple[Position, jax.Array]:
        at, place = carry
        row = rows[level] + at.node
        passed = ends.at[row].get(mode="promise_in_bounds") <= place[:, None]
        child = jnp.minimum(jnp.sum(passed, axis=1, dtype=jnp.int32), FAN_OUT - 1)
        end = row * FAN_OUT + child
        high = flat.at[end].get(mode="promise_in_bounds")
        before = flat.at[jnp.maximum(end - 1, 0)].get(mode="promise_in_bounds")
        low = jnp.where(child > 0, before, 0)
        at = Position(
            node=at.node * FAN_OUT + child,
            offset=place - low,
            span=jnp.maximum(high - low, 1),
            bits=at.bits,
        )
        place, bits = place_in(level + 1, at)
        return dataclasses.replace(at, bits=bits), place

    place, bits = place_in(0, at)
    at = dataclasses.replace(at, bits=bits if fresh_bits is None else fresh_bits)
    # A loop whose length XLA does not know: it fuses a chain of levels, and then computes its
    # parts over and over.
    at, _ = jax.lax.fori_loop(0, jnp.where(some, levels, 0), one_level, (at, place))
    return at


def _high_product(bits: jax.Array, factor: jax.Array) -> jax.Array:
    """Multiplies 30-bit integers and shifts right by 30, in 15-bit halves; factor <= 2^30 + 1."""
    bits, factor = bits.astype(jnp.uint32), factor.astype(jnp.uint32)
    high, low = bits >> 15, bits & 32767
    factor_high, factor_low = factor >> 15, factor & 32767
    middle = high * factor_low + low * factor_high + ((low * factor_low) >> 15)
    return (high * factor_high + (middle >> 15)).astype(jnp.int32)
