"""Key/value cache, extend, and the decode loop."""

from freshper_jax.generate.cache import (
    KVCache,
    fits,
    grow_cache,
    init_cache,
    reset_rows,
    take_rows,
)
from freshper_jax.generate.decode import BUDGET, IDLE, STOP, Generation, decode
from freshper_jax.generate.extend import UnstackedParams, extend, unstack_params
from freshper_jax.generate.generator import Generator, make_generator
from freshper_jax.generate.sampling import SamplingParams, sample_tokens, truncate_logits

__all__ = [
    "BUDGET",
    "IDLE",
    "STOP",
    "Generation",
    "Generator",
    "KVCache",
    "SamplingParams",
    "UnstackedParams",
    "decode",
    "extend",
    "fits",
    "grow_cache",
    "init_cache",
    "make_generator",
    "reset_rows",
    "sample_tokens",
    "take_rows",
    "truncate_logits",
    "unstack_params",
]
