"""Log-probabilities and entropies of given tokens, without all logits at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

# Logits in flight at most, in elements: 64 MiB of float32.
_CHUNK_ELEMENTS = 2**24


def _score(
    unembed: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Scores targets [B, T] from the hidden states before them [B, T, D]."""
    logits = unembed(hidden) / temperature[:, None, None]
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    # A comparison and a sum: its gradient is a product, where a gather's would be a scatter.
    chosen = lax.broadcasted_iota(jnp.int32, (1, 1, logits.shape[-1]), 2) == targets[:, :, None]
    selected = jnp.sum(jnp.where(chosen, log_probs, 0.0), axis=-1)
    return selected, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


def score_tokens(
    unembed: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    tokens: jax.Array,
    temperature: jax.Array | float,
    *,
    vocab_size: int,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Scores each token under the softmax of its predecessor's logits over the temperature.

    Positions go in chunks whose logits are recomputed in the backward pass.

    Args:
      unembed: maps hidden states [..., D] to logits [..., V] float32.
      hidden: [B, T, D], the states after each token.
      tokens: [B, T] int32.
      temperature: positive scalar, or [B] float32 for one a row.
      vocab_size: V, from which the chunk follows.
      chunk: positions at a time; by default as many as keep the logits under 64 MiB.

    Returns:
      log_probs [B, T] and entropy [B, T] float32, in nats; column 0, which nothing predicts,
      is 0 in both.
    """
    rows, length = tokens.shape
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (rows,))
    steps = length - 1
    hidden, targets = hidden[:, :-1], tokens[:, 1:]
    if chunk is None:
        chunk = max(1, _CHUNK_ELEMENTS // (rows * vocab_size))
    if steps <= chunk:
        scores = _score(unembed, hidden, targets, temperature)
    else:
        count = -(-steps // chunk)
        padding = count * chunk - steps
        hidden = jnp.pad(hidden, ((0, 0), (0, padding), (0, 0)))
        targets = jnp.pad(targets, ((0, 0), (0, padding)))

        @jax.checkpoint
        def score_chunk(start: jax.Array) -> tuple[jax.Array, jax.Array]:
            part = lax.dynamic_slice_in_dim(hidden, start, chunk, axis=1)
            target = lax.dynamic_slice_in_dim(targets, start, chunk, axis=1)
            return _score(unembed, part, target, temperature)

        chunks = lax.map(score_chunk, chunk * jnp.arange(count))
        scores = jax.tree.map(
            lambda x: x.transpose(1, 0, 2).reshape(rows, count * chunk)[:, :steps], chunks
        )
    log_probs, entropy = (jnp.pad(x, ((0, 0), (1, 0))) for x in scores)
    return log_probs, entropy
