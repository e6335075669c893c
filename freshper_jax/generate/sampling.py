"""Drawing tokens, with their log-probabilities under the very distribution drawn from."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Tokens in a block of a large vocabulary.
_BLOCK = 128


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn; each value a scalar or one a row, [B], and traced.

    temperature: divides the logits; 0 takes the most likely token
    top_k: keeps the k most likely tokens; 0 is off
    top_p: of those, keeps the fewest whose probability together reaches top_p; 1 is off
    min_p: of those, keeps the ones at least min_p as likely as the most likely; 0 is off

    A token exactly as likely as the last one kept is kept too.
    """

    temperature: Any = 1.0  # [] or [B] float32
    top_k: Any = 0  # [] or [B] int32
    top_p: Any = 1.0  # [] or [B] float32
    min_p: Any = 0.0  # [] or [B] float32

    def validate(self) -> None:
        """Raises ValueError on a value out of range.

        JAX arrays are taken as they are: reading them would wait for the device.
        """
        bounds = {
            "temperature": (0.0, math.inf, "non-negative and finite"),
            "top_k": (0, math.inf, "non-negative"),
            "top_p": (0.0, 1.0, "in (0, 1]"),
            "min_p": (0.0, 1.0, "in [0, 1]"),
        }
        for name, (low, high, words) in bounds.items():
            if isinstance(getattr(self, name), jax.Array):
                continue
            value = np.asarray(getattr(self, name))
            right = np.isfinite(value) & (value >= low) & (value <= high)
            if name == "top_p":
                right &= value > 0
            if not right.all():
                raise ValueError(f"{name} must be {words}, got {value[~right].ravel()[0]}")

    def broadcast(self, rows: int) -> "SamplingParams":
        """Returns the parameters with one value a row, [B], in the documented dtypes."""

        def spread(value: Any, dtype: type) -> Any:
            # On the host where it comes from there, which spares a dispatch.
            library: Any = jnp if isinstance(value, jax.Array) else np
            return library.broadcast_to(library.asarray(value).astype(dtype), (rows,))

        return SamplingParams(
            temperature=spread(self.temperature, np.float32),
            top_k=spread(self.top_k, np.int32),
            top_p=spread(self.top_p, np.float32),
            min_p=spread(self.min_p, np.float32),
        )


def truncate_logits(logits: jax.Array, params: SamplingParams) -> jax.Array:
    """Sets to -inf the logits [B, V] that top-k, top-p and min-p leave out.

    `params` has one value a row, and the logits are divided by the temperature already.

    References: Holtzman et al. 2019, https://arxiv.org/abs/1904.09751 (top-p);
    Nguyen et al. 2024, https://arxiv.org/abs/2407.01082 (min-p).
    """
    vocab_size = logits.shape[-1]
    ordered = jnp.sort(logits, axis=-1, descending=True)
    probabilities = jax.nn.softmax(ordered, axis=-1)
    reached = jnp.cumsum(probabilities, axis=-1)
    # Each rule keeps a prefix of the descending order, so that only its size matters.
    top_k = jnp.where(params.top_k > 0, jnp.minimum(params.top_k, vocab_size), vocab_size)
    mass = jnp.take_along_axis(reached, top_k[:, None] - 1, axis=-1)
    before = reached - probabilities
    within_p = (before < params.top_p[:, None] * mass) | (params.top_p >= 1.0)[:, None]
    within_min = probabilities >= params.min_p[:, None] * probabilities[:, :1]
    kept = jnp.minimum(top_k, jnp.sum(within_p & within_min, axis=-1, dtype=jnp.int32))
    threshold = jnp.take_along_axis(ordered, jnp.maximum(kept, 1)[:, None] - 1, axis=-1)
    return jnp.where(logits >= threshold, logits, -jnp.inf)


def sample_tokens(
    logits: jax.Array, keys: jax.Array, params: SamplingParams
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws one token a row, by the Gumbel-max rule.

    A large vocabulary is drawn from in two stages, a block of tokens by what it weighs and then
    one of its tokens: the same distribution, for noise of a few hundred values and not of V.

    Args:
      logits: [B, V] float32.
      keys: [B] typed PRNG keys, one a row; consumed.
      params: the temperature and truncation.

    Returns:
      tokens [B] int32; log_probs [B] float32 under the distribution drawn from, which at
      temperature 0 is certain of its token; and log_probs_t1 [B] float32 under the plain
      softmax of the logits, which the behaviour of no option changes.
    """
    params = jax.tree.map(jnp.asarray, params.broadcast(logits.shape[0]))
    greedy = params.temperature <= 0.0
    scaled = logits / jnp.where(greedy, 1.0, params.temperature)[:, None]
    truncated = jnp.any((params.top_k > 0) | (params.top_p < 1.0) | (params.min_p > 0.0))
    scaled = lax.cond(truncated, lambda: truncate_logits(scaled, params), lambda: scaled)
    blocks = _split(scaled)
    best, masses, total = _weigh(blocks)
    if blocks.shape[1] == 1:
        block = jnp.zeros(greedy.shape, jnp.int32)
    else:
        block_keys, keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        block = _noisy_argmax(jnp.where(greedy[:, None], best, masses), block_keys, greedy)
    members = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    place = _noisy_argmax(members, keys, greedy)
    tokens = block * blocks.shape[2] + place

    def log_prob(values: jax.Array, total: jax.Array) -> jax.Array:
        return jnp.take_along_axis(values, tokens[:, None], axis=-1)[:, 0] - total

    log_probs = jnp.where(greedy, 0.0, log_prob(scaled, total))
    return tokens, log_probs, log_prob(logits, _weigh(_split(logits))[2])


def _split(values: jax.Array) -> jax.Array:
    """Reshapes values [B, V] to blocks [B, n, size], the last one filled up with -inf."""
    rows, vocab_size = values.shape
    size = min(_BLOCK, vocab_size)
    count = -(-vocab_size // size)
    missing = ((0, 0), (0, count * size - vocab_size))
    return jnp.pad(values, missing, constant_values=-jnp.inf).reshape(rows, count, size)


def _weigh(blocks: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns each block's largest value and logsumexp, both [B, n], and that of all, [B]."""
    best = jnp.max(blocks, axis=-1)
    # One maximum serves a whole row: what it lets vanish weighs less than 1e-38 of the row.
    highest = jnp.max(best, axis=-1)
    sums = jnp.sum(jnp.exp(blocks - highest[:, None, None]), axis=-1)
    return best, highest[:, None] + jnp.log(sums), highest + jnp.log(jnp.sum(sums, axis=-1))


def _noisy_argmax(values: jax.Array, keys: jax.Array, greedy: jax.Array) -> jax.Array:
    """Draws from the softmax of values [B, n]; a greedy row takes its largest."""
    size = values.shape[-1]
    noise = jax.vmap(lambda key: jax.random.gumbel(key, (size,), jnp.float32))(keys)
    return jnp.argmax(values + jnp.where(greedy[:, None], 0.0, noise), axis=-1).astype(jnp.int32)
