"""Log-probabilities and entropies of given tokens, without all logits at once."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Logits that are computed at once and wait for the backward pass, in elements: 1 GiB of float32.
_KEPT_ELEMENTS = 2**28
# Of more than those, or of chosen ones, a chunk at a time, 64 MiB, which is computed again there.
_CHUNK_ELEMENTS = 2**24
# Logits that a CPU takes statistics of at a time: few enough to stay in its caches.
_CACHED_ELEMENTS = 2**21

# (kernel, a pytree of float arrays, states [M, D]) -> logits [M, V] float32
Unembed = Callable[[Any, jax.Array], jax.Array]


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


def _platform_statistics(
    logits: jax.Array, targets: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`_statistics` in the way of the platform that the program is compiled for."""
    return lax.platform_dependent(
        logits, targets, temperature, cpu=_statistics_by_parts, default=_statistics
    )


@jax.custom_vjp
def _score(
    logits: jax.Array, targets: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of targets [M] and entropies [M]; `temperature` is [M] too."""
    return _score_forward(logits, targets, temperature)[0]


def _score_forward(logits, targets, temperature):
    log_probs, entropy, normaliser = _platform_statistics(logits, targets, temperature)
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _score_chunks(
    unembed: Unembed,
    chunk: int,
    kernel: Any,
    hidden: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
    count: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Scores the first `count` columns of [B, T], rounded up to chunks; those behind are 0.

    Args:
      unembed: see `score_tokens`.
      chunk: columns at a time; divides T.
      kernel: see `score_tokens`.
      hidden: [B, T, D].
      targets: [B, T] int32.
      temperature: [B].
      count: int32 scalar.

    Returns:
      log_probs and entropy, [B, T] float32.
    """
    arguments = (kernel, hidden, targets, temperature, count)
    return _score_chunks_forward(unembed, chunk, *arguments)[0]


def _columns(x: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    """Takes a chunk of the columns of [B, T, ...] as [B chunk, ...]."""
    part = lax.dynamic_slice_in_dim(x, index * chunk, chunk, axis=1)
    return part.reshape(x.shape[0] * chunk, *x.shape[2:])


def _set_columns(x: jax.Array, part: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    """Inverts `_columns`: writes [B chunk, ...] into [B, T, ...]."""
    part = part.reshape(x.shape[0], chunk, *x.shape[2:])
    return lax.dynamic_update_slice_in_dim(x, part, index * chunk, axis=1)


def _score_chunks_forward(unembed, chunk, kernel, hidden, targets, temperature, count):
    repeated = jnp.repeat(temperature, chunk)

    def step(index, done):
        logits = unembed(kernel, _columns(hidden, index, chunk))
        parts = _platform_statistics(logits, _columns(targets, index, chunk), repeated)
        return tuple(_set_columns(*pair, index, chunk) for pair in zip(done, parts, strict=True))

    blank = jnp.zeros(targets.shape, jnp.float32)
    log_probs, entropy, normaliser = lax.fori_loop(
        0, -(-count // chunk), step, (blank, blank, blank)
    )
    saved = (kernel, hidden, targets, temperature, count, normaliser, entropy)
    return (log_probs, entropy), saved


def _score_chunks_backward(unembed, chunk, saved, gradients):
    kernel, hidden, targets, temperature, count, normaliser, entropy = saved
    repeated = jnp.repeat(temperature, chunk)

    def step(index, done):
        kernel_slope, hidden_slope, temperature_slope = done
        columns = functools.partial(_columns, index=index, chunk=chunk)
        logits, pull = jax.vjp(unembed, kernel, columns(hidden))
        kept = (logits, columns(targets), repeated, columns(normaliser), columns(entropy))
        slope, _, by_temperature = _score_backward(kept, tuple(map(columns, gradients)))
        more, state_slope = pull(slope)
        return (
            jax.tree.map(lambda total, x: total + x.astype(jnp.float32), kernel_slope, more),
            _set_columns(hidden_slope, state_slope, index, chunk),
            temperature_slope + jnp.sum(by_temperature.reshape(-1, chunk), axis=1),
        )

    zeros = (
        # In float32, as a sum of many chunks.
        jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), kernel),
        jnp.zeros_like(hidden),
        jnp.zeros_like(temperature),
    )
    kernel_slope, hidden_slope, temperature_slope = lax.fori_loop(
        0, -(-count // chunk), step, zeros
    )
    kernel_slope = jax.tree.map(lambda slope, x: slope.astype(x.dtype), kernel_slope, kernel)
    return kernel_slope, hidden_slope, None, temperature_slope, None


_score_chunks.defvjp(_score_chunks_forward, _score_chunks_backward)


def score_tokens(
    unembed: Unembed,
    kernel: Any,
    hidden: jax.Array,
    tokens: jax.Array,
    temperature: jax.Array | float,
    *,
    vocab_size: int,
    mask: jax.Array | None = None,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Scores each token under the softmax of its predecessor's logits over the temperature.

    Args:
      unembed: maps the kernel and hidden states [M, D] to logits [M, V] float32.
      kernel: pytree of float arrays, all that the logits depend on beside the states.
      hidden: [B, T, D], the states after each token.
      tokens: [B, T] int32.
      temperature: positive scalar, or [B] float32 for one a row.
      vocab_size: V, from which the chunk follows.
      mask: [B, T] bool, the tokens to score; by default all. Where logits are worked off in
          chunks, there are only as many as the row with the most tokens to score needs; as
          they are computed twice, that pays where it has less than about three quarters of T.
      chunk: positions at a time, whose logits the backward pass computes again unless they are
          all; by default all where their logits take at most 1 GiB, or 64 MiB with a mask, else
          as many as keep the logits under 64 MiB.

    Returns:
      log_probs [B, T] and entropy [B, T] float32, in nats; column 0, which nothing predicts,
      is 0 in both, and so is what the mask leaves out. Reverse-mode derivatives only.

    Raises:
      ValueError: the mask has another shape than the tokens.
    """
    rows, length = tokens.shape
    if mask is not None:
        if mask.shape != tokens.shape:
            raise ValueError(f"mask must be [B, T] = {tokens.shape} like tokens, got {mask.shape}")
        mask = jnp.asarray(mask, bool)
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (rows,))
    # The state after token t predicts token t + 1; the last predicts nothing.
    targets = jnp.roll(tokens, -1, axis=1)
    if chunk is None:
        kept = _KEPT_ELEMENTS if mask is None else _CHUNK_ELEMENTS
        all_fit = rows * length * vocab_size <= kept
        chunk = length if all_fit else max(1, _CHUNK_ELEMENTS // (rows * vocab_size))
    if chunk >= length:
        logits = unembed(kernel, hidden.reshape(rows * length, -1))
        flat = _score(logits, targets.reshape(-1), jnp.repeat(temperature, length))
        scores = [x.reshape(rows, length) for x in flat]
    else:
        scores = _score_in_chunks(unembed, kernel, hidden, targets, temperature, mask, chunk)
    log_probs, entropy = (jnp.pad(x[:, : length - 1], ((0, 0), (1, 0))) for x in scores)
    if mask is None:
        return log_probs, entropy
    return jnp.where(mask, log_probs, 0.0), jnp.where(mask, entropy, 0.0)


def _score_in_chunks(
    unembed: Unembed,
    kernel: Any,
    hidden: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
    mask: jax.Array | None,
    chunk: int,
) -> list[jax.Array]:
    """Scores [B, T] a chunk at a time, what the mask wants in front of what it does not."""
    length = targets.shape[1]
    # Evenly long, so that as little as possible is padding.
    chunk = -(-length // -(-length // chunk))
    order = None
    count = jnp.int32(length)
    take = functools.partial(jnp.take_along_axis, axis=1, mode="promise_in_bounds")
    if mask is not None:
        wanted = jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))
        order = jnp.argsort(~wanted, axis=1, stable=True)
        hidden, targets = take(hidden, order[:, :, None]), take(targets, order)
        count = jnp.max(jnp.sum(wanted, axis=1, dtype=jnp.int32))
    padding = ((0, 0), (0, -length % chunk))
    hidden, targets = jnp.pad(hidden, (*padding, (0, 0))), jnp.pad(targets, padding)
    padded = _score_chunks(unembed, chunk, kernel, hidden, targets, temperature, count)
    scores = [x[:, :length] for x in padded]
    if order is None:
        return scores
    place = jnp.argsort(order, axis=1)
    return [take(x, place) for x in scores]
