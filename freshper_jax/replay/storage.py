"""Dense row storage: checks of what comes in, and where in the ring it goes."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from freshper_jax.replay.priority import log_of_base
from freshper_jax.replay.types import Handles, ReplayState

__all__ = [
    "check_batch",
    "count_draws",
    "init_state",
    "insert_rows",
    "live_handles",
    "state_nbytes",
    "update_rows",
]

_GENERATION_BITS = 0x7FFFFFFF


def init_state(capacity: int, example: chex.ArrayTree) -> ReplayState:
    """Makes an empty state for rows shaped as the example.

    Args:
      capacity: C, rows to hold.
      example: one row, a pytree of arrays or `jax.ShapeDtypeStruct`s without a leading axis;
        only shapes and dtypes are read.

    Raises:
      ValueError: the example has no array in it.
    """
    if not jax.tree.leaves(example):
        raise ValueError("example must hold at least one array, it is an empty pytree")

    def rows_like(leaf: Any) -> jax.Array:
        shape, dtype = _shape_and_dtype(leaf)
        return jax.lax.full((capacity, *shape), 0, dtype)

    def count() -> jax.Array:
        return jnp.zeros((), jnp.int32)

    return ReplayState(
        data=jax.tree.map(rows_like, example),
        log_base=jnp.full((capacity,), -jnp.inf, jnp.float32),
        birth=jnp.zeros((capacity,), jnp.int32),
        generation=jnp.full((capacity,), -1, jnp.int32),
        draws=jnp.zeros((capacity,), jnp.int32),
        cursor=count(),
        size=count(),
        next_generation=count(),
        evicted=count(),
        evicted_undrawn=count(),
        stale_updates=count(),
        replaced=count(),
    )


def state_nbytes(state: chex.ArrayTree) -> int:
    """Counts the bytes of a state, real or abstract.

    Args:
      state: a state, or `jax.eval_shape(buffer.init, example)` to plan before allocating.

    Returns:
      The bytes of all leaves.
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def check_batch(state: ReplayState, batch: chex.ArrayTree, base_priority: jax.Array) -> None:
    """Checks that a batch has the stored structure, shapes, dtypes, and one leading axis.

    Raises:
      ValueError: it has not; the message names the leaf, what it is, and what was expected.
    """
    named = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(batch)]
    expected_names = [
        jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state.data)
    ]
    if named != expected_names:
        raise ValueError(f"batch has the leaves {named}, the example has {expected_names}")
    if np.ndim(base_priority) != 1 or np.shape(base_priority)[0] < 1:
        raise ValueError(
            f"base_priority must have shape [B] with B >= 1, got {np.shape(base_priority)}"
        )
    rows = np.shape(base_priority)[0]
    leaves, stored = jax.tree.leaves(batch), jax.tree.leaves(state.data)
    for name, leaf, row in zip(named, leaves, stored, strict=True):
        expected = ((rows, *row.shape[1:]), row.dtype)
        if _shape_and_dtype(leaf) != expected:
            raise ValueError(
                f"batch{name} has shape and dtype "
                f"{_shape_and_dtype(leaf)}, expected {expected}: the leading axis of "
                "base_priority, then the shape and dtype of the example"
            )


