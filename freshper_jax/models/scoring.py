"""Log-probabilities and entropies of given tokens, without all logits at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

# Logits that are computed at once and wait for the backward pass, in elements: 1 GiB of float32.
_KEPT_ELEMENTS = 2**28
# Of more than those a chunk at a time, 64 MiB, which is computed again there.
_CHUNK_ELEMENTS = 2**24
# Logits that a CPU takes statistics of at a time: few enough to stay in its caches.
_CACHED_ELEMENTS = 2**21
_STATISTICS = "token statistics"


def _chosen(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Marks the target of each row of [M, V]; compared, as V may lie across devices."""
    return lax.broadcasted_iota(jnp.int32, (1, logits.shape[-1]), 1) == targets[:, None]


def _statistics(
    logits: jax.Array, targets: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-probability, entropy and normaliser [M] under softmax(logits [M, V] / temperature)."""
    logits /= temperature[:, None]
    highest = jnp.max(logits, axis=-1, keepdims=True)
    above = logits - highest
    weights = jnp.exp(above)
    total = jnp.sum(weights, axis=-1)
    log_total = jnp.log(total)
    log_probs = jnp.sum(jnp.where(_chosen(logits, targets), above, 0.0), axis=-1) - log_total
    entropy = log_total - jnp.sum(weights * above, axis=-1) / total
    return log_probs, entropy, highest[:, 0] + log_total


def _statistics_by_parts(
    logits: jax.Array, targets: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`_statistics` of a few rows at a time, as a CPU writes each step of them to memory."""
    rows, vocab_size = logits.shape
    size = max(1, _CACHED_ELEMENTS // vocab_size)
    if size >= rows:
        return _statistics(logits, targets, temperature)

    def step(index: jax.Array, done: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        start = jnp.minimum(index * size, rows - size)  # The last part may overlap.
        part = (lax.dynamic_slice_in_dim(x, start, size) for x in (logits, targets, temperature))
        return jax.tree.map(
            lambda whole, new: lax.dynamic_update_slice_in_dim(whole, new, start, axis=0),
            done,
            _statistics(*part),
        )

    blank = jnp.zeros(rows, jnp.float32)
    return lax.fori_loop(0, -(-rows // size), step, (blank, blank, blank))


@jax.custom_vjp
def _score(
    logits: jax.Array, targets: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of targets [M] and entropies [M]; `temperature` is [M] too."""
    return _score_forward(logits, targets, temperature)[0]


def _score_forward(logits, targets, temperature):
    statistics = lax.platform_dependent(
        logits, targets, temperature, cpu=_statistics_by_parts, default=_statistics
    )
    # Named, so that a backward pass that recomputes the logits need not sum over them again.
    log_probs, entropy, normaliser = (checkpoint_name(x, _STATISTICS) for x in statistics)
    return (log_probs, entropy), (logits, targets, temperature, normaliser, entropy)


def _score_backward(saved, gradients):
    """The slopes of both in closed form, onehot - p and -p (log p + H): one pass over logits."""
    logits, targets, temperature, normaliser, entropy = saved
    first, second = (gradient[:, None] for gradient in gradients)
    scaled = logits / temperature[:, None]
    log_probs = scaled - normaliser[:, None]
    pull = first + second * (log_probs + entropy[:, None])
    slope = jnp.where(_chosen(logits, targets), first, 0.0) - jnp.exp(log_probs) * pull
    return slope / temperature[:, None], None, -jnp.sum(slope * scaled, axis=-1) / temperature


_score.defvjp(_score_forward, _score_backward)


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

    Args:
      unembed: maps hidden states [..., D] to logits [..., V] float32.
      hidden: [B, T, D], the states after each token.
      tokens: [B, T] int32.
      temperature: positive scalar, or [B] float32 for one a row.
      vocab_size: V, from which the chunk follows.
      chunk: positions at a time, whose logits the backward pass computes again unless they are
          all; by default all where their logits take at most 1 GiB, else as many as keep the
          logits under 64 MiB.

    Returns:
      log_probs [B, T] and entropy [B, T] float32, in nats; column 0, which nothing predicts,
      is 0 in both. Reverse-mode derivatives only.
    """
    rows, length = tokens.shape
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (rows,))
    # The state after token t predicts token t + 1; the last predicts nothing.
    targets = jnp.roll(tokens, -1, axis=1)
    if chunk is None and rows * length * vocab_size <= _KEPT_ELEMENTS:
        chunk = length
    elif chunk is None:
        chunk = max(1, _CHUNK_ELEMENTS // (rows * vocab_size))
    count = -(-length // chunk)
    # Evenly long, so that as little as possible is padding.
    chunk = -(-length // count)

    def score_chunk(part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        states, target = part
        logits = unembed(states.reshape(rows * chunk, -1))
        scores = _score(logits, target.reshape(rows * chunk), jnp.repeat(temperature, chunk))
        return jax.tree.map(lambda x: x.reshape(rows, chunk), scores)

    if count == 1:
        scores = score_chunk((hidden, targets))
    else:

        def split(x: jax.Array) -> jax.Array:
            padding = ((0, 0), (0, count * chunk - length)) + ((0, 0),) * (x.ndim - 2)
            x = jnp.pad(x, padding).reshape(rows, count, chunk, *x.shape[2:])
            return jnp.moveaxis(x, 1, 0)

        policy = jax.checkpoint_policies.save_only_these_names(_STATISTICS)
        recomputed = jax.checkpoint(score_chunk, policy=policy)
        scores = lax.map(recomputed, (split(hidden), split(targets)))
        scores = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, count * chunk), scores)
    log_probs, entropy = (jnp.pad(x[:, : length - 1], ((0, 0), (1, 0))) for x in scores)
    return log_probs, entropy
