"""How each strategy draws: which rows, with what probability."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from freshper_jax.replay.draw import bits_for_draws, is_plain_threefry
from freshper_jax.replay.groups import complete_groups
from freshper_jax.replay.leaves import read_at
from freshper_jax.replay.one_kernel import Caller, plainly
from freshper_jax.replay.packed import PackedRows
from freshper_jax.replay.priority import decay_rate, leaf_values, newest_birth
from freshper_jax.replay.rules import Rules
from freshper_jax.replay.storage import by_leaf, members_of, read_rows
from freshper_jax.replay.tree import Forest, build_tree, draw_leaves, plant
from freshper_jax.replay.types import Handles, ReplayState, Sample, as_float
from freshper_jax.replay.weights import effective_sample_size, importance_weights
from freshper_jax.replay.without_replacement import draw_once_each, log_inclusion

__all__ = [
    "collect",
    "draw_sample",
    "forest_of",
    "leaf_log_masses",
    "least_log_mass",
    "leaves_stored",
    "log_leaf_probabilities",
]

_GENERATION_BITS = 0x7FFFFFFF
_FEW_BYTES = 1 << 17  # one thread reads them before another would have woken up


def log_leaf_probabilities(
    state: ReplayState, alpha: jax.Array, tau: jax.Array, *, rules: Rules
) -> jax.Array:
    """Computes log P of every row, or group, for one draw with replacement; no clock moves it.

    Args:
      state: the buffer.
      alpha: float32 scalar >= 0; strategy `uniform` takes 0 for it.
      tau: float32 scalar > 0.
      rules: the buffer's options.

    Returns:
      `[C]` float32 (for groups `[C / g]`) logarithms whose exponentials sum to 1, -inf where
      nothing is stored.
    """
    log_masses = _log_masses(state, alpha, tau, rules=rules)
    largest = jnp.max(log_masses)
    largest = jnp.where(largest > -jnp.inf, largest, 0.0)
    total = jnp.sum(jnp.exp(log_masses - largest))
    return log_masses - (largest + jnp.log(jnp.maximum(total, 1.0)))


def draw_sample(
    state: ReplayState,
    key: jax.Array,
    clock: jax.Array,
    beta: jax.Array,
    alpha: jax.Array | None,
    tau: jax.Array | None,
    *,
    batch_size: int,
    rules: Rules,
    call: Caller = plainly,
) -> Sample:
    """Draws a batch by the buffer's strategy.

    Args:
      state: the buffer.
      key: typed PRNG key; it is consumed.
      clock: int32 scalar.
      beta: float32 scalar >= 0.
      alpha: float32 scalar >= 0 to use in place of the buffer's own, None for that.
      tau: float32 scalar > 0, likewise.
      batch_size: B, rows to draw.
      rules: the buffer's options.
      call: how to call the search and what follows it.

    Returns:
      The sample.
    """
    if rules.strategy in ("newest", "oldest"):
        return _take_in_order(state, clock, batch_size, rules=rules)
    if rules.strategy == "prioritized_without_replacement":
        alpha = jnp.float32(rules.alpha) if alpha is None else alpha
        tau = jnp.float32(rules.tau) if tau is None else tau
        return _draw_once_each(state, key, clock, beta, alpha, tau, batch_size, rules=rules)
    if not is_plain_threefry(key):
        call = plainly
    alpha, tau, forest = forest_of(state, alpha, tau, rules=rules, call=call)
    least = jnp.float32(0.0)
    if rules.weight_normaliser == "buffer_max":
        least = least_log_mass(state, forest.newest, alpha, tau, rules=rules) - forest.log_mass
    draw = functools.partial(_draw_stratified, draws=batch_size // rules.group_size, rules=rules)
    read_inside = _bytes_to_read(state, batch_size) <= _FEW_BYTES
    sample = call(
        draw,
        forest,
        state if read_inside else dataclasses.replace(state, data=None),
        key,
        clock,
        beta,
        alpha,
        tau,
        leaves_stored(state, rules=rules),
        least,
        summed=batch_size,
    )
    if read_inside:
        return sample
    return dataclasses.replace(sample, data=read_rows(state, sample.handles.index))


def _bytes_to_read(state: ReplayState, rows: int) -> float:
    """Counts the bytes of so many rows; infinite for packed ones, which are put together."""
    if isinstance(state.data, PackedRows):
        return math.inf
    leaves = jax.tree.leaves(state.data)
    return rows * sum(math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in leaves)


def _draw_stratified(
    forest: Forest,
    state: ReplayState,
    key: jax.Array,
    clock: jax.Array,
    beta: jax.Array,
    alpha: jax.Array,
    tau: jax.Array,
    leaves: jax.Array,
    least: jax.Array,
    *,
    draws: int,
    rules: Rules,
) -> Sample:
    """Draws one leaf from each stratum of the mass.

    Args:
      forest: where to draw.
      state: the buffer; without data the sample will have none.
      key: typed PRNG key; it is consumed.
      clock: int32 scalar.
      beta: float32 scalar >= 0.
      alpha: float32 scalar >= 0.
      tau: float32 scalar > 0.
      leaves: int32 scalar, leaves that can be drawn.
      least: float32 scalar, log of the smallest P of all, for `buffer_max`.
      draws: leaves to draw.
      rules: the buffer's options.

    Returns:
      The sample.
    """
    strata = jnp.arange(draws, dtype=jnp.int32)
    leaf = draw_leaves(forest, strata, jnp.full_like(strata, draws), bits_for_draws(key, draws))
    slots = members_of(leaf, rules)
    rows = read_at(state.rows, slots)
    masses = leaf_log_masses(
        as_float(rows[..., 0]), rows[..., 1], forest.newest, alpha, tau, rules=rules
    )
    valid = jnp.full((draws,), forest.log_mass > -jnp.inf)
    log_probabilities = jnp.where(valid, masses - forest.log_mass, 0.0)
    weights = importance_weights(
        log_probabilities,
        valid,
        leaves,
        beta,
        normaliser=rules.weight_normaliser,
        least_log_probability=least,
    )
    return collect(
        state, clock, slots, rows, valid, jnp.exp(log_probabilities), weights, rules=rules
    )


def forest_of(
    state: ReplayState,
    alpha: jax.Array | None,
    tau: jax.Array | None,
    *,
    rules: Rules,
    call: Caller = plainly,
) -> tuple[jax.Array, jax.Array, Forest]:
    """Makes a state ready to draw from, with its stored sums or, for another alpha or tau, new.

    Args:
      state: the buffer.
      alpha: float32 scalar, None for the buffer's own; strategy `uniform` takes 0 for it.
      tau: float32 scalar, likewise.
      rules: the buffer's options.
      call: how to call the sum of what is not stored.

    Returns:
      The alpha and the tau that hold, and the sums.
    """
    assert state.tree is not None
    own_alpha, own_tau = jnp.float32(rules.tree_alpha), jnp.float32(rules.tree_tau)
    if (alpha is None and tau is None) or rules.strategy == "uniform":
        rate = decay_rate(own_alpha, own_tau)
        return own_alpha, own_tau, plant(state.tree, rules.leaves, rate, call=call)
    # Not those of the tree: one of alpha 0 has no tau, but the buffer may.
    alpha = jnp.float32(rules.alpha) if alpha is None else alpha
    tau = jnp.float32(rules.tau) if tau is None else tau
    log_mass, births = leaf_values(*by_leaf(state, rules), alpha, tau, rules=rules)
    rate = decay_rate(alpha, tau)
    tree = build_tree(log_mass, births, rate, alpha=rules.alpha, tau=rules.tau)
    return alpha, tau, plant(tree, rules.leaves, rate, call=call)


def leaf_log_masses(
    log_base: jax.Array,
    births: jax.Array,
    newest: jax.Array,
    alpha: jax.Array,
    tau: jax.Array,
    *,
    rules: Rules,
) -> jax.Array:
    """Computes the logarithms of the masses of leaves, as they are at a birth.

    Args:
      log_base: `[n]` float32, for groups `[n, g]`.
      births: int32, likewise.
      newest: int32 scalar, the birth.
      alpha: float32 scalar >= 0.
      tau: float32 scalar > 0.
      rules: the buffer's options.

    Returns:
      `[n]` float32, -inf for nothing stored.
    """
    masses, born = leaf_values(log_base, births, alpha, tau, rules=rules)
    lag = (newest - born).astype(jnp.float32) * decay_rate(alpha, tau)
    return jnp.where(masses > -jnp.inf, masses - jnp.minimum(lag, 1e30), -jnp.inf)


def least_log_mass(
    state: ReplayState, newest: jax.Array, alpha: jax.Array, tau: jax.Array, *, rules: Rules
) -> jax.Array:
    """Finds the logarithm of the smallest mass of all leaves, as it is at a birth.

    Args:
      state: the buffer.
      newest: int32 scalar, the birth.
      alpha: float32 scalar >= 0.
      tau: float32 scalar > 0.
      rules: the buffer's options.

    Returns:
      float32 scalar; infinite for nothing stored.
    """
    masses = leaf_log_masses(*by_leaf(state, rules), newest, alpha, tau, rules=rules)
    return jnp.min(jnp.where(masses > -jnp.inf, masses, jnp.inf))


def leaves_stored(state: ReplayState, *, rules: Rules) -> jax.Array:
    """Counts what can be drawn: rows, or complete groups; int32 scalar."""
    if state.groups is None:
        return state.size
    return complete_groups(state.groups, rules.group_size)


def collect(
    state: ReplayState,
    clock: jax.Array,
    slots: jax.Array,
    rows: jax.Array,
    valid: jax.Array,
    probabilities: jax.Array,
    weights: jax.Array,
    *,
    rules: Rules,
) -> Sample:
    """Reads the rows drawn, all members of each group.

    Args:
      state: the buffer.
      clock: int32 scalar.
      slots: `[n]` int32, for groups `[n, g]`.
      rows: `[n, 4]` int32, those of the state in these slots; for groups `[n, g, 4]`.
      valid: `[n]` bool, false where nothing was drawn.
      probabilities: `[n]` float32.
      weights: `[n]` float32.
      rules: the buffer's options.

    Returns:
      The sample, of n times g rows.
    """
    if rules.group_size > 1:
        slots, rows = slots.reshape(-1), rows.reshape(-1, 4)
        valid, probabilities, weights = (
            jnp.repeat(each, rules.group_size) for each in (valid, probabilities, weights)
        )
    # The batch's own largest weight is 1.
    largest = jnp.float32(1.0) if rules.weight_normaliser == "batch_max" else None
    return Sample(
        data=read_rows(state, slots),
        handles=Handles(index=slots, generation=jnp.where(valid, rows[:, 2], -1)),
        probabilities=jnp.where(valid, probabilities, 0.0),
        weights=weights,
        ages=jnp.where(valid, clock - rows[:, 1], 0),
        ess=effective_sample_size(weights, largest=largest),
    )


def _log_masses(state: ReplayState, alpha: jax.Array, tau: jax.Array, *, rules: Rules) -> jax.Array:
    newest = newest_birth(state.birth, state.generation >= 0)
    if rules.strategy == "uniform":
        alpha, tau = jnp.zeros_like(alpha), jnp.full_like(tau, jnp.inf)
    return leaf_log_masses(*by_leaf(state, rules), newest, alpha, tau, rules=rules)


def _draw_once_each(
    state: ReplayState,
    key: jax.Array,
    clock: jax.Array,
    beta: jax.Array,
    alpha: jax.Array,
    tau: jax.Array,
    batch_size: int,
    *,
    rules: Rules,
) -> Sample:
    log_masses = _log_masses(state, alpha, tau, rules=rules)
    index, valid, log_time = draw_once_each(key, log_masses, batch_size)
    log_chances = log_inclusion(jnp.where(valid, log_masses[index], 0.0), log_time)
    # A chance of being in the batch stands where B times P does in a draw with replacement.
    log_size = jnp.log(jnp.maximum(jnp.minimum(state.size, batch_size), 1).astype(jnp.float32))
    least = jnp.float32(0.0)
    if rules.weight_normaliser == "buffer_max":
        lightest = jnp.min(jnp.where(log_masses > -jnp.inf, log_masses, jnp.inf))
        least = log_inclusion(jnp.where(state.size > 0, lightest, 0.0), log_time) - log_size
    weights = importance_weights(
        jnp.where(valid, log_chances - log_size, 0.0),
        valid,
        state.size,
        beta,
        normaliser=rules.weight_normaliser,
        least_log_probability=least,
    )
    rows = read_at(state.rows, index)
    return collect(state, clock, index, rows, valid, jnp.exp(log_chances), weights, rules=rules)


def _take_in_order(
    state: ReplayState, clock: jax.Array, batch_size: int, *, rules: Rules
) -> Sample:
    place = jnp.arange(batch_size, dtype=jnp.int32)
    valid = place < state.size
    if rules.eviction == "oldest":
        first = -1 - place if rules.strategy == "newest" else place - state.size
        index = (state.cursor + first) % rules.capacity
    else:
        # Rows lie anywhere. The newest has order 0, counted so that it may wrap.
        order = (state.next_generation - 1 - state.generation) & _GENERATION_BITS
        order = -order if rules.strategy == "newest" else order
        order = jnp.where(state.generation >= 0, order, jnp.iinfo(jnp.int32).min)
        index = jax.lax.top_k(order, batch_size)[1].astype(jnp.int32)
    taken = jnp.maximum(jnp.minimum(state.size, batch_size), 1).astype(jnp.float32)
    share = jnp.where(valid, 1.0 / taken, 0.0)
    rows = read_at(state.rows, index)
    return collect(state, clock, index, rows, valid, share, valid.astype(jnp.float32), rules=rules)
