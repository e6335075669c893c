"""Rotary positions and grouped-query attention, over a whole sequence or over a cache."""

import jax
import jax.numpy as jnp
from jax import lax

# Finite, so that a query with no visible key gives a uniform mixture and not NaN.
_MASKED = -1e30


def rotary_table(
    positions: jax.Array, head_dim: int, theta: float
) -> tuple[jax.Array, jax.Array]:
    """Returns the cosines and sines that rotate queries and keys at `positions`.

    Args:
      positions: [B, T] int32, or [1, T] where all rows share them.
      head_dim: size H of a head, even.
      theta: base of the frequencies.

    Returns:
      Cosines and sines, [B, T, 1, H / 2] float32, shared by all heads.

    Reference: Su et al. 2021, https://arxiv.org/abs/2104.09864, eq. 15.
    """
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequencies = 1.0 / theta**exponents
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


def _attend(
    queries: jax.Array, keys: jax.Array, values: jax.Array, visible: jax.Array
) -> jax.Array:
    """Attention of queries [B, K, G, T, H] over keys and values [B, K, S, H].

    `visible` is bool, [B, T, S] or [1, T, S]. The softmax is float32; the result
    [B, K, G, T, H] has the values' dtype.
    """
    rows, kv_heads, group, length, size = queries.shape
    slots = keys.shape[2]
    # The queries of a group share their keys: fold them into one matrix product.
    folded = queries.reshape(rows, kv_heads, group * length, size)
    scores = jnp.einsum("bkth,bksh->bkts", folded, keys, preferred_element_type=jnp.float32)
    scores = scores.reshape(rows, kv_heads, group, length, slots) * (size**-0.5)
    scores = jnp.where(visible[:, None, None, :, :], scores, _MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    weights = weights.reshape(rows, kv_heads, group * length, slots)
    mixed = jnp.einsum("bkts,bksh->bkth", weights, values)
    return mixed.reshape(rows, kv_heads, group, length, size)


def _group_heads(queries: jax.Array, kv_heads: int) -> jax.Array:
    """Reshapes queries [B, T, N, H] to [B, K, G, T, H], N = K G, head n using key n // G."""
    rows, length, heads, size = queries.shape
    grouped = queries.reshape(rows, length, kv_heads, heads // kv_heads, size)
    return grouped.transpose(0, 2, 3, 1, 4)


def _ungroup_heads(mixed: jax.Array) -> jax.Array:
    """Inverts `_group_heads`."""
    rows, kv_heads, group, length, size = mixed.shape
    return mixed.transpose(0, 3, 1, 2, 4).reshape(rows, length, kv_heads * group, size)


def causal_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, *, block: int
) -> jax.Array:
    """Attention of each token over itself and those before it.

    Queries go in blocks, each over the keys up to the block's end only: half the work of the
    full square, and never all its scores in memory, since a block's are recomputed in the
    backward pass.

    Args:
      queries: [B, T, N, H].
      keys, values: [B, T, K, H]; N is a multiple of K.
      block: queries a block.

    Returns:
      [B, T, N, H] in the queries' dtype.
    """
    length = queries.shape[1]
    grouped = _group_heads(queries, keys.shape[2])
    keys, values = keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3)
    blocks = []
    for start in range(0, length, block):
        end = min(start + block, length)
        visible = jnp.arange(start, end)[:, None] >= jnp.arange(end)[None, :]
        blocks.append(
            jax.checkpoint(_attend)(
                grouped[:, :, :, start:end], keys[:, :, :end], values[:, :, :end], visible[None]
            )
        )
    return _ungroup_heads(jnp.concatenate(blocks, axis=3))


def cached_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, positions: jax.Array, *, block: int
) -> jax.Array:
    """Attention of each token over the cache slots up to its own position.

    Args:
      queries: [B, T, N, H] of the new tokens.
      keys, values: [B, S, K, H] of the cache, the new tokens' written already.
      positions: [B, T] int32, the slot of each new token.
      block: queries handled at a time.

    Returns:
      [B, T, N, H] in the queries' dtype.
    """
    length, slots = queries.shape[1], keys.shape[1]
    grouped = _group_heads(queries, keys.shape[2])
    keys, values = keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3)
    slot = lax.broadcasted_iota(jnp.int32, (1, 1, slots), 2)
    blocks = []
    for start in range(0, length, block):
        end = min(start + block, length)
        visible = slot <= positions[:, start:end, None]
        blocks.append(_attend(grouped[:, :, :, start:end], keys, values, visible))
    return _ungroup_heads(jnp.concatenate(blocks, axis=3))
