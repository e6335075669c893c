"""What changes a buffer: rows come in, make room, get new priorities, are counted as drawn."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from freshper_jax.replay import packed
from freshper_jax.replay.draw import FAN_OUT
from freshper_jax.replay.groups import empty_groups, place_members
from freshper_jax.replay.leaves import as_given, as_held, held_dtype, read_at, shape_and_dtype
from freshper_jax.replay.one_kernel import Caller, plainly
from freshper_jax.replay.priority import (
    decay_rate,
    group_values,
    leaf_values,
    log_of_base,
    log_priorities,
    newest_birth,
)
from freshper_jax.replay.rules import Rules
from freshper_jax.replay.tree import PriorityTree, build_tree, refresh_tree
from freshper_jax.replay.types import Handles, ReplayState, as_bits, as_float

__all__ = [
    "by_leaf",
    "check_batch",
    "count_draws",
    "init_state",
    "insert_rows",
    "live_handles",
    "members_of",
    "read_rows",
    "retune_tree",
    "state_nbytes",
    "update_rows",
]

_GENERATION_BITS = 0x7FFFFFFF


def init_state(example: chex.ArrayTree, *, rules: Rules) -> ReplayState:
    """Makes an empty state for rows shaped as the example.

    Args:
      example: one row, a pytree of arrays or `jax.ShapeDtypeStruct`s without a leading axis;
        only shapes and dtypes are read.
      rules: the buffer's options.

    Raises:
      ValueError: the example has no array in it, or its ragged leaves do not go together.
    """
    if not jax.tree.leaves(example):
        raise ValueError("example must hold at least one array, it is an empty pytree")
    capacity = rules.capacity

    def rows_like(leaf: Any) -> jax.Array:
        shape, dtype = shape_and_dtype(leaf)
        return jax.lax.full((capacity, *shape), 0, held_dtype(dtype))

    if rules.token_capacity is None:
        data: Any = jax.tree.map(rows_like, example)
    else:
        data = packed.init_packed(capacity, rules.token_capacity, example, rules.ragged)
    state = ReplayState(
        data=data,
        rows=jnp.tile(_no_row(), (capacity, 1)),
        tree=None,
        groups=empty_groups(rules.leaves) if rules.group_size > 1 else None,
        counts=jnp.zeros((7,), jnp.int32),
        dtypes=tuple(shape_and_dtype(leaf)[1] for leaf in jax.tree.leaves(example)),
    )
    return retune_tree(state, rules=rules)


def state_nbytes(state: chex.ArrayTree) -> int:
    """Counts the bytes of a state, real or abstract.

    Args:
      state: a state, or `jax.eval_shape(buffer.init, example)` to plan before allocating.

    Returns:
      The bytes of all leaves.
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def check_batch(
    state: ReplayState,
    batch: chex.ArrayTree,
    base_priority: jax.Array,
    lengths: jax.Array | None,
    groups: jax.Array | None,
    *,
    rules: Rules,
) -> None:
    """Checks that a batch has the stored structure, shapes, dtypes, and one leading axis.

    Raises:
      ValueError: it has not; the message names the leaf, what it is, and what was expected.
        Or `lengths` or `groups` are missing, or not wanted.
    """
    if np.ndim(base_priority) != 1 or np.shape(base_priority)[0] < 1:
        raise ValueError(
            f"base_priority must have shape [B] with B >= 1, got {np.shape(base_priority)}"
        )
    rows = np.shape(base_priority)[0]
    wanted = {
        "lengths": (lengths, rules.storage == "packed", "storage 'packed'"),
        "groups": (groups, rules.strategy == "groups", "strategy 'groups'"),
    }
    for name, (value, needed, what) in wanted.items():
        if needed == (value is None):
            raise ValueError(f"{name} is an argument for {what}, and needed there, got {value!r}")
        if value is None:
            continue
        shape, dtype = shape_and_dtype(value)
        if shape != (rows,) or not jnp.issubdtype(dtype, jnp.integer):
            raise ValueError(
                f"{name} must be an integer a row, shape ({rows},), got {dtype} {shape}"
            )
    if lengths is not None:
        packed.check_batch(state.data, batch, lengths)
        return
    named = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(batch)]
    expected_names = [
        jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state.data)
    ]
    if named != expected_names:
        raise ValueError(f"batch has the leaves {named}, the example has {expected_names}")
    leaves, stored = jax.tree.leaves(batch), jax.tree.leaves(state.data)
    for name, leaf, row, dtype in zip(named, leaves, stored, state.dtypes, strict=True):
        expected = ((rows, *row.shape[1:]), dtype)
        if shape_and_dtype(leaf) != expected:
            raise ValueError(
                f"batch{name} has shape and dtype "
                f"{shape_and_dtype(leaf)}, expected {expected}: the leading axis of "
                "base_priority, then the shape and dtype of the example"
            )


