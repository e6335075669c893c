"""Stored sums of priorities that no clock moves, so that a draw need not look at every row.

A node stands for its rows as one row would: by the logarithm of their mass, as it was at the
birth of its newest row, and by that birth. Masses of nodes meet only through differences of
births, taken in integers first, so nothing grows, nothing drifts and nothing has to be
refreshed, however far the clock runs. Two levels of sixteen are stored; what is above them,
one node in 256 rows, is summed anew at each draw, into one row of running sums.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from freshper_jax.replay.draw import (
    FAN_OUT,
    child_at,
    descend,
    position,
    running_shares,
    running_sums,
)
from freshper_jax.replay.priority import newest_birth

__all__ = [
    "Forest",
    "PriorityTree",
    "build_tree",
    "draw_leaves",
    "plant",
    "refresh_tree",
    "tree_rows",
]

_LARGEST_LAG = 1e30  # finite, so that a rate of zero does not meet infinity

LeavesAt = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PriorityTree:
    """Two levels of nodes over N leaves, the lower one first; M = ceil(N/16) + ceil(N/256).

    A leaf's mass is (base exp(-age / tau))^alpha. The two exponents are part of the type of
    the tree: sums made for one pair mean nothing for another.

    | field    | shape       | meaning                                                       |
    |----------|-------------|---------------------------------------------------------------|
    | ends     | M, 16 int32 | running sums of the children's shares of the node, 2^30 in all |
    | log_mass | M float32   | log of the node's mass at `newest`, -inf for none             |
    | newest   | M int32     | the latest birth in the node                                  |
    | alpha    | float       | exponent of the priority                                      |
    | tau      | float       | age at which the priority has fallen to 1/e; infinity for never |
    """

    ends: jax.Array
    log_mass: jax.Array
    newest: jax.Array
    alpha: float = dataclasses.field(metadata={"static": True})
    tau: float = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Forest:
    """A tree with what is above its stored levels, ready to draw from.

    | field        | shape       | meaning                                                    |
    |--------------|-------------|------------------------------------------------------------|
    | ends         | M, 16 int32 | the stored levels                                          |
    | crown        | U int32     | running sums of the shares of the upper level's nodes, the |
    |              |             | last one within 2^15 + 2 U of 2^30; 0 without mass         |
    | log_mass     | float32     | log of the mass of all leaves at `newest`                  |
    | newest       | int32       | the latest birth of all                                    |
    | leaves       | int         | N                                                          |
    """

    ends: jax.Array
    crown: jax.Array
    log_mass: jax.Array
    newest: jax.Array
    leaves: int = dataclasses.field(metadata={"static": True})


def build_tree(
    log_mass: jax.Array, births: jax.Array, rate: jax.Array, *, alpha: float, tau: float
) -> PriorityTree:
    """Sums all leaves.

    Args:
      log_mass: `[N]` float32 logarithms of the leaves' masses at their births, -inf for none.
      births: `[N]` int32 clocks.
      rate: float32 scalar, what `decay_rate` gives.
      alpha: what the tree is labelled with.
      tau: what the tree is labelled with.

    Returns:
      The tree.
    """
    lower = _summarise(_in_nodes(log_mass, -jnp.inf), _in_nodes(births, 0), rate)
    upper = _summarise(_in_nodes(lower.log_mass, -jnp.inf), _in_nodes(lower.newest, 0), rate)
    return PriorityTree(
        ends=_ends_of(lower, upper),
        log_mass=jnp.concatenate([lower.log_mass, upper.log_mass]),
        newest=jnp.concatenate([lower.newest, upper.newest]),
        alpha=alpha,
        tau=tau,
    )


def refresh_tree(
    tree: PriorityTree,
    leaves_at: LeavesAt,
    leaves: int,
    changed: jax.Array,
    rate: jax.Array,
    *,
    births_changed: bool,
) -> PriorityTree:
    """Sums anew the nodes above some leaves.

    Args:
      tree: the tree.
      leaves_at: gives the logarithms of masses and the births of leaves, for `[16, n]` int32
        indices that are in range.
      leaves: N.
      changed: `[B]` int32 leaves, in range; duplicates do no harm.
      rate: float32 scalar, what `decay_rate` gives.
      births_changed: whether leaves were born, or died, and not only changed in mass.

    Returns:
      The tree.
    """
    lower_nodes, _ = _level_sizes(leaves)
    nodes = changed // FAN_OUT
    index = _children(nodes)
    masses, births = leaves_at(jnp.minimum(index, leaves - 1))
    masses = jnp.where(index < leaves, masses, -jnp.inf)
    known = None if births_changed else _get(tree.newest, nodes)
    lower = _summarise(masses, births, rate, known)
    log_mass, newest = _put(tree.log_mass, nodes, lower.log_mass), tree.newest
    if births_changed:
        newest = _put(newest, nodes, lower.newest)

    index = _children(nodes // FAN_OUT)
    inside = index < lower_nodes
    index = jnp.minimum(index, lower_nodes - 1)
    masses = jnp.where(inside, _get(log_mass, index), -jnp.inf)
    above = nodes // FAN_OUT + lower_nodes
    known = None if births_changed else _get(tree.newest, above)
    upper = _summarise(masses, _get(newest, index), rate, known)
    return dataclasses.replace(
        tree,
        ends=_put(tree.ends, jnp.concatenate([nodes, above]), _ends_of(lower, upper)),
        log_mass=_put(log_mass, above, upper.log_mass),
        newest=_put(newest, above, upper.newest) if births_changed else newest,
    )


def plant(tree: PriorityTree, leaves: int, rate: jax.Array) -> Forest:
    """Sums what is above the stored levels.

    Args:
      tree: the tree.
      leaves: N.
      rate: float32 scalar, what `decay_rate` gives.

    Returns:
      The tree, ready to draw from.
    """
    lower_nodes, _ = _level_sizes(leaves)
    masses, births = tree.log_mass[lower_nodes:, None], tree.newest[lower_nodes:, None]
    aged, newest = _aged(masses, births, rate)
    largest = jnp.max(aged)
    some = largest > -jnp.inf
    # Behind a condition, so that XLA computes the exponentials once and not for every use.
    masses = jax.lax.cond(
        some, lambda: jnp.exp(aged[:, 0] - largest), lambda: jnp.zeros_like(aged[:, 0])
    )
    total = jnp.sum(masses)
    return Forest(
        ends=tree.ends,
        crown=_crown(masses, total),
        log_mass=largest + jnp.log(jnp.maximum(total, 1.0)),
        newest=newest[0],
        leaves=leaves,
    )


def draw_leaves(
    forest: Forest, offset: jax.Array, span: jax.Array, bits: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """Finds the leaves at given positions of the total mass.

    Args:
      forest: where to draw.
      offset: `[B]` int32 unit of the total mass, at least 0 and below span.
      span: `[B]` int32 units of the total mass, from 1 to 2^30.
      bits: what `bits_for_draws` returned.

    Returns:
      `[B]` int32 leaves, each of positive mass; all 0 when there is no mass at all.
    """
    lower_nodes, upper_nodes = _level_sizes(forest.leaves)
    top = jnp.full_like(span, forest.crown[-1])
    place, _ = position(offset, span, top, bits[0])
    at = child_at(forest.crown, jnp.zeros_like(place), upper_nodes, place, bits[1])
    return descend(forest.ends, [lower_nodes, 0], at).node


def _units_for(nodes: int) -> float:
    """Returns less than 2^30, by more than float32 sums and rounding up can add."""
    return float((1 << 30) - (1 << 14) - nodes)


def _crown(masses: jax.Array, total: jax.Array) -> jax.Array:
    """Adds up the `[U]` shares of a total, along the rows of a square and then over its rows."""
    side = math.isqrt(masses.shape[0] - 1) + 1
    square = jnp.pad(masses, (0, -masses.shape[0] % side)).reshape(-1, side)
    units = square * (_units_for(masses.shape[0]) / jnp.maximum(total, 1.0))
    # Rounded up or down in turn, by an even sequence: else a thousand equal nodes would all lose
    # the same part of a unit. Nothing stays nothing.
    place = jax.lax.iota(jnp.int32, square.size).reshape(square.shape)
    turn = ((place * 40503) & 0xFFFF).astype(jnp.float32) / 65536.0  # 2^16 over the golden ratio
    units = (units + turn).astype(jnp.int32)
    along = running_sums(units.T).T
    before = running_sums(along[:, -1:]) - along[:, -1:]
    return (along + before).reshape(-1)[: masses.shape[0]]


class _Nodes(NamedTuple):
    """Nodes made of children: `[16, n]` shares, the largest 1; `[n]` their sum, and the rest."""

    shares: jax.Array
    total: jax.Array
    log_mass: jax.Array
    newest: jax.Array


def _summarise(
    log_mass: jax.Array, births: jax.Array, rate: jax.Array, newest: jax.Array | None = None
) -> _Nodes:
    """Makes `[n]` nodes of their `[16, n]` children."""
    aged, newest = _aged(log_mass, births, rate, newest)
    largest = jnp.max(aged, axis=0)
    largest = jnp.where(largest > -jnp.inf, largest, 0.0)
    shares = jnp.exp(aged - largest[None, :])
    total = jnp.sum(shares, axis=0)
    mass = jnp.where(total > 0, largest + jnp.log(jnp.maximum(total, 1.0)), -jnp.inf)
    return _Nodes(shares=shares, total=total, log_mass=mass, newest=newest)


def _ends_of(lower: _Nodes, upper: _Nodes) -> jax.Array:
    return running_shares(
        jnp.concatenate([lower.shares, upper.shares], axis=1),
        jnp.concatenate([lower.total, upper.total]),
    )


def _aged(
    log_mass: jax.Array, births: jax.Array, rate: jax.Array, newest: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Ages `[k, n]` masses to the `[n]` newest births, which it finds where not known."""
    if newest is None:
        newest = newest_birth(births, log_mass > -jnp.inf)
    lag = jnp.minimum((newest[None, :] - births).astype(jnp.float32) * rate, _LARGEST_LAG)
    return jnp.where(log_mass > -jnp.inf, log_mass - lag, -jnp.inf), newest


def _in_nodes(values: jax.Array, fill: float) -> jax.Array:
    missing = -values.shape[0] % FAN_OUT
    return jnp.pad(values, (0, missing), constant_values=fill).reshape(-1, FAN_OUT).T


def tree_rows(leaves: int) -> int:
    """Counts the nodes of a tree over so many leaves."""
    return sum(_level_sizes(leaves))


def _level_sizes(leaves: int) -> tuple[int, int]:
    lower = -(-leaves // FAN_OUT)
    return lower, -(-lower // FAN_OUT)


def _children(nodes: jax.Array) -> jax.Array:
    return nodes[None, :] * FAN_OUT + jnp.arange(FAN_OUT, dtype=jnp.int32)[:, None]


def _get(values: jax.Array, index: jax.Array) -> jax.Array:
    return values.at[index].get(mode="promise_in_bounds")


def _put(values: jax.Array, index: jax.Array, new: jax.Array) -> jax.Array:
    return values.at[index].set(new, mode="promise_in_bounds")
