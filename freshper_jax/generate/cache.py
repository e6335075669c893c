"""The key/value cache: left-aligned rows, each with a length of its own."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from freshper_jax.models import ModelConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of the tokens seen so far, for each row.

    keys: a tuple with one array a layer, each [B, K, S, H]
    values: likewise
    lengths: [B] int32, tokens held; slots from there on are stale and never seen

    One array a layer, not one for all, so that each update can alias its input. A head's slots
    lie side by side, as attention reads them.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    lengths: jax.Array

    @property
    def slots(self) -> int:
        """The capacity S of a row, in tokens."""
        return self.keys[0].shape[2]


def init_cache(
    config: ModelConfig, rows: int, slots: int, dtype: str | jnp.dtype | None = None
) -> KVCache:
    """Makes an empty cache.

    Args:
      config: of the model.
      rows: B.
      slots: capacity S of a row, in tokens.
      dtype: of keys and values, by default the compute dtype.

    Raises ValueError where rows or slots is below 1.
    """
    for name, value in (("rows", rows), ("slots", slots)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    shape = (rows, config.num_key_value_heads, slots, config.head_dim)
    layers = range(config.num_hidden_layers)
    dtype = config.compute_dtype if dtype is None else dtype
    return KVCache(
        keys=tuple(jnp.zeros(shape, dtype) for _ in layers),
        values=tuple(jnp.zeros(shape, dtype) for _ in layers),
        lengths=jnp.zeros(rows, jnp.int32),
    )


def reset_rows(cache: KVCache, mask: jax.Array) -> KVCache:
    """Empties the rows where mask [B] bool is true; their slots are reused as they are."""
    return dataclasses.replace(cache, lengths=jnp.where(mask, 0, cache.lengths))


def cut_rows(cache: KVCache, counts: ArrayLike) -> KVCache:
    """Takes the last counts[b] tokens off each row; counts is [B] int32, at most its length."""
    return dataclasses.replace(cache, lengths=cache.lengths - jnp.asarray(counts, jnp.int32))


def grow_cache(cache: KVCache, slots: int) -> KVCache:
    """Returns the cache with `slots` slots a row, what it holds kept.

    Raises ValueError where that is fewer than it has.
    """
    if slots < cache.slots:
        raise ValueError(f"slots must be at least the {cache.slots} there are, got {slots}")

    def pad(array: jax.Array) -> jax.Array:
        return jnp.pad(array, ((0, 0), (0, 0), (0, slots - array.shape[2]), (0, 0)))

    return KVCache(
        keys=tuple(map(pad, cache.keys)),
        values=tuple(map(pad, cache.values)),
        lengths=cache.lengths,
    )


def take_rows(cache: KVCache, rows: jax.Array) -> KVCache:
    """Returns the cache whose row i is a copy of row rows[i]; rows is [B'] int32.

    With repeated indices, one prefill serves every member of a group.
    """
    return jax.tree.map(lambda array: array[rows], cache)


def place_rows(cache: KVCache, other: KVCache, source: jax.Array) -> KVCache:
    """Returns the cache with row b a copy of other's row source[b], or as it was where -1.

    Args:
      cache: with B rows.
      other: with any number of rows, and as many slots.
      source: [B] int32. With repeated indices, one prefill serves every member of a group.

    Raises ValueError where the slots differ.
    """
    if cache.slots != other.slots:
        raise ValueError(f"other must have the cache's {cache.slots} slots, got {other.slots}")

    def place(old: jax.Array, new: jax.Array) -> jax.Array:
        moved = (source >= 0).reshape(-1, *(1,) * (old.ndim - 1))
        return jnp.where(moved, new[jnp.maximum(source, 0)], old)

    return jax.tree.map(place, cache, other)


def fits(cache: KVCache, counts: jax.Array) -> jax.Array:
    """Returns [B] bool, whether each row has room for counts [B] more tokens."""
    return cache.lengths + counts <= cache.slots