def insert_rows(
    state: ReplayState,
    batch: chex.ArrayTree,
    base_priority: jax.Array,
    clock: jax.Array,
    lengths: jax.Array | None,
    groups: jax.Array | None,
    *,
    rules: Rules,
    axis: str | None = None,
    call: Caller = plainly,
) -> tuple[ReplayState, Handles]:
    """Adds rows as if one at a time, over others once there is no room.

    Of a batch larger than the capacity only the last rows stay; the handles of the others are
    stale at once, and they count as evicted.

    Args:
      state: the buffer.
      batch: rows, a pytree with a leading axis B.
      base_priority: `[B]` float.
      clock: int32 scalar, the birth of the rows.
      lengths: `[B]` int32 tokens of each row, for packed storage.
      groups: `[B]` int32 group of each row, for strategy `groups`.
      rules: the buffer's options.
      axis: the mesh axis over whose devices insertion `max` looks for the largest base priority;
        None for this state alone.
      call: how to call the reads and sums of few values.

    Returns:
      The new state and the handles of the B rows.
    """
    capacity, rows = rules.capacity, base_priority.shape[0]
    log_base, bad = log_of_base(base_priority, rules.fallback_priority, checked=rules.checked)
    if rules.insertion == "max":
        stored, given = jnp.max(state.log_base), jnp.max(log_base)
        if axis is not None:
            stored, given = jax.lax.pmax((stored, given), axis)
        log_base = jnp.full_like(log_base, jnp.where(stored > -jnp.inf, stored, given))
    order = jnp.arange(rows, dtype=jnp.int32)
    generation = (state.next_generation + order) & _GENERATION_BITS
    room = _room(state, min(rows, rules.leaves), rules=rules)

    if groups is not None:
        assert state.groups is not None
        slots, index, stays, taken = place_members(
            state.groups, groups.astype(jnp.int32), room, rules.group_size
        )
        state = _evict(state, jnp.repeat(taken, rules.group_size))
        state = dataclasses.replace(state, groups=slots)
        kept = rows
        target = jnp.where(stays, index, capacity)
    else:
        kept = min(rows, capacity)
        index = room[order % kept]
        target = index[-kept:]

    inside = jnp.minimum(target, capacity - 1)
    old_generation, old_draws = call(
        lambda rows, slots: (read_at(rows, (slots, 2)), read_at(rows, (slots, 3))),
        state.rows,
        inside,
        summed=0,
    )
    overwritten = (target < capacity) & (old_generation >= 0)
    # Zeros, but made from what was read: so the writes wait for the reads, and XLA, which could
    # otherwise run them in any order, makes no copy of the leaves.
    no_draws = jnp.minimum(old_draws, 0)
    no_generation = jnp.minimum(old_generation, -1) + 1
    passed_through = jnp.int32(rows - kept) + jnp.sum(target == capacity, dtype=jnp.int32)

    def write(leaf: jax.Array, values: jax.Array) -> jax.Array:
        if groups is None:
            return leaf.at[target].set(values, unique_indices=True, mode="promise_in_bounds")
        return leaf.at[target].set(values, mode="drop")

    last = jax.tree.map(lambda values: values[-kept:], batch)
    if lengths is not None:
        data, intact = packed.write_rows(
            state.data, target, last, lengths[-kept:].astype(jnp.int32)
        )
    else:
        data, intact = jax.tree.map(write, state.data, jax.tree.map(as_held, last)), None
    state = dataclasses.replace(
        state,
        data=data,
        rows=write(
            state.rows,
            jnp.stack(
                [
                    as_bits(log_base[-kept:]),
                    jnp.full((kept,), clock),
                    generation[-kept:] + no_generation,
                    no_draws,
                ],
                axis=1,
            ),
        ),
    ).counted(
        cursor=(index[-1] + 1) % capacity,
        size=state.size + kept - jnp.sum(overwritten | (target == capacity), dtype=jnp.int32),
        next_generation=(state.next_generation + rows) & _GENERATION_BITS,
        evicted=state.evicted + jnp.sum(overwritten, dtype=jnp.int32) + passed_through,
        evicted_undrawn=state.evicted_undrawn
        + jnp.sum(overwritten & (old_draws == 0), dtype=jnp.int32)
        + passed_through,
        replaced=state.replaced + jnp.sum(bad, dtype=jnp.int32),
    )
    if intact is not None:
        state = _evict(state, ~intact)
    if intact is not None or groups is not None:
        state = retune_tree(state, rules=rules)
    else:
        if rules.eviction == "oldest":
            # A run of slots, perhaps over the end: one slot of each node is enough.
            ends = jnp.array([0, capacity - 1], jnp.int32)
            target = jnp.concatenate([target[::FAN_OUT], target[-1:], ends])
        tree = _refreshed(state, target, births_changed=True, rules=rules, call=call)
        state = dataclasses.replace(state, tree=tree)
    return state, Handles(index=index, generation=generation)


