"""The one primitive of generation: append tokens to the cache, row by row."""

import jax
import jax.numpy as jnp

from freshper_jax.generate.cache import KVCache, fits
from freshper_jax.models import LanguageModel, Params
from freshper_jax.models.attention import cached_attention
from freshper_jax.models.decoder import Decoder, DecoderLayer


def extend(
    model: LanguageModel, params: Params, cache: KVCache, tokens: jax.Array, counts: jax.Array
) -> tuple[KVCache, jax.Array]:
    """Appends the first counts[b] of tokens[b] to each row b: prefill, observation or reply.

    A row with count 0 is untouched, and so is a row whose tokens do not fit: see `fits`,
    which callers check first. No row sees another, nor the padding after its count.

    Args:
      model: from `make_model`.
      params: of the model.
      cache: with B rows.
      tokens: [B, T] int32, padded on the right.
      counts: [B] int32, from 0 to T.

    Returns:
      The cache, and logits [B, V] float32 after each row's last new token; those of an
      untouched row are unspecified.

    Raises ValueError where the shapes do not fit together, TypeError where tokens or counts
    are not integers.
    """
    _check_tokens(cache, tokens, counts)
    decoder = model.bind(params)
    return append(decoder, decoder.unstack(), cache, tokens, counts)


def _check_tokens(cache: KVCache, tokens: jax.Array, counts: jax.Array) -> None:
    """Raises an error on tokens or counts of a wrong shape or type."""
    rows = cache.lengths.shape[0]
    if tokens.ndim != 2 or tokens.shape[0] != rows:
        raise ValueError(f"tokens must be [{rows}, T] as the cache has rows, got {tokens.shape}")
    if counts.shape != (rows,):
        raise ValueError(f"counts must be [{rows}] as the cache has rows, got {counts.shape}")
    for name, value in (("tokens", tokens), ("counts", counts)):
        if not jnp.issubdtype(value.dtype, jnp.integer):
            raise TypeError(f"{name} must be integers, got {value.dtype}")


def append(
    decoder: Decoder,
    layers: tuple[DecoderLayer, ...],
    cache: KVCache,
    tokens: jax.Array,
    counts: jax.Array,
) -> tuple[KVCache, jax.Array]:
    """Does the work of `extend` with layers unstacked already, as a loop needs them."""
    rows, length = tokens.shape
    counts = jnp.where(fits(cache, counts), counts, 0)
    offsets = jnp.arange(length, dtype=jnp.int32)[None, :]
    positions = cache.lengths[:, None] + offsets
    # Padding aims past the last slot, where a scatter drops it.
    targets = jnp.where(offsets < counts[:, None], positions, cache.slots)
    row = jnp.arange(rows)[:, None]
    table = decoder.rotary(positions)

    def write(slots: jax.Array, new: jax.Array) -> jax.Array:
        return slots.at[row, targets].set(new.astype(slots.dtype), mode="drop")

    x = decoder.embed(tokens)
    all_keys, all_values = [], []
    for layer, old_keys, old_values in zip(layers, cache.keys, cache.values, strict=True):

        def attend(queries, keys, values, old_keys=old_keys, old_values=old_values):
            keys, values = write(old_keys, keys), write(old_values, values)
            mixed = cached_attention(
                queries,
                keys.astype(queries.dtype),
                values.astype(queries.dtype),
                positions,
                block=decoder.config.attention_block,
            )
            return mixed, (keys, values)

        x, (keys, values) = layer(x, table, attend)
        all_keys.append(keys)
        all_values.append(values)

    last = jnp.maximum(counts - 1, 0)
    hidden = jnp.take_along_axis(x, last[:, None, None], axis=1)
    logits = decoder.logits(decoder.final_norm(hidden))[:, 0]
    cache = KVCache(tuple(all_keys), tuple(all_values), cache.lengths + counts)
    return cache, logits
