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
    """Scores targets [M] from the hidden states before them [M, D] at temperatures [M]."""
    logits = unembed(hidden) / temperature[:, None]
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    # A comparison and a sum: its gradient is a product, where a gather's would be a scatter.
    chosen = lax.broadcasted_iota(jnp.int32, (1, logits.shape[-1]), 1) == targets[:, None]
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
    # The state after token t predicts token t + 1; the last predicts nothing.
    targets = jnp.roll(tokens, -1, axis=1)
    if chunk is None:
        chunk = max(1, _CHUNK_ELEMENTS // (rows * vocab_size))
    chunk = min(chunk, length)

    def score_chunk(part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        states, target = part
        scores = _score(
            unembed,
            states.reshape(rows * chunk, -1),
            target.reshape(rows * chunk),
            jnp.repeat(temperature, chunk),
        )
        return jax.tree.map(lambda x: x.reshape(rows, chunk), scores)

    if chunk == length:
        scores = score_chunk((hidden, targets))
    else:
        count = -(-length // chunk)

        def split(x: jax.Array) -> jax.Array:
            padding = ((0, 0), (0, count * chunk - length)) + ((0, 0),) * (x.ndim - 2)
            x = jnp.pad(x, padding).reshape(rows, count, chunk, *x.shape[2:])
            return jnp.moveaxis(x, 1, 0)

        scores = lax.map(jax.checkpoint(score_chunk), (split(hidden), split(targets)))
        scores = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, count * chunk), scores)
    log_probs, entropy = (jnp.pad(x[:, : length - 1], ((0, 0), (1, 0))) for x in scores)
    return log_probs, entropy