def read_rows(state: ReplayState, index: jax.Array) -> chex.ArrayTree:
    """Reads rows.

    Args:
      state: the buffer.
      index: `[B]` int32 slots, in range.

    Returns:
      The rows, a pytree with a leading axis B.
    """
    if isinstance(state.data, packed.PackedRows):
        return packed.read_rows(state.data, index)
    leaves, structure = jax.tree.flatten(state.data)
    read = [read_at(leaf, index) for leaf in leaves]
    return jax.tree.unflatten(structure, map(as_given, read, state.dtypes))


def live_handles(rows: jax.Array, handles: Handles) -> jax.Array:
    """Tells which handles still name a stored row.

    Args:
      rows: `[C, 4]` int32, those of the state.
      handles: `[B]`; indices out of range and generation -1 are never live.

    Returns:
      `[B]` bool.
    """
    capacity = rows.shape[0]
    inside = (handles.index >= 0) & (handles.index < capacity)
    index = jnp.clip(handles.index, 0, capacity - 1)
    stored = read_at(rows, (index, 2))
    return inside & (handles.generation >= 0) & (stored == handles.generation)


def update_rows(
    state: ReplayState,
    handles: Handles,
    base_priority: jax.Array,
    clock: jax.Array | None,
    *,
    rules: Rules,
    call: Caller = plainly,
) -> ReplayState:
    """Writes new base priorities as if one at a time, dropping handles that are not live.

    Args:
      state: the buffer.
      handles: `[B]` rows to change; of duplicates the last one wins.
      base_priority: `[B]` float.
      clock: int32 scalar that becomes the birth of the rows; None leaves their birth alone.
      rules: the buffer's options.
      call: how to call the reads and sums of few values.

    Returns:
      The new state.
    """
    capacity = rules.capacity
    # Which of several updates a scatter keeps is undefined. So each puts its place, marked by
    # its sign, where the generation is: the least one stays, which is the last in the batch,
    # and writes the row, generation and all.
    mark = -2 - jnp.arange(base_priority.shape[0], dtype=jnp.int32)

    def look_up(rows: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        live = live_handles(rows, handles)
        log_base, bad = log_of_base(base_priority, rules.fallback_priority, checked=rules.checked)
        stale = jnp.sum(~live, dtype=jnp.int32)
        replaced = jnp.sum(bad & live, dtype=jnp.int32)
        return jnp.where(live, handles.index, capacity), log_base, stale, replaced

    def settle(marked: jax.Array) -> tuple[jax.Array, jax.Array]:
        old = read_at(marked, jnp.minimum(index, capacity - 1))
        birth = old[:, 1] if clock is None else jnp.full_like(index, clock)
        row = jnp.stack([as_bits(log_base), birth, handles.generation, old[:, 3]], axis=1)
        return row, jnp.where(old[:, 2] == mark, index, capacity)

    index, log_base, stale, replaced = call(look_up, state.rows, summed=0)
    marked = state.rows.at[index, 2].min(mark, mode="drop")
    row, target = call(settle, marked, summed=0)
    state = dataclasses.replace(state, rows=marked.at[target].set(row, mode="drop")).counted(
        stale_updates=state.stale_updates + stale, replaced=state.replaced + replaced
    )
    tree = _refreshed(state, index, births_changed=clock is not None, rules=rules, call=call)
    return dataclasses.replace(state, tree=tree)


def count_draws(rows: jax.Array, handles: Handles) -> jax.Array:
    """Adds one draw to each row per live handle; dead handles are ignored.

    Args:
      rows: `[C, 4]` int32, those of the state.
      handles: `[B]` rows drawn; duplicates add up.

    Returns:
      The rows.
    """
    target = jnp.where(live_handles(rows, handles), handles.index, rows.shape[0])
    return rows.at[target, 3].add(1, mode="drop")


def retune_tree(state: ReplayState, *, rules: Rules) -> ReplayState:
    """Makes the sums of a state anew, for the alpha and tau of a buffer.

    Args:
      state: the buffer.
      rules: the buffer's options.

    Returns:
      The state.
    """
    alpha, tau = rules.tree_alpha, rules.tree_tau
    if not rules.keeps_tree:
        return dataclasses.replace(state, tree=None)
    log_mass, births = leaf_values(*by_leaf(state, rules), alpha, tau, rules=rules)
    tree = build_tree(log_mass, births, decay_rate(alpha, tau), alpha=alpha, tau=tau)
    return dataclasses.replace(state, tree=tree)


def by_leaf(state: ReplayState, rules: Rules) -> tuple[jax.Array, jax.Array]:
    """Shapes log bases and births as what is drawn: `[N]` rows, or `[N, g]` groups."""
    if rules.group_size == 1:
        return state.log_base, state.birth
    shape = (rules.leaves, rules.group_size)
    return state.log_base.reshape(shape), state.birth.reshape(shape)


def members_of(leaf: jax.Array, rules: Rules) -> jax.Array:
    """Lists the slots of leaves: `[...]` for rows, `[..., g]` for groups."""
    if rules.group_size == 1:
        return leaf
    members = jnp.arange(rules.group_size, dtype=jnp.int32)
    return leaf[..., None] * rules.group_size + members.reshape(*[1] * leaf.ndim, -1)


def _refreshed(
    state: ReplayState, slots: jax.Array, *, births_changed: bool, rules: Rules, call: Caller
) -> PriorityTree | None:
    """Sums anew what lies above some slots; those out of range cost a little, for nothing."""
    if state.tree is None:
        return None
    alpha, tau = rules.tree_alpha, rules.tree_tau

    def leaves_at(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        slots = members_of(index, rules)
        base = read_at(state.rows, (slots, 0))
        births = read_at(state.rows, (slots, 1))
        return leaf_values(as_float(base), births, alpha, tau, rules=rules)

    return refresh_tree(
        state.tree,
        leaves_at,
        rules.leaves,
        jnp.minimum(slots, rules.capacity - 1) // rules.group_size,
        decay_rate(alpha, tau),
        births_changed=births_changed,
        members=rules.group_size,
        call=call,
    )


def _room(state: ReplayState, count: int, *, rules: Rules) -> jax.Array:
    """Lists `[count]` leaves that new rows or groups take: free ones, then those that must go."""
    if rules.eviction == "lowest_priority":
        log_base, births = by_leaf(state, rules)
        newest = newest_birth(state.birth, state.generation >= 0)
        if rules.group_size == 1:
            value = log_priorities(log_base, births, newest, 1.0, rules.tau)
        else:
            assert state.groups is not None
            mass, born, complete = group_values(log_base, births, rules.tau, rules=rules)
            value = log_priorities(mass, born, newest, 1.0, rules.tau)
            # A group under way is not judged before its members are there, unless it was given
            # up: as many groups have been opened since as there is room for.
            since = (state.groups.opened - state.groups.number) & _GENERATION_BITS
            under_way = (state.groups.number >= 0) & ~complete
            waits = jnp.where(since > rules.leaves, -jnp.inf, jnp.inf)
            value = jnp.where(under_way, waits, value)
        return jax.lax.top_k(-value, count)[1].astype(jnp.int32)
    if rules.group_size == 1:
        start = state.cursor
    else:
        assert state.groups is not None
        start = state.groups.cursor
    return (start + jnp.arange(count, dtype=jnp.int32)) % rules.leaves


def _evict(state: ReplayState, gone: jax.Array) -> ReplayState:
    """Forgets the rows of some slots, `[C]` bool; slots without a row may be among them."""
    gone = gone & (state.generation >= 0)
    count = jnp.sum(gone, dtype=jnp.int32)
    undrawn = jnp.sum(gone & (state.draws == 0), dtype=jnp.int32)
    return dataclasses.replace(
        state,
        rows=jnp.where(gone[:, None], _no_row()[None, :], state.rows),
    ).counted(
        size=state.size - count,
        evicted=state.evicted + count,
        evicted_undrawn=state.evicted_undrawn + undrawn,
    )


def _no_row() -> jax.Array:
    return jnp.stack([as_bits(jnp.float32(-jnp.inf)), *jnp.array([0, -1, 0], jnp.int32)])
