"""The one primitive of generation: append tokens to the cache, row by row."""

import dataclasses

import jax
import jax.numpy as jnp

from freshper_jax.generate.cache import KVCache, fits
from freshper_jax.models import LanguageModel, Params
from freshper_jax.models.attention import cached_attention
from freshper_jax.models.decoder import Decoder, DecoderLayer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class UnstackedParams:
    """Parameters laid out for generation: a model, and its layers one by one.

    Made by `unstack_params`. Each layer is a copy, so that this takes as much memory again as
    the layers do; the rest is shared with the parameters it was made from.
    """

    decoder: Decoder
    layers: tuple[DecoderLayer, ...]


def unstack_params(model: LanguageModel, params: Params | UnstackedParams) -> UnstackedParams:
    """Lays out parameters for generation, once for many calls; see `UnstackedParams`."""
    if isinstance(params, UnstackedParams):
        return params
    decoder = model.bind(params)
    return UnstackedParams(decoder, decoder.unstack())


def extend(
    model: LanguageModel,
    params: Params | UnstackedParams,
    cache: KVCache,
    tokens: jax.Array,
    counts: jax.Array,
) -> tuple[KVCache, jax.Array]:
    """Appends the first counts[b] of tokens[b] to each row b: prefill, observation or reply.

    A row with count 0 is untouched, and so is a row whose tokens do not fit: see `fits`,
    which callers check first. No row sees another, nor the padding after its count.

    Args:
      model: from `make_model`.
      params: of the model, or what `unstack_params` made of them.
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
    return append(unstack_params(model, params), cache, tokens, counts)


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
    params: UnstackedParams, cache: KVCache, tokens: jax.Array, counts: jax.Array
) -> tuple[KVCache, jax.Array]:
    """Does the work of `extend` with layers unstacked already, as a loop needs them."""
    decoder = params.decoder
    rows, length = tokens.shape
    counts = jnp.where(fits(cache, counts), counts, 0)
    offsets = jnp.arange(length, dtype=jnp.int32)[None, :]
    positions = cache.lengths[:, None] + offsets
    # Padding aims past the last slot, where a scatter drops it.
    targets = jnp.where(offsets < counts[:, None], positions, cache.slots)
    row = jnp.arange(rows)[:, None, None]
    head = jnp.arange(decoder.config.num_key_value_heads)[None, :, None]
    table = decoder.rotary(positions)

    def write(slots: jax.Array, new: jax.Array) -> jax.Array:
        new = new.transpose(0, 2, 1, 3).astype(slots.dtype)
        return slots.at[row, head, targets[:, None, :]].set(new, mode="drop")

    x = decoder.embed(tokens)
    all_keys, all_values = [], []
    for layer, old_keys, old_values in zip(params.layers, cache.keys, cache.values, strict=True):

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
