"""The decode loop: sample, append, until every row has stopped."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from freshper_jax.generate.cache import KVCache
from freshper_jax.generate.extend import UnstackedParams, append, unstack_params
from freshper_jax.generate.sampling import SamplingParams, sample_tokens
from freshper_jax.models import LanguageModel, Params

# Why a row stopped.
IDLE = 0  # it had no budget
STOP = 1  # it drew a stop id
BUDGET = 2  # it drew as many tokens as it might
STOP_STRING = 3  # its text came to contain a stop string: see `decode_rounds`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Generation:
    """What one call of `decode` drew; entries past a row's count are 0.

    tokens: [B, max_new] int32, the stop id included
    counts: [B] int32, tokens drawn
    log_probs: [B, max_new] float32, of each token under the distribution drawn from
    log_probs_t1: [B, max_new] float32, under the model at temperature 1, not truncated
    stop_reason: [B] int8, IDLE, STOP, BUDGET or STOP_STRING
    """

    tokens: jax.Array  # [B, max_new]
    counts: jax.Array  # [B]
    log_probs: jax.Array  # [B, max_new]
    log_probs_t1: jax.Array  # [B, max_new]
    stop_reason: jax.Array  # [B]


class _Loop(NamedTuple):
    """What the loop carries."""

    step: jax.Array  # [] int32
    cache: KVCache
    logits: jax.Array  # [B, V]
    drawn: Generation
    active: jax.Array  # [B] bool


def decode(
    model: LanguageModel,
    params: Params | UnstackedParams,
    cache: KVCache,
    logits: jax.Array,
    key: jax.Array,
    row_seeds: jax.Array,
    sampling: SamplingParams,
    stop_ids: jax.Array,
    budgets: jax.Array,
    *,
    max_new: int,
) -> tuple[KVCache, jax.Array, Generation]:
    """Draws tokens for every row until a stop id or the end of its budget.

    A token's key is fold_in(fold_in(key, row_seed), position): what a row draws depends on
    neither its neighbours, nor its slot, nor the order in which slots were refilled.

    Args:
      model: from `make_model`.
      params: of the model, or what `unstack_params` made of them.
      cache: with B rows.
      logits: [B, V] float32, after each row's last token, from `extend` or `decode`.
      key: one typed PRNG key for all rows.
      row_seeds: [B] int32 or uint32, one for each episode.
      sampling: temperature and truncation.
      stop_ids: [n] int32, tokens that end a row.
      budgets: [B] int32, tokens a row may draw, at most max_new and the room in its cache;
        0 leaves the row untouched.
      max_new: static bound on the tokens of a row.

    Returns:
      The cache, which holds every drawn token, stop ids included; the logits after each
      row's last token, an idle row's as they came; and the Generation.

    Raises ValueError where max_new is below 1 or the shapes do not fit together.
    """
    if max_new < 1:
        raise ValueError(f"max_new must be at least 1, got {max_new}")
    rows = cache.lengths.shape[0]
    for name, value in (("logits", logits), ("row_seeds", row_seeds), ("budgets", budgets)):
        if value.shape[:1] != (rows,):
            raise ValueError(f"{name} must have the cache's {rows} rows, got {value.shape}")
    # Out of the loop: slicing stacked layers at every token costs more than using them.
    unstacked = unstack_params(model, params)
    sampling = sampling.broadcast(rows)
    row_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, row_seeds.astype(jnp.uint32))
    budgets = jnp.minimum(jnp.minimum(budgets, max_new), cache.slots - cache.lengths)

    def proceed(loop: _Loop) -> jax.Array:
        return jnp.any(loop.active)

    def step(loop: _Loop) -> _Loop:
        active, drawn = loop.active, loop.drawn
        keys = jax.vmap(jax.random.fold_in)(row_keys, loop.cache.lengths.astype(jnp.uint32))
        tokens, log_probs, log_probs_t1 = sample_tokens(loop.logits, keys, sampling)
        cache, logits = append(unstacked, loop.cache, tokens[:, None], active.astype(jnp.int32))
        stopped = active & jnp.any(tokens[:, None] == stop_ids[None, :], axis=1)
        counts = drawn.counts + active.astype(jnp.int32)

        # Rows still active have all drawn `step` tokens: one column serves them all.
        def record(column: jax.Array, value: jax.Array) -> jax.Array:
            value = jnp.where(active, value, jnp.zeros_like(value))
            return lax.dynamic_update_slice_in_dim(column, value[:, None], loop.step, axis=1)

        return _Loop(
            step=loop.step + 1,
            cache=cache,
            logits=jnp.where(active[:, None], logits, loop.logits),
            drawn=Generation(
                tokens=record(drawn.tokens, tokens),
                counts=counts,
                log_probs=record(drawn.log_probs, log_probs),
                log_probs_t1=record(drawn.log_probs_t1, log_probs_t1),
                stop_reason=jnp.where(stopped, jnp.int8(STOP), drawn.stop_reason),
            ),
            active=active & ~stopped & (counts < budgets),
        )

    active = budgets > 0
    empty = Generation(
        tokens=jnp.zeros((rows, max_new), jnp.int32),
        counts=jnp.zeros(rows, jnp.int32),
        log_probs=jnp.zeros((rows, max_new), jnp.float32),
        log_probs_t1=jnp.zeros((rows, max_new), jnp.float32),
        stop_reason=jnp.where(active, jnp.int8(BUDGET), jnp.int8(IDLE)),
    )
    loop = lax.while_loop(
        proceed, step, _Loop(jnp.zeros((), jnp.int32), cache, logits, empty, active)
    )
    return loop.cache, loop.logits, loop.drawn