def insert_rows(
    state: ReplayState,
    batch: chex.ArrayTree,
    base_priority: jax.Array,
    clock: jax.Array,
    *,
    insertion: str,
    fallback: float,
    checked: bool,
) -> tuple[ReplayState, Handles]:
    """Adds rows as if one at a time, each over the oldest one once the buffer is full.

    Of a batch larger than the capacity only the last C rows are written; the handles of the
    others are stale at once, and they count as evicted.

    Args:
      state: the buffer.
      batch: rows, a pytree with a leading axis B.
      base_priority: `[B]` float.
      clock: int32 scalar, the birth of the rows.
      insertion: `base` to enter at their own base priority, `max` to enter at the largest one
        stored (in an empty buffer: of the batch).
      fallback: stands in for bad base priorities.
      checked: whether those are errors under `checkify.checkify`.

    Returns:
      The new state and the handles of the B rows.
    """
    capacity = state.log_base.shape[0]
    rows = base_priority.shape[0]
    kept = min(rows, capacity)
    order = jnp.arange(rows, dtype=jnp.int32)
    handles = Handles(
        index=(state.cursor + order % capacity) % capacity,
        generation=(state.next_generation + order) & _GENERATION_BITS,
    )
    log_base, bad = log_of_base(base_priority, fallback, checked=checked)
    if insertion == "max":
        stored = jnp.max(state.log_base)
        log_base = jnp.full_like(log_base, jnp.where(state.size > 0, stored, jnp.max(log_base)))

    slots = handles.index[-kept:]
    passed_through = rows - kept
    overwritten = state.size + jnp.arange(kept, dtype=jnp.int32) >= capacity
    old_draws = state.draws[slots]
    # Zero, but made from what was read: so the write waits for the read, and XLA, which could
    # otherwise run them in any order, makes no copy of the leaf.
    no_draws = jnp.minimum(old_draws, 0)

    def write(leaf: jax.Array, values: jax.Array) -> jax.Array:
        return leaf.at[slots].set(values, unique_indices=True, mode="promise_in_bounds")

    new_state = dataclasses.replace(
        state,
        data=jax.tree.map(lambda leaf, values: write(leaf, values[-kept:]), state.data, batch),
        log_base=write(state.log_base, log_base[-kept:]),
        birth=write(state.birth, jnp.full((kept,), clock)),
        generation=write(state.generation, handles.generation[-kept:]),
        draws=write(state.draws, no_draws),
        cursor=(state.cursor + rows % capacity) % capacity,
        size=jnp.minimum(state.size + kept, capacity),
        next_generation=(state.next_generation + rows) & _GENERATION_BITS,
        evicted=state.evicted + jnp.sum(overwritten, dtype=jnp.int32) + passed_through,
        evicted_undrawn=state.evicted_undrawn
        + jnp.sum(overwritten & (old_draws == 0), dtype=jnp.int32)
        + passed_through,
        replaced=state.replaced + jnp.sum(bad, dtype=jnp.int32),
    )
    return new_state, handles


def live_handles(state: ReplayState, handles: Handles) -> jax.Array:
    """Tells which handles still name a stored row.

    Args:
      state: the buffer.
      handles: `[B]`; indices out of range and generation -1 are never live.

    Returns:
      `[B]` bool.
    """
    capacity = state.log_base.shape[0]
    inside = (handles.index >= 0) & (handles.index < capacity)
    stored = state.generation[jnp.clip(handles.index, 0, capacity - 1)]
    return inside & (handles.generation >= 0) & (stored == handles.generation)


def update_rows(
    state: ReplayState,
    handles: Handles,
    base_priority: jax.Array,
    clock: jax.Array | None,
    *,
    fallback: float,
    checked: bool,
) -> ReplayState:
    """Writes new base priorities as if one at a time, dropping handles that are not live.

    Args:
      state: the buffer.
      handles: `[B]` rows to change; of duplicates the last one wins.
      base_priority: `[B]` float.
      clock: int32 scalar that becomes the birth of the rows; None leaves their birth alone.
      fallback: stands in for bad base priorities.
      checked: whether those are errors under `checkify.checkify`.

    Returns:
      The new state.
    """
    live = live_handles(state, handles)
    log_base, bad = log_of_base(base_priority, fallback, checked=checked)
    capacity = state.log_base.shape[0]
    # Scatter order is undefined, so earlier duplicates go out of bounds like dead handles.
    index = jnp.where(live, handles.index, capacity)
    order = jnp.argsort(index, stable=True)
    in_order = index[order]
    last_of_run = jnp.concatenate([in_order[1:] != in_order[:-1], jnp.ones((1,), bool)])
    target = jnp.where(last_of_run, in_order, capacity)
    birth = state.birth
    if clock is not None:
        birth = birth.at[target].set(jnp.full_like(target, clock), mode="drop")
    return dataclasses.replace(
        state,
        log_base=state.log_base.at[target].set(log_base[order], mode="drop"),
        birth=birth,
        stale_updates=state.stale_updates + jnp.sum(~live, dtype=jnp.int32),
        replaced=state.replaced + jnp.sum(bad & live, dtype=jnp.int32),
    )


def count_draws(state: ReplayState, handles: Handles) -> ReplayState:
    """Adds one draw to each row per live handle; dead handles are ignored.

    Args:
      state: the buffer.
      handles: `[B]` rows drawn; duplicates add up.

    Returns:
      The new state.
    """
    capacity = state.log_base.shape[0]
    target = jnp.where(live_handles(state, handles), handles.index, capacity)
    return dataclasses.replace(state, draws=state.draws.at[target].add(1, mode="drop"))


def _shape_and_dtype(leaf: Any) -> tuple[tuple[int, ...], Any]:
    """Reads shape and dtype as JAX would store them, so float64 of numpy is float32."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype
    array = np.asarray(leaf)
    return array.shape, jax.dtypes.canonicalize_dtype(array.dtype)
