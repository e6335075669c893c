"""The records of the replay: its state, the handles of rows, what a draw returns."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from freshper_jax.replay.tree import PriorityTree

__all__ = [
    "GroupSlots",
    "Handles",
    "ReplayState",
    "ReplayStats",
    "Sample",
    "as_bits",
    "as_float",
]


def as_float(bits: jax.Array) -> jax.Array:
    """Reads int32 bits as the float32 they are."""
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def as_bits(value: jax.Array) -> jax.Array:
    """Takes the bits of a float32 as int32."""
    return jax.lax.bitcast_convert_type(value, jnp.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Handles:
    """Names of stored rows that stay valid until the row is overwritten.

    | field      | shape   | meaning                                                     |
    |------------|---------|-------------------------------------------------------------|
    | index      | B int32 | the slot of the row                                         |
    | generation | B int32 | the number of the row in order of insertion, -1 for no row  |
    """

    index: jax.Array
    generation: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GroupSlots:
    """Which group each run of g slots holds; G = C / g.

    | field  | shape   | meaning                                              |
    |--------|---------|------------------------------------------------------|
    | ids    | G int32 | the caller's name of the group                       |
    | filled | G int32 | members that have arrived, at most g                 |
    | number | G int32 | number of the group in order of opening, -1 for none |
    | opened | int32   | groups opened so far, modulo 2^31                    |
    | cursor | int32   | the run after the one last opened                    |
    """

    ids: jax.Array
    filled: jax.Array
    number: jax.Array
    opened: jax.Array
    cursor: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReplayState:
    """Everything a buffer holds; nothing in it depends on the clock or on beta.

    Only `tree` depends on alpha and tau, and is labelled with them.

    | field           | shape      | meaning                                                  |
    |-----------------|------------|----------------------------------------------------------|
    | data            | C, ...     | the stored rows, a pytree; or `PackedRows`. Narrow floats |
    |                 |            | are held as unsigned integers of the same bits           |
    | rows            | C, 4 int32 | in this order, each also an attribute, `[C]`:            |
    | log_base        |            | natural logarithm of the base priority, -inf when empty  |
    | birth           |            | the clock when the row was added                         |
    | generation      |            | number of the row in order of insertion, -1 when empty   |
    | draws           |            | how often the row was marked as drawn                    |
    | tree            |            | sums of priorities, None where no draw descends them     |
    | groups          |            | what group is where, None but for `groups`               |
    | counts          | 7 int32    | in this order, each also an attribute:                   |
    | cursor          |            | the slot after the one last written                      |
    | size            |            | rows stored                                              |
    | next_generation |            | insertions so far, modulo 2^31                           |
    | evicted         |            | rows that had to make room so far                        |
    | evicted_undrawn |            | those of them that were never drawn                      |
    | stale_updates   |            | updates dropped: the row was gone or never existed       |
    | replaced        |            | base priorities that were NaN, infinite or negative      |
    | dtypes          | static     | those of the leaves of the example                       |
    """

    data: chex.ArrayTree
    rows: jax.Array
    tree: PriorityTree | None
    groups: GroupSlots | None
    counts: jax.Array
    dtypes: tuple[Any, ...] = dataclasses.field(default=(), metadata={"static": True})

    # A row's numbers lie side by side, so that a draw waits for memory once, and the counts are
    # one array, not seven: each array costs a call as much as the arithmetic on it.
    log_base = property(lambda self: as_float(self.rows[..., 0]))
    birth = property(lambda self: self.rows[..., 1])
    generation = property(lambda self: self.rows[..., 2])
    draws = property(lambda self: self.rows[..., 3])
    cursor = property(lambda self: self.counts[..., 0])
    size = property(lambda self: self.counts[..., 1])
    next_generation = property(lambda self: self.counts[..., 2])
    evicted = property(lambda self: self.counts[..., 3])
    evicted_undrawn = property(lambda self: self.counts[..., 4])
    stale_updates = property(lambda self: self.counts[..., 5])
    replaced = property(lambda self: self.counts[..., 6])

    def counted(self, **changes: jax.Array) -> "ReplayState":
        """Returns the state with some counts, by their names, set to int32 scalars."""
        names = (
            "cursor",
            "size",
            "next_generation",
            "evicted",
            "evicted_undrawn",
            "stale_updates",
            "replaced",
        )
        values = [changes.pop(name, getattr(self, name)) for name in names]
        if changes:
            raise TypeError(f"no such counts: {', '.join(changes)}")
        return dataclasses.replace(self, counts=jnp.stack(values))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sample:
    """A batch drawn from a buffer.

    A place of the batch that no stored row could fill (an empty buffer, or a strategy that
    takes each row once asked for more rows than there are) has generation -1, probability,
    weight and age 0, and data that mean nothing.

    | field         | shape     | meaning                                                      |
    |---------------|-----------|--------------------------------------------------------------|
    | data          | B, ...    | the rows                                                     |
    | handles       | B         | their names, for `update` and `mark_drawn`                   |
    | probabilities | B float32 | P_i, the chance that one draw returns this row (its group);  |
    |               |           | without replacement: that the batch has it                   |
    | weights       | B float32 | (N P_i)^-beta over the normaliser                            |
    | ages          | B int32   | clock minus birth                                            |
    | ess           | float32   | effective sample size of the weights, in rows: between 0, B  |
    """

    data: chex.ArrayTree
    handles: Handles
    probabilities: jax.Array
    weights: jax.Array
    ages: jax.Array
    ess: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReplayStats:
    """What a buffer holds, in numbers; every share of nothing is 0.

    Quantiles are at 0, 1/4, 1/2, 3/4 and 1, each the value of a stored row (the lower one
    where the quantile falls between two).

    | field                 | shape     | meaning                                              |
    |-----------------------|-----------|------------------------------------------------------|
    | size                  | int32     | rows stored                                          |
    | evicted               | int32     | rows that had to make room so far                    |
    | stale_updates         | int32     | updates dropped so far                               |
    | replaced_priorities   | int32     | NaN, infinite or negative base priorities so far     |
    | never_drawn_share     | float32   | stored rows never drawn / stored rows                |
    | evicted_undrawn_share | float32   | rows evicted without ever being drawn / evicted rows |
    | mean_draws            | float32   | draws of a stored row, mean                          |
    | draw_quantiles        | 5 int32   | of the draws of a stored row                         |
    | age_quantiles         | 5 int32   | of clock minus birth                                 |
    | freshness_quantiles   | 5 float32 | of exp(-age / tau)                                   |
    | priority_entropy      | float32   | -sum P log P, in nats, over rows (or groups)         |
    | priority_ess          | float32   | 1 / sum P^2, in rows (or groups)                     |
    """

    size: jax.Array
    evicted: jax.Array
    stale_updates: jax.Array
    replaced_priorities: jax.Array
    never_drawn_share: jax.Array
    evicted_undrawn_share: jax.Array
    mean_draws: jax.Array
    draw_quantiles: jax.Array
    age_quantiles: jax.Array
    freshness_quantiles: jax.Array
    priority_entropy: jax.Array
    priority_ess: jax.Array
