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
import numpy as np

from freshper_jax.replay.leaves import read_at

__all__ = [
    "FAN_OUT",
    "Position",
    "bits_for_draws",
    "child_at",
    "descend",
    "is_plain_threefry",
    "position",
    "random_words",
    "running_shares",
    "running_sums",
]

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
    return running_sums((masses * scale[None, :]).astype(jnp.int32)).T


def running_sums(values: jax.Array) -> jax.Array:
    """Adds integers up along the leading axis: `[k, n]` int32 to the same."""

    def one_more(sofar: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        return sofar + value, sofar + value

    # A loop keeps XLA from computing each value anew for each of the sums it is part of.
    return jax.lax.scan(one_more, jnp.zeros(values.shape[1:], jnp.int32), values)[1]


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


def is_plain_threefry(key: jax.Array) -> bool:
    """Tells whether `random_words` makes the words of such a key itself."""
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    return bool(partitionable) and str(jax.random.key_impl(key)) == "threefry2x32"


def random_words(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Makes the words of `jax.random.bits`, where the key is a threefry one without its loop.

    On CPU JAX writes the rounds as a loop of small kernels, which costs a small draw more than
    all of its own search.

    Args:
      key: typed PRNG key; it is consumed.
      shape: of the result, up to 2^32 words.

    Returns:
      uint32 words, bit for bit those of `jax.random.bits` under partitionable threefry.

    Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, section 4.
    """
    if not is_plain_threefry(key):
        return jax.random.bits(key, shape, jnp.uint32)
    first, second = jax.random.key_data(key)
    keys = (first, second, first ^ second ^ np.uint32(0x1BD11BDA))
    x = jnp.full(shape, first)
    y = jax.lax.iota(jnp.uint32, shape[0] * shape[1]).reshape(shape) + second
    for group in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = x + y
            y = (y << np.uint32(distance)) | (y >> np.uint32(32 - distance))
            y = y ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x ^ y


def bits_for_draws(key: jax.Array, draws: int) -> tuple[jax.Array, jax.Array]:
    """Makes the random bits of a batch of draws.

    Args:
      key: typed PRNG key; it is consumed.
      draws: B.

    Returns:
      Two times `[B]` int32, 30 random bits each: one for the first position, one for all
      others, which take from it only what they need.
    """
    words = (random_words(key, (2, draws)) >> 2).astype(jnp.int32)
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


def descend(ends: jax.Array, first_rows: list[int], at: Position) -> Position:
    """Goes down some levels: at each, finds the child that holds the position.

    Args:
      ends: `[M, FAN_OUT]` int32 running sums of the nodes of all levels.
      first_rows: where each level begins in `ends`, in the order of the descent.
      at: where to begin.

    Returns:
      The position inside the children of the last level; the first of them where there is no
      mass.
    """
    flat = ends.reshape(-1)
    for first_row in first_rows:
        first = (first_row + at.node) * FAN_OUT
        total = read_at(flat, first + FAN_OUT - 1)
        place, bits = position(at.offset, at.span, total, at.bits)
        at = child_at(flat, first, FAN_OUT, place, bits)
        at = dataclasses.replace(at, node=at.node - first_row * FAN_OUT)
    return at


def child_at(
    ends: jax.Array, first: jax.Array, count: int, place: jax.Array, bits: jax.Array
) -> Position:
    """Finds, by halving, which of some ascending ends is the first beyond each place.

    Args:
      ends: `[M]` int32.
      first: `[B]` int32, where in `ends` those of each draw begin.
      count: how many each draw has; the last one is beyond its place.
      place: `[B]` int32.
      bits: `[B]` int32, passed on.

    Returns:
      The position inside what ends there, which is counted as `ends` is.
    """
    steps = (count - 1).bit_length()

    def halve(done: jax.Array, found: jax.Array) -> jax.Array:
        step = jax.lax.shift_left(jnp.int32(1), steps - 1 - done)
        probe = first + jnp.minimum(found + step, count) - 1
        passed = read_at(ends, probe) <= place
        return found + jnp.where(passed, step, 0)

    # A loop, since XLA computes the place anew at each step of a chain.
    found = jax.lax.fori_loop(0, steps, halve, jnp.zeros_like(place))
    end = first + found
    before = read_at(ends, jnp.maximum(end - 1, 0))
    low = jnp.where(found > 0, before, 0)
    high = read_at(ends, end)
    return Position(node=end, offset=place - low, span=jnp.maximum(high - low, 1), bits=bits)


def _high_product(bits: jax.Array, factor: jax.Array) -> jax.Array:
    """Multiplies 30-bit integers and shifts right by 30, in 15-bit halves; factor <= 2^30 + 1."""
    bits, factor = bits.astype(jnp.uint32), factor.astype(jnp.uint32)
    high, low = bits >> 15, bits & 32767
    factor_high, factor_low = factor >> 15, factor & 32767
    middle = high * factor_low + low * factor_high + ((low * factor_low) >> 15)
    return (high * factor_high + (middle >> 15)).astype(jnp.int32)
