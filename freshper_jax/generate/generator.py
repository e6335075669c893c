"""Compiled entry points of generation, which replace the cache in place."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from freshper_jax.generate.cache import KVCache
from freshper_jax.generate.decode import Generation, decode
from freshper_jax.generate.extend import extend
from freshper_jax.generate.sampling import SamplingParams
from freshper_jax.models import LanguageModel


@dataclasses.dataclass(frozen=True, eq=False)
class Generator:
    """`extend` and `decode` of one model, compiled once for each set of shapes.

    Both consume the cache they are given (and `decode` the logits): use the ones returned.

    extend: (params, cache, tokens [B, T], counts [B]) -> (cache, logits [B, V]).
    decode: (params, cache, logits [B, V], key, row_seeds [B], sampling, stop_ids [n],
        budgets [B], *, max_new) -> (cache, logits, Generation). Raises ValueError on
        sampling parameters out of range.
    """

    extend: Callable[..., tuple[KVCache, jax.Array]]
    decode: Callable[..., tuple[KVCache, jax.Array, Generation]]


def make_generator(model: LanguageModel) -> Generator:
    """Makes the compiled entry points of a model."""
    compiled_extend = jax.jit(functools.partial(extend, model), donate_argnames=("cache",))
    compiled_decode = jax.jit(
        functools.partial(decode, model),
        static_argnames=("max_new",),
        donate_argnames=("cache", "logits"),
    )

    def checked_decode(
        params,
        cache,
        logits,
        key,
        row_seeds,
        sampling: SamplingParams,
        stop_ids,
        budgets,
        *,
        max_new,
    ):
        sampling.validate()
        # One shape and dtype whatever the caller gave, so that nothing compiles twice.
        return compiled_decode(
            params,
            cache,
            logits,
            key,
            jnp.asarray(row_seeds).astype(jnp.uint32),
            sampling.broadcast(logits.shape[0]),
            jnp.asarray(stop_ids, jnp.int32),
            jnp.asarray(budgets, jnp.int32),
            max_new=max_new,
        )

    return Generator(extend=compiled_extend, decode=checked_decode)
