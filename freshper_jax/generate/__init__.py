"""Key/value cache, extend, and the decode loop."""

from freshper_jax.generate.cache import (
    KVCache,
    cut_rows,
    fits,
    grow_cache,
    init_cache,
    place_rows,
    reset_rows,
    take_rows,
)
from freshper_jax.generate.decode import BUDGET, IDLE, STOP, STOP_STRING, Generation, decode
from freshper_jax.generate.extend import UnstackedParams, extend, unstack_params
from freshper_jax.generate.generator import Generator, make_generator
from freshper_jax.generate.rounds import decode_rounds, first_stop
from freshper_jax.generate.sampling import SamplingParams, sample_tokens, truncate_logits

__all__ = [
    "BUDGET",
    "IDLE",
    "STOP",
    "STOP_STRING",
    "Generation",
    "Generator",
    "KVCache",
    "SamplingParams",
    "UnstackedParams",
    "cut_rows",
    "decode",
    "decode_rounds",
    "extend",
    "first_stop",
    "fits",
    "grow_cache",
    "init_cache",
    "make_generator",
    "place_rows",
    "reset_rows",
    "sample_tokens",
    "take_rows",
    "truncate_logits",
    "unstack_params",
]
