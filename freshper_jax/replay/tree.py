"""Stored sums of priorities that no clock moves, so that a draw need not look at every row.

A node stands for its rows as one row would: by the logarithm of their mass, as it was at the
birth of its newest row, and by that birth. Masses of nodes meet only through differences of
births, taken in integers first, so nothing grows, nothing drifts and nothing has to be
refreshed, however far the clock runs. Two levels of sixteen are stored; what is above them,
one node in 256 rows, is summed anew at each draw, into one row of running sums.
"""

import dataclasses
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
from freshper_jax.replay.leaves import read_at
from freshper_jax.replay.one_kernel import Caller, plainly
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
    lower = _nodes_over(_in_nodes(log_mass, -jnp.inf), _in_nodes(births, 0), rate)
    upper = _nodes_over(_in_nodes(lower.log_mass, -jnp.inf), _in_nodes(lower.newest, 0), rate)
    both = jax.tree.map(lambda *levels: jnp.concatenate(levels), lower, upper)
    return PriorityTree(**both._asdict(), alpha=alpha, tau=tau)


def refresh_tree(
    tree: PriorityTree,
    leaves_at: LeavesAt,
    leaves: int,
    changed: jax.Array,
    rate: jax.Array,
    *,
    births_changed: bool,
    members: int = 1,
    call: Caller = plainly,
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
      members: values that `leaves_at` sums for each leaf.
      call: how to call the two sums.

    Returns:
      The tree.
    """
    lower_nodes, _ = _level_sizes(leaves)
    nodes = changed // FAN_OUT
    above = nodes // FAN_OUT + lower_nodes

    def known(newest: jax.Array, nodes: jax.Array) -> jax.Array | None:
        return None if births_changed else read_at(newest, nodes)

    def sum_lower(newest: jax.Array) -> _Nodes:
        index = _children(nodes)
        masses, births = leaves_at(jnp.minimum(index, leaves - 1))
        masses = jnp.where(index < leaves, masses, -jnp.inf)
        return _nodes_over(masses, births, rate, known(newest, nodes))

    def sum_upper(log_mass: jax.Array, newest: jax.Array) -> _Nodes:
        index = _children(nodes // FAN_OUT)
        inside = index < lower_nodes
        index = jnp.minimum(index, lower_nodes - 1)
        masses = jnp.where(inside, read_at(log_mass, index), -jnp.inf)
        return _nodes_over(masses, read_at(newest, index), rate, known(newest, above))

    children = FAN_OUT * nodes.shape[0]
    lower = call(sum_lower, tree.newest, summed=children * members)
    log_mass, newest = _put(tree.log_mass, nodes, lower.log_mass), tree.newest
    if births_changed:
        newest = _put(newest, nodes, lower.newest)
    upper = call(sum_upper, log_mass, newest, summed=children)
    return dataclasses.replace(
        tree,
        ends=_put(_put(tree.ends, nodes, lower.ends), above, upper.ends),
        log_mass=_put(log_mass, above, upper.log_mass),
        newest=_put(newest, above, upper.newest) if births_changed else newest,
    )


def plant(tree: PriorityTree, leaves: int, rate: jax.Array, *, call: Caller = plainly) -> Forest:
    """Sums what is above the stored levels.

    Args:
      tree: the tree.
      leaves: N.
      rate: float32 scalar, what `decay_rate` gives.
      call: how to call the sum.

    Returns:
      The tree, ready to draw from.
    """
    lower_nodes, _ = _level_sizes(leaves)
    upper = tree.log_mass[lower_nodes:], tree.newest[lower_nodes:]
    crown, log_mass, newest = call(_sum_up, *upper, rate, summed=upper[0].shape[0])
    return Forest(ends=tree.ends, crown=crown, log_mass=log_mass, newest=newest, leaves=leaves)


def _sum_up(
    log_mass: jax.Array, births: jax.Array, rate: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Adds up the `[U]` nodes of the upper level: the crown, log of the total, the last birth."""
    aged, newest = _aged(log_mass[:, None], births[:, None], rate)
    largest = jnp.max(aged)
    some = largest > -jnp.inf
    # Behind a condition, so that XLA computes the exponentials once and not for every use.
    masses = jax.lax.cond(
        some, lambda: jnp.exp(aged[:, 0] - largest), lambda: jnp.zeros_like(aged[:, 0])
    )
    total = jnp.sum(masses)
    return _crown(masses, total), largest + jnp.log(jnp.maximum(total, 1.0)), newest[0]


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
    """Adds up the `[U]` shares of a total."""
    units = masses * (_units_for(masses.shape[0]) / jnp.maximum(total, 1.0))
    # Rounded up or down in turn, by an even sequence: else a thousand equal nodes would all lose
    # the same part of a unit. Nothing stays nothing.
    place = jax.lax.iota(jnp.int32, units.size)
    turn = ((place * 40503) & 0xFFFF).astype(jnp.float32) / 65536.0  # 2^16 over the golden ratio
    return _added_up((units + turn).astype(jnp.int32))


def _added_up(values: jax.Array) -> jax.Array:
    """Adds `[n]` integers up: along runs of sixteen, along the runs' sums, and so on."""
    if values.shape[0] == 1:
        return values
    along = running_sums(_in_nodes(values, 0))
    sums = along[-1]
    before = _added_up(sums) - sums
    return (along + before[None, :]).T.reshape(-1)[: values.shape[0]]


class _Nodes(NamedTuple):
    """Nodes of one level, as a tree stores them: `[n, 16]`, `[n]` and `[n]`."""

    ends: jax.Array
    log_mass: jax.Array
    newest: jax.Array


def _nodes_over(
    log_mass: jax.Array, births: jax.Array, rate: jax.Array, newest: jax.Array | None = None
) -> _Nodes:
    """Makes `[n]` nodes of their `[16, n]` children."""
    aged, newest = _aged(log_mass, births, rate, newest)
    largest = jnp.max(aged, axis=0)
    largest = jnp.where(largest > -jnp.inf, largest, 0.0)
    shares = jnp.exp(aged - largest[None, :])
    total = jnp.sum(shares, axis=0)
    mass = jnp.where(total > 0, largest + jnp.log(jnp.maximum(total, 1.0)), -jnp.inf)
    return _Nodes(ends=running_shares(shares, total), log_mass=mass, newest=newest)


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


def _put(values: jax.Array, index: jax.Array, new: jax.Array) -> jax.Array:
    return values.at[index].set(new, mode="promise_in_bounds", wrap_negative_indices=False)
