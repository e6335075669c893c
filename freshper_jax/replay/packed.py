"""Packed row storage: rows of unequal length in one ring of tokens, so memory follows tokens.

Rows are written one after the other, each into as many places as it has tokens. A row starts
below P but may run on into the T places behind, so one slice of T places always reads it
whole; the row after one that ended at P or later starts a new lap, at place 0.

Because every lap fills the places from 0 up without a gap, what is lost follows from numbers:
rows of the current lap are whole, of the lap before those that start at or behind the end of
the newest row, of older laps none (the lap before the current one went over every place below
P, and so over the start of each of them). Rows are lost oldest first. An empty row has nothing
to lose and goes with the next row that has tokens. The newest C rows are always there as far
as they have at most P tokens together.
"""

import dataclasses
import numbers
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from freshper_jax.replay.leaves import as_given, as_held, held_dtype, shape_and_dtype

__all__ = [
    "PackedRows",
    "check_batch",
    "init_packed",
    "intact_rows",
    "lengths_of",
    "read_rows",
    "tokens_held",
    "write_rows",
]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Rows of which some leaves have as many places as the row has tokens.

    `tokens` and `fixed` both have the structure of a row, with None for the leaves that the
    other one holds. Floats of fewer than 32 bits are held as unsigned integers of their bits:
    XLA on a CPU converts the whole of a bfloat16 array to float32 to change a part of it.

    | field       | shape         | meaning                                                    |
    |-------------|---------------|------------------------------------------------------------|
    | tokens      | P + T, ...    | the ragged leaves, a pytree                                |
    | fixed       | C, ...        | the other leaves, a pytree                                 |
    | start       | C int32       | the first place of the row, below P                        |
    | length      | C int32       | tokens of the row                                          |
    | lap         | C int32       | the lap on which the row was written, -2 for no row yet    |
    | head        | int32         | the place behind the newest row                            |
    | current_lap | int32         | laps begun after the first one, modulo 2^32                |
    | clipped     | int32         | lengths so far that were below 0 or above T                |
    | longest     | int, static   | T, tokens of the longest row                               |
    | dtypes      | tuple, static | the dtypes of the leaves of a row, in their order          |
    """

    tokens: chex.ArrayTree
    fixed: chex.ArrayTree
    start: jax.Array
    length: jax.Array
    lap: jax.Array
    head: jax.Array
    current_lap: jax.Array
    clipped: jax.Array
    longest: int = dataclasses.field(metadata={"static": True})
    dtypes: tuple[Any, ...] = dataclasses.field(metadata={"static": True})


def init_packed(
    capacity: int, token_capacity: int, example: chex.ArrayTree, ragged: chex.ArrayTree
) -> PackedRows:
    """Makes empty storage for rows shaped as the example.

    Args:
      capacity: C, row slots.
      token_capacity: P, tokens to hold, at least T.
      example: one row of the greatest length, a pytree of arrays, `jax.ShapeDtypeStruct`s or
        numbers without a batch axis; only shapes and dtypes are read.
      ragged: a pytree of bools, the example or the beginning of it (as `in_axes` of `jax.vmap`):
        true for leaves `[T, ...]` of which a row fills its length, false for the others.

    Raises:
      ValueError: an argument is out of range, `ragged` does not fit the example or has no true
        in it, or the ragged leaves have no common leading axis.
    """
    _check_count("capacity", capacity)
    _check_count("token_capacity", token_capacity)
    flags = _flags(ragged, example)
    longest = _longest(example, flags)
    if token_capacity < longest:
        raise ValueError(
            f"token_capacity must be at least {longest}, the leading axis of the ragged leaves, "
            f"got {token_capacity}"
        )
    if token_capacity + longest > np.iinfo(np.int32).max:
        raise ValueError(
            f"token_capacity must be below 2^31 - {longest}, for places are int32, "
            f"got {token_capacity}"
        )

    def zeros(leaf: Any, drop: int, places: int) -> jax.Array:
        shape, dtype = shape_and_dtype(leaf)
        return jax.lax.full((places, *shape[drop:]), 0, held_dtype(dtype))

    def keep(wanted: bool, drop: int, places: int) -> chex.ArrayTree:
        return jax.tree.map(
            lambda leaf, flag: zeros(leaf, drop, places) if flag is wanted else None,
            example,
            flags,
        )

    return PackedRows(
        tokens=keep(True, 1, token_capacity + longest),
        fixed=keep(False, 0, capacity),
        start=jnp.zeros((capacity,), jnp.int32),
        length=jnp.zeros((capacity,), jnp.int32),
        lap=jnp.full((capacity,), -2, jnp.int32),
        head=jnp.zeros((), jnp.int32),
        current_lap=jnp.zeros((), jnp.int32),
        clipped=jnp.zeros((), jnp.int32),
        longest=longest,
        dtypes=tuple(shape_and_dtype(leaf)[1] for leaf in jax.tree.leaves(example)),
    )


def check_batch(rows: PackedRows, batch: chex.ArrayTree, lengths: jax.Array) -> None:
    """Checks that a batch has the stored structure, shapes, dtypes, and one leading axis.

    Args:
      rows: the storage.
      batch: rows, a pytree with a leading axis B.
      lengths: `[B]` int32; only shape and dtype are read.

    Raises:
      ValueError: it has not; the message names the leaf, what it is, and what was expected.
    """
    shape, dtype = shape_and_dtype(lengths)
    if len(shape) != 1 or shape[0] < 1 or dtype != jnp.int32:
        raise ValueError(
            f"lengths must have shape [B] with B >= 1 and dtype int32, got {shape} and {dtype}"
        )
    example = _example(rows)
    structure: Any = jax.tree.structure(batch)
    if structure != jax.tree.structure(example):
        raise ValueError(
            f"batch has the leaves {structure}, the example has {jax.tree.structure(example)}"
        )
    named = jax.tree.leaves_with_path(batch)
    for (path, leaf), row in zip(named, jax.tree.leaves(example), strict=True):
        expected = ((shape[0], *row.shape), row.dtype)
        if shape_and_dtype(leaf) != expected:
            raise ValueError(
                f"batch{jax.tree_util.keystr(path)} has shape and dtype "
                f"{shape_and_dtype(leaf)}, expected {expected}: the leading axis of "
                "lengths, then the shape and dtype of the example"
            )


def write_rows(
    rows: PackedRows, slots: jax.Array, batch: chex.ArrayTree, lengths: jax.Array
) -> tuple[PackedRows, jax.Array]:
    """Writes rows as if one at a time, over the tokens of the oldest ones once the ring is full.

    Args:
      rows: the storage; under `jit` with donation it is changed in place, without a copy.
      slots: `[B]` int32, B <= C, all different and in bounds, in turns: a slot that was left
        alone for 2^32 laps would pass for a new one.
      batch: rows, a pytree with a leading axis B that `check_batch` accepts; of ragged leaves
        only the first `lengths` places are read.
      lengths: `[B]` int32, tokens of each row, 0 to T; others are replaced by the nearest of
        these and counted.

    Returns:
      The new storage, and `[C]` bool, `intact_rows` of it.

    Raises:
      ValueError: the batch has more rows than there are slots.
    """
    count, capacity = slots.shape[0], rows.start.shape[0]
    if count > capacity:
        raise ValueError(f"batch must have at most {capacity} rows, one a slot, got {count}")
    batch = jax.tree.map(as_held, batch)
    lengths = jnp.asarray(lengths, jnp.int32)
    length = jnp.clip(lengths, 0, rows.longest)
    token_capacity = _token_capacity(rows)

    def place(
        carry: tuple[jax.Array, jax.Array], length: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        head, lap = carry
        full = head >= token_capacity
        start, lap = jnp.where(full, 0, head), lap + full.astype(jnp.int32)
        return (start + length, lap), (start, lap)

    (head, current_lap), (start, lap) = jax.lax.scan(place, (rows.head, rows.current_lap), length)
    places = jnp.arange(rows.longest, dtype=jnp.int32)

    def write_one(number: jax.Array, tokens: chex.ArrayTree) -> chex.ArrayTree:
        own = places < length[number]

        def write(ring: jax.Array, values: jax.Array) -> jax.Array:
            # What lies behind the row may be the next oldest one: it is written back as it was.
            old = jax.lax.dynamic_slice_in_dim(ring, start[number], rows.longest)
            new = jnp.where(_align(own, old), values[number], old)
            return jax.lax.dynamic_update_slice_in_dim(ring, new, start[number], axis=0)

        return jax.tree.map(write, tokens, ragged_values)

    def store(leaf: jax.Array, values: jax.Array) -> jax.Array:
        return leaf.at[slots].set(values, unique_indices=True, mode="promise_in_bounds")

    ragged_values = _like(rows.tokens, batch)
    new_rows = dataclasses.replace(
        rows,
        # Row by row, as a scatter of single tokens takes several times as long on a CPU.
        tokens=jax.lax.fori_loop(0, count, write_one, rows.tokens),
        fixed=jax.tree.map(store, rows.fixed, _like(rows.fixed, batch)),
        start=store(rows.start, start),
        length=store(rows.length, length),
        lap=store(rows.lap, lap),
        head=head,
        current_lap=current_lap,
        clipped=rows.clipped + jnp.sum(length != lengths, dtype=jnp.int32),
    )
    return new_rows, intact_rows(new_rows)


def read_rows(rows: PackedRows, index: jax.Array) -> chex.ArrayTree:
    """Reads rows in the structure and shapes of the example.

    Args:
      rows: the storage.
      index: `[B]` int32, slots, in bounds; what a slot without an intact row gives means
        nothing.

    Returns:
      A pytree with a leading axis B; ragged leaves are zero behind the length of their row.
    """
    start = rows.start[index]
    places = jnp.arange(rows.longest, dtype=jnp.int32)
    own = places[None, :] < rows.length[index][:, None]

    def read(ring: jax.Array) -> jax.Array:
        def slice_from(first: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(ring, first, rows.longest)

        values = jax.vmap(slice_from)(start)
        return jnp.where(_align(own, values), values, jax.lax.full_like(values, 0))

    held = _merge(
        jax.tree.map(read, rows.tokens),
        jax.tree.map(lambda leaf: leaf[index], rows.fixed),
    )
    leaves, structure = jax.tree.flatten(held)
    return jax.tree.unflatten(structure, map(as_given, leaves, rows.dtypes))


def intact_rows(rows: PackedRows) -> jax.Array:
    """Tells which slots hold a row that has lost none of its tokens.

    Returns:
      `[C]` bool, false for slots that never held a row. The intact rows are always the newest
      ones: an empty row is lost with the next row that has tokens.
    """
    laps_ago = rows.current_lap - rows.lap
    return (laps_ago == 0) | ((laps_ago == 1) & (rows.start >= rows.head))


def lengths_of(rows: PackedRows, index: jax.Array) -> jax.Array:
    """Reads the lengths of rows.

    Args:
      rows: the storage.
      index: `[B]` int32, slots, in bounds.

    Returns:
      `[B]` int32, between 0 and T.
    """
    return rows.length[index]


def tokens_held(rows: PackedRows) -> jax.Array:
    """Counts the tokens of the intact rows.

    Returns:
      int32 scalar, below P + T.
    """
    return jnp.sum(jnp.where(intact_rows(rows), rows.length, 0), dtype=jnp.int32)


def _check_count(name: str, value: int) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


def _flags(ragged: chex.ArrayTree, example: chex.ArrayTree) -> chex.ArrayTree:
    """Gives each leaf of the example its own bool."""
    for path, flag in jax.tree.leaves_with_path(ragged):
        if not isinstance(flag, bool):
            raise ValueError(f"ragged{jax.tree_util.keystr(path)} must be a bool, got {flag!r}")
    try:
        return jax.tree.broadcast(ragged, example)
    except ValueError as error:
        raise ValueError(
            f"ragged must be a prefix of the example, {jax.tree.structure(example)}, got {ragged!r}"
        ) from error


def _longest(example: chex.ArrayTree, flags: chex.ArrayTree) -> int:
    """Finds T, the leading axis of all ragged leaves."""
    named = jax.tree.leaves_with_path(example)
    shapes = {
        jax.tree_util.keystr(path): shape_and_dtype(leaf)[0]
        for (path, leaf), flag in zip(named, jax.tree.leaves(flags), strict=True)
        if flag
    }
    if not shapes:
        raise ValueError(f"ragged must be true for at least one leaf of the example, got {flags!r}")
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if not shape or shape[0] < 1:
            raise ValueError(
                f"example{name} is ragged and must have shape [T, ...] with T >= 1, got {shape}"
            )
        if shape[0] != shapes[first][0]:
            raise ValueError(
                f"example{name} has shape {shape}, expected the leading axis of the other "
                f"ragged leaves: {shapes[first][0]}, as example{first}"
            )
    return shapes[first][0]


def _token_capacity(rows: PackedRows) -> int:
    return jax.tree.leaves(rows.tokens)[0].shape[0] - rows.longest


def _example(rows: PackedRows) -> chex.ArrayTree:
    """Makes one row of shapes and dtypes."""

    def without_rows(leaf: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    def of_longest(ring: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows.longest, *ring.shape[1:]), ring.dtype)

    held = _merge(jax.tree.map(of_longest, rows.tokens), jax.tree.map(without_rows, rows.fixed))
    leaves, structure = jax.tree.flatten(held)
    given = [
        jax.ShapeDtypeStruct(leaf.shape, dtype)
        for leaf, dtype in zip(leaves, rows.dtypes, strict=True)
    ]
    return jax.tree.unflatten(structure, given)


def _like(part: chex.ArrayTree, batch: chex.ArrayTree) -> chex.ArrayTree:
    """Takes from the batch the leaves that a part, `tokens` or `fixed`, holds."""
    return jax.tree.map(
        lambda held, values: None if held is None else values, part, batch, is_leaf=_is_none
    )


def _merge(tokens: chex.ArrayTree, fixed: chex.ArrayTree) -> chex.ArrayTree:
    """Puts the two parts of rows together again."""
    return jax.tree.map(
        lambda ring, leaf: leaf if ring is None else ring, tokens, fixed, is_leaf=_is_none
    )


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _align(mask: jax.Array, values: jax.Array) -> jax.Array:
    """Gives a mask the axes that the values have beyond it."""
    return mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
