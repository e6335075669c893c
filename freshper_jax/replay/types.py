"""The records of the replay: its state, the handles of rows, what a draw returns."""

import dataclasses

import chex
import jax

__all__ = ["Handles", "ReplayState", "ReplayStats", "Sample"]


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
class ReplayState:
    """Everything a buffer holds; nothing in it depends on alpha, beta, tau or the clock.

    | field           | shape      | meaning                                                  |
    |-----------------|------------|----------------------------------------------------------|
    | data            | C, ...     | the stored rows, a pytree                                |
    | log_base        | C float32  | natural logarithm of the base priority, -inf when empty  |
    | birth           | C int32    | the clock when the row was added                         |
    | generation      | C int32    | number of the row in order of insertion, -1 when empty   |
    | draws           | C int32    | how often the row was marked as drawn                    |
    | cursor          | int32      | the slot that the next row takes                         |
    | size            | int32      | rows stored                                              |
    | next_generation | int32      | insertions so far, modulo 2^31                           |
    | evicted         | int32      | rows overwritten so far                                  |
    | evicted_undrawn | int32      | those of them that were never drawn                      |
    | stale_updates   | int32      | updates dropped: the row was gone or never existed       |
    | replaced        | int32      | base priorities that were NaN, infinite or negative      |
    """

    data: chex.ArrayTree
    log_base: jax.Array
    birth: jax.Array
    generation: jax.Array
    draws: jax.Array
    cursor: jax.Array
    size: jax.Array
    next_generation: jax.Array
    evicted: jax.Array
    evicted_undrawn: jax.Array
    stale_updates: jax.Array
    replaced: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sample:
    """A batch drawn from a buffer.

    A place of the batch that no stored row could fill (an empty buffer, or `newest` asked for
    more rows than there are) has generation -1, probability, weight and age 0, and data that
    mean nothing.

    | field         | shape     | meaning                                                      |
    |---------------|-----------|--------------------------------------------------------------|
    | data          | B, ...    | the rows                                                     |
    | handles       | B         | their names, for `update` and `mark_drawn`                   |
    | probabilities | B float32 | P_i, the chance that one draw returns this row               |
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
    | evicted               | int32     | rows overwritten so far                              |
    | stale_updates         | int32     | updates dropped so far                               |
    | replaced_priorities   | int32     | NaN, infinite or negative base priorities so far     |
    | never_drawn_share     | float32   | stored rows never drawn / stored rows                |
    | evicted_undrawn_share | float32   | rows evicted without ever being drawn / evicted rows |
    | mean_draws            | float32   | draws of a stored row, mean                          |
    | age_quantiles         | 5 int32   | of clock minus birth                                 |
    | freshness_quantiles   | 5 float32 | of exp(-age / tau)                                   |
    | priority_entropy      | float32   | -sum P log P, in nats                                |
    | priority_ess          | float32   | 1 / sum P^2, in rows                                 |
    """

    size: jax.Array
    evicted: jax.Array
    stale_updates: jax.Array
    replaced_priorities: jax.Array
    never_drawn_share: jax.Array
    evicted_undrawn_share: jax.Array
    mean_draws: jax.Array
    age_quantiles: jax.Array
    freshness_quantiles: jax.Array
    priority_entropy: jax.Array
    priority_ess: jax.Array
