"""Rotary positions and grouped-query attention, over a whole sequence or over a cache."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from freshper_jax.models.rope import RopeScaling

# Name of what attention gives its backward pass, for rematerialisation to keep.
MIXTURE = "attention mixture"
# Blocks are unrolled: a long sequence takes longer ones rather than more.
_MAX_BLOCKS = 16
# Scores of all rows that a CPU works on at once: as many as stay in its caches.
_CACHED_ELEMENTS = 2**21
# Finite, so that a query with no visible key gives a uniform mixture and not NaN.
_MASKED = -1e30

_product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def rotary_table(
    positions: jax.Array, head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> tuple[jax.Array, jax.Array]:
    """Returns the cosines and sines that rotate queries and keys at `positions`.

    Args:
      positions: [B, T] int32, or [1, T] where all rows share them.
      head_dim: size H of a head, even.
      theta: base of the frequencies.
      scaling: how they are stretched, if they are.

    Returns:
      Cosines and sines, [B, T, 1, H / 2] float32, shared by all heads.

    Reference: Su et al. 2021, https://arxiv.org/abs/2104.09864, eq. 15.
    """
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    if scaling is not None:
        frequencies = scaling.apply(frequencies)
    angles = positions.astype(jnp.float32)[:, :, None] * frequencies[None, None, :]
    return jnp.cos(angles)[:, :, None, :], jnp.sin(angles)[:, :, None, :]


def rotate(x: jax.Array, table: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotates heads [B, T, N, H] by position, pairing element i with i + H / 2.

    That pairing, of half-vectors and not of neighbours, is the one of Hugging Face weights.
    """
    cosines, sines = table
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = (first * cosines - second * sines, second * cosines + first * sines)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def _fold_heads(queries: jax.Array, kv_heads: int) -> jax.Array:
    """Reshapes queries [B, T, N, H] to [B, K, T G, H] with N = K G; head n uses key n // G.

    The queries that share a key head become one matrix, T in front of G so that a block of
    tokens is a block of its rows.
    """
    rows, length, heads, size = queries.shape
    group = heads // kv_heads
    grouped = queries.reshape(rows, length, kv_heads, group, size).transpose(0, 2, 1, 3, 4)
    return grouped.reshape(rows, kv_heads, length * group, size)


def _unfold_heads(folded: jax.Array, length: int) -> jax.Array:
    """Inverts `_fold_heads`."""
    rows, kv_heads, stacked, size = folded.shape
    group = stacked // length
    grouped = folded.reshape(rows, kv_heads, length, group, size).transpose(0, 2, 1, 3, 4)
    return grouped.reshape(rows, length, kv_heads * group, size)


def _scores(queries: jax.Array, keys: jax.Array, visible: jax.Array) -> jax.Array:
    """Scaled products of queries [B, K, M, H] and keys [B, K, S, H], float32 [B, K, M, S].

    `visible` is bool [B, M, S] or [1, M, S]; what is not gets a score of no weight.
    """
    scale = queries.shape[-1] ** -0.5
    scores = _product("bkmh,bksh->bkms", queries, keys)
    return jnp.where(visible[:, None], scores * scale, _MASKED)


def _mix(queries: jax.Array, keys: jax.Array, values: jax.Array, visible: jax.Array) -> jax.Array:
    """Attention of queries [B, K, M, H] over keys and values [B, K, S, H], float32 [B, K, M, H]."""
    weights = jax.nn.softmax(_scores(queries, keys, visible), axis=-1)
    return _product("bkms,bksh->bkmh", weights.astype(values.dtype), values)


