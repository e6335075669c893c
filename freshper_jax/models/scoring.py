"""Log-probabilities and entropies of given tokens, without all logits at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

# Logits in flight at most, in elements: 64 MiB of float32.
_CHUNK_ELEMENTS = 2**24
# Logits kept for the backward pass at most, 1 GiB of float32; more of them are recomputed.
_KEPT_ELEMENTS = 2**28
_STATISTICS = "token statistics"


def _chosen(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Marks the target of each row of [M, V]; compared, as a gather's gradient is a scatter."""
    return lax.broadcasted_iota(jnp.int32, (1, logits.shape[-1]), 1) == targets[:, None]


@jax.custom_vjp
def _score(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities [M] of targets [M] and entropies [M] under softmax(logits [M, V])."""
    return _score_forward(logits, targets)[0]


def _score_forward(logits, targets):
    highest = jnp.max(logits, axis=-1, keepdims=True)
    above = logits - highest
    weights = jnp.exp(above)
    total = jnp.sum(weights, axis=-1)
    log_total = jnp.log(total)
    log_probs = jnp.sum(jnp.where(_chosen(logits, targets), above, 0.0), axis=-1) - log_total
    entropy = log_total - jnp.sum(weights * above, axis=-1) / total
    # Named, so that a backward pass that recomputes the logits need not sum over them again.
    normaliser, log_probs, entropy = (
        checkpoint_name(x, _STATISTICS) for x in (highest[:, 0] + log_total, log_probs, entropy)
    )
    return (log_probs, entropy), (logits, targets, normaliser, entropy)


def _score_backward(saved, gradients):
    """The slopes of both in closed form, onehot - p and -p (log p + H): one pass over logits."""
    logits, targets, normaliser, entropy = saved
    first, second = (gradient[:, None] for gradient in gradients)
    log_probs = logits - normaliser[:, None]
    pull = first + second * (log_probs + entropy[:, None])
    return jnp.where(_chosen(logits, targets), first, 0.0) - jnp.exp(log_probs) * pull, None


_score.defvjp(_score_forward, _score_backward)


def score_tokens(
    unembed: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    tokens: jax.Array,
    temperature: jax.Array | float,
    *,
    vocab_size: int,
    chunk: int | None = None,
    keep_logits: bool | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Scores each token under the softmax of its predecessor's logits over the temperature.

    Positions go in chunks.

    Args:
      unembed: maps hidden states [..., D] to logits [..., V] float32.
      hidden: [B, T, D], the states after each token.
      tokens: [B, T] int32.
      temperature: positive scalar, or [B] float32 for one a row.
      vocab_size: V, from which the chunk follows.
      chunk: positions at a time; by default as many as keep the logits under 64 MiB.
      keep_logits: whether the logits of all chunks wait for the backward pass, or are computed
          again there; by default they wait where they take at most 1 GiB. A single chunk's
          always do.

    Returns:
      log_probs [B, T] and entropy [B, T] float32, in nats; column 0, which nothing predicts,
      is 0 in both. Reverse-mode derivatives only.
    """
    rows, length = tokens.shape
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (rows,))
    # The state after token t predicts token t + 1; the last predicts nothing.
    targets = jnp.roll(tokens, -1, axis=1)
    if chunk is None:
        chunk = max(1, _CHUNK_ELEMENTS // (rows * vocab_size))
    count = -(-length // chunk)
    # Evenly long, so that as little as possible is padding.
    chunk = -(-length // count)

    def score_chunk(part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        states, target = part
        logits = unembed(states.reshape(rows * chunk, -1))
        scores = _score(
            logits / jnp.repeat(temperature, chunk)[:, None], target.reshape(rows * chunk)
        )
        return jax.tree.map(lambda x: x.reshape(rows, chunk), scores)

    if count == 1:
        scores = score_chunk((hidden, targets))
    else:

        def split(x: jax.Array) -> jax.Array:
            padding = ((0, 0), (0, count * chunk - length)) + ((0, 0),) * (x.ndim - 2)
            x = jnp.pad(x, padding).reshape(rows, count, chunk, *x.shape[2:])
            return jnp.moveaxis(x, 1, 0)

        if keep_logits is None:
            keep_logits = rows * length * vocab_size <= _KEPT_ELEMENTS
        if not keep_logits:
            policy = jax.checkpoint_policies.save_only_these_names(_STATISTICS)
            score_chunk = jax.checkpoint(score_chunk, policy=policy)
        scores = lax.map(score_chunk, (split(hidden), split(targets)))
        scores = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, count * chunk), scores)
    log_probs, entropy = (jnp.pad(x[:, : length - 1], ((0, 0), (1, 0))) for x in scores)
    return log_probs, entropy
