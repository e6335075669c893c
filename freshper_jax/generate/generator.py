"""Compiled entry points of generation, which replace the cache in place."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from freshper_jax.generate.cache import KVCache, grow_cache, place_rows
from freshper_jax.generate.decode import Generation, decode
from freshper_jax.generate.extend import UnstackedParams, extend, unstack_params
from freshper_jax.generate.sampling import SamplingParams
from freshper_jax.models import LanguageModel, Params


@dataclasses.dataclass(frozen=True, eq=False)
class Generator:
    """`extend` and `decode` of one model, compiled once for each set of shapes.

    Both consume the cache they are given (and `decode` the logits): use the ones returned.
    Where several calls use the same params, `unstack` them once: it spares each call a copy.

    unstack: (params) -> UnstackedParams, which both others take in place of params.
    grow: (cache, *, slots) -> the cache with more slots a row.
    place: (cache, logits, other cache, other logits, source [B]) -> (cache, logits), where row
        b is the other's row source[b], or as it was where that is -1; consumes cache and logits.
    extend: (params, cache, tokens [B, T], counts [B]) -> (cache, logits [B, V]).
    decode: (params, cache, logits [B, V], key, row_seeds [B], sampling, stop_ids [n],
        budgets [B], *, max_new) -> (cache, logits, Generation). Raises ValueError on
        sampling parameters out of range.
    """

    unstack: Callable[[Params], UnstackedParams]
    grow: Callable[..., KVCache]
    place: Callable[..., tuple[KVCache, jax.Array]]
    extend: Callable[..., tuple[KVCache, jax.Array]]
    decode: Callable[..., tuple[KVCache, jax.Array, Generation]]


def make_generator(model: LanguageModel) -> Generator:
    """Makes the compiled entry points of a model."""
    compiled_unstack = jax.jit(functools.partial(unstack_params, model))
    compiled_grow = jax.jit(grow_cache, static_argnames=("slots",))
    compiled_place = jax.jit(_place, donate_argnames=("cache", "logits"))
    compiled_extend = jax.jit(functools.partial(extend, model), donate_argnames=("cache",))
    compiled_decode = jax.jit(
        functools.partial(decode, model),
        static_argnames=("max_new",),
        donate_argnames=("cache", "logits"),
    )

    def checked_decode(
        params: Params | UnstackedParams,
        cache: KVCache,
        logits: jax.Array,
        key: jax.Array,
        row_seeds: ArrayLike,
        sampling: SamplingParams,
        stop_ids: ArrayLike,
        budgets: ArrayLike,
        *,
        max_new: int,
    ) -> tuple[KVCache, jax.Array, Generation]:
        sampling.validate()
        # One dtype and shape whatever the caller gave, so that nothing compiles twice.
        return compiled_decode(
            params,
            cache,
            logits,
            key,
            _array(row_seeds, np.uint32),
            sampling.broadcast(logits.shape[0]),
            _array(stop_ids, np.int32),
            _array(budgets, np.int32),
            max_new=max_new,
        )

    return Generator(
        unstack=compiled_unstack,
        grow=compiled_grow,
        place=compiled_place,
        extend=compiled_extend,
        decode=checked_decode,
    )


def _place(
    cache: KVCache,
    logits: jax.Array,
    other: KVCache,
    other_logits: jax.Array,
    source: jax.Array,
) -> tuple[KVCache, jax.Array]:
    """Does `place_rows` to a cache and to the logits after its rows."""
    moved = (source >= 0)[:, None]
    logits = jnp.where(moved, other_logits[jnp.maximum(source, 0)], logits)
    return place_rows(cache, other, source), logits


def _array(value: ArrayLike, dtype: type) -> Any:
    """Converts to an array of the dtype, on the host where the value is there."""
    library: Any = jnp if isinstance(value, jax.Array) else np
    return library.asarray(value).astype(dtype)