def _blocks(length: int, group: int, block: int) -> list[tuple[int, int, jax.Array]]:
    """Splits the folded queries of a sequence: (first row, last row + 1, visible [1, M, S])."""
    blocks = []
    block = max(block, -(-length // _MAX_BLOCKS))
    for start in range(0, length, block):
        end = min(start + block, length)
        # On the host: XLA would divide anew for every key.
        token = start + np.arange((end - start) * group, dtype=np.int32)[:, None] // group
        visible = lax.broadcasted_iota(jnp.int32, (len(token), end), 1) <= token
        blocks.append((start * group, end * group, visible[None]))
    return blocks


def _over_rows(function: Callable[..., Any], *arrays: jax.Array) -> Any:
    """Maps arrays [B, ...], of which the first two are queries and keys; a CPU row by row.

    A CPU writes each step to memory, where the scores of all rows do not stay in its caches.
    Where rows lie on several CPU devices, each of them then works off all.
    """
    queries, keys = arrays[:2]
    if math.prod(queries.shape[:3]) * keys.shape[2] <= _CACHED_ELEMENTS:
        return function(*arrays)

    def row_by_row(*arrays: jax.Array) -> Any:
        def of_row(row: tuple[jax.Array, ...]) -> Any:
            return jax.tree.map(lambda x: x[0], function(*(x[None] for x in row)))

        return lax.map(of_row, arrays)

    return lax.platform_dependent(*arrays, cpu=row_by_row, default=function)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _causal(queries: jax.Array, keys: jax.Array, values: jax.Array, block: int) -> jax.Array:
    """Causal attention of folded queries [B, K, T G, H] over keys and values [B, K, T, H]."""
    return _causal_forward(queries, keys, values, block)[0]


def _causal_forward(queries, keys, values, block):
    kept = _over_rows(functools.partial(_mix_blocks, block=block), queries, keys, values)
    result, normaliser = (checkpoint_name(x, MIXTURE) for x in kept)
    return result, (queries, keys, values, result, normaliser)


def _mix_blocks(
    queries: jax.Array, keys: jax.Array, values: jax.Array, *, block: int
) -> tuple[jax.Array, jax.Array]:
    """Causal attention, and the log-sum-exp of each query's scores, float32 [B, K, T G, 1]."""
    length = keys.shape[2]
    mixed, normalisers = [], []
    for first, last, visible in _blocks(length, queries.shape[2] // length, block):
        seen = visible.shape[-1]
        scores = _scores(queries[:, :, first:last], keys[:, :, :seen], visible)
        highest = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - highest)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        # Divided after the product, which has fewer elements than the weights.
        mixed.append(
            _product("bkms,bksh->bkmh", weights.astype(values.dtype), values[:, :, :seen]) / total
        )
        normalisers.append(highest + jnp.log(total))
    result = jnp.concatenate(mixed, axis=2).astype(queries.dtype)
    return result, jnp.concatenate(normalisers, axis=2)


def _causal_backward(block, saved, gradient):
    return _over_rows(functools.partial(_slopes, block=block), *saved, gradient)


def _slopes(queries, keys, values, result, normaliser, gradient, *, block):
    """Recomputes the weights of a block at a time, so that none is ever stored.

    Reference: Dao et al. 2022, https://arxiv.org/abs/2205.14135, appendix B.
    """
    dtype = queries.dtype
    length = keys.shape[2]
    scale = queries.shape[-1] ** -0.5
    # A product with ones, because XLA's sum over so short an axis is slow on CPU.
    inner = (gradient.astype(jnp.float32) * result.astype(jnp.float32)) @ jnp.ones(
        (queries.shape[-1], 1), jnp.float32
    )
    query_parts = []
    key_gradient = jnp.zeros(keys.shape, jnp.float32)
    value_gradient = jnp.zeros(values.shape, jnp.float32)
    for first, last, visible in _blocks(length, queries.shape[2] // length, block):
        seen = visible.shape[-1]
        rows = (slice(None), slice(None), slice(first, last))
        key, value = keys[:, :, :seen], values[:, :, :seen]
        weights = jnp.exp(_scores(queries[rows], key, visible) - normaliser[rows])
        slope = _product("bkmh,bksh->bkms", gradient[rows], value)
        slope = (scale * weights * (slope - inner[rows])).astype(dtype)
        query_parts.append(_product("bkms,bksh->bkmh", slope, key))
        unseen = ((0, 0), (0, 0), (0, length - seen), (0, 0))
        key_part = _product("bkms,bkmh->bksh", slope, queries[rows])
        key_gradient += jnp.pad(key_part, unseen)
        value_part = _product("bkms,bkmh->bksh", weights.astype(dtype), gradient[rows])
        value_gradient += jnp.pad(value_part, unseen)
    query_gradient = jnp.concatenate(query_parts, axis=2)
    return tuple(x.astype(dtype) for x in (query_gradient, key_gradient, value_gradient))


_causal.defvjp(_causal_forward, _causal_backward)


def causal_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, *, block: int
) -> jax.Array:
    """Attention of each token over itself and those before it.

    Queries go in blocks, each over the keys up to the block's end only: half the work of the
    full square, and never all its scores in memory, forward or backward.

    Args:
      queries: [B, T, N, H].
      keys, values: [B, T, K, H]; N is a multiple of K.
      block: queries a block, or more so that there are at most 16 of them.

    Returns:
      [B, T, N, H] in the queries' dtype. Reverse-mode derivatives only.
    """
    length, kv_heads = keys.shape[1:3]
    keys, values = keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3)
    return _unfold_heads(_causal(_fold_heads(queries, kv_heads), keys, values, block), length)


def cached_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, positions: jax.Array, *, block: int
) -> jax.Array:
    """Attention of each token over the cache slots up to its own position.

    Args:
      queries: [B, T, N, H] of the new tokens.
      keys, values: [B, K, S, H] of the cache, the new tokens' written already.
      positions: [B, T] int32, the slot of each new token.
      block: queries a block, or more so that there are at most 16 of them.

    Returns:
      [B, T, N, H] in the queries' dtype.
    """
    length, heads = queries.shape[1:3]
    kv_heads, slots = keys.shape[1:3]
    folded = _fold_heads(queries, kv_heads)
    last = jnp.repeat(positions, heads // kv_heads, axis=1)
    slot = lax.broadcasted_iota(jnp.int32, (1, 1, slots), 2)
    step = max(block, -(-length // _MAX_BLOCKS)) * (heads // kv_heads)
    mixed = [
        _mix(
            folded[:, :, first : first + step],
            keys,
            values,
            slot <= last[:, first : first + step, None],
        ).astype(queries.dtype)
        for first in range(0, folded.shape[2], step)
    ]
    return _unfold_heads(jnp.concatenate(mixed, axis=2), length)
