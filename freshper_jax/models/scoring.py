"""Log-probabilities and entropies of given tokens, without all logits at once."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

# Logits that are computed at once and wait for the backward pass, in elements: 1 GiB of float32.
_KEPT_ELEMENTS = 2**28
# Of more than those, or of chosen ones, a chunk at a time, 64 MiB, which is computed again there.
_CHUNK_ELEMENTS = 2**24
# Logits that a CPU takes statistics of at a time: few enough to stay in its caches.
_CACHED_ELEMENTS = 2**21

# Logits [M, V] of states [M, D] and of what else they depend on.
Unembed = Callable[..., jax.Array]


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
    consts: list[jax.Array],
    hidden: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
    count: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Scores the first `count` columns of [B, T], rounded up to chunks; those behind are 0.

    Args:
      unembed: maps states [M, D] and `consts` to logits [M, V] float32.
      chunk: columns at a time; divides T.
      consts: arrays that `unembed` has gradients of.
      hidden: [B, T, D].
      targets: [B, T] int32.
      temperature: [B].
      count: int32 scalar.

    Returns:
      log_probs and entropy, [B, T] float32.
    """
    arguments = (consts, hidden, targets, temperature, count)
    return _score_chunks_forward(unembed, chunk, *arguments)[0]


def _columns(x: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    """Takes a chunk of the columns of [B, T, ...] as [B chunk, ...]."""
    part = lax.dynamic_slice_in_dim(x, index * chunk, chunk, axis=1)
    return part.reshape(x.shape[0] * chunk, *x.shape[2:])


def _set_columns(x: jax.Array, part: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    """Inverts `_columns`: writes [B chunk, ...] into [B, T, ...]."""
    part = part.reshape(x.shape[0], chunk, *x.shape[2:])
    return lax.dynamic_update_slice_in_dim(x, part, index * chunk, axis=1)


def _score_chunks_forward(unembed, chunk, consts, hidden, targets, temperature, count):
    repeated = jnp.repeat(temperature, chunk)

    def step(index, done):
        logits = unembed(_columns(hidden, index, chunk), *consts)
        parts = _platform_statistics(logits, _columns(targets, index, chunk), repeated)
        return tuple(_set_columns(*pair, index, chunk) for pair in zip(done, parts, strict=True))

    blank = jnp.zeros(targets.shape, jnp.float32)
    log_probs, entropy, normaliser = lax.fori_loop(
        0, -(-count // chunk), step, (blank, blank, blank)
    )
    saved = (consts, hidden, targets, temperature, count, normaliser, entropy)
    return (log_probs, entropy), saved


def _score_chunks_backward(unembed, chunk, saved, gradients):
    consts, hidden, targets, temperature, count, normaliser, entropy = saved
    repeated = jnp.repeat(temperature, chunk)

    def step(index, done):
        const_slopes, hidden_slope, temperature_slope = done
        columns = functools.partial(_columns, index=index, chunk=chunk)
        logits, pull = jax.vjp(unembed, columns(hidden), *consts)
        kept = (logits, columns(targets), repeated, columns(normaliser), columns(entropy))
        slope, _, by_temperature = _score_backward(kept, tuple(map(columns, gradients)))
        state_slope, *more = pull(slope)
        return (
            [total + part for total, part in zip(const_slopes, more, strict=True)],
            _set_columns(hidden_slope, state_slope, index, chunk),
            temperature_slope + jnp.sum(by_temperature.reshape(-1, chunk), axis=1),
        )

    zeros = (
        [jnp.zeros_like(x) for x in consts],
        jnp.zeros_like(hidden),
        jnp.zeros_like(temperature),
    )
    const_slopes, hidden_slope, temperature_slope = lax.fori_loop(
        0, -(-count // chunk), step, zeros
    )
    return const_slopes, hidden_slope, None, temperature_slope, None


_score_chunks.defvjp(_score_chunks_forward, _score_chunks_backward)


def score_tokens(
    unembed: Callable[[jax.Array], jax.Array],
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
      unembed: maps hidden states [..., D] to logits [..., V] float32.
      hidden: [B, T, D], the states after each token.
      tokens: [B, T] int32.
      temperature: positive scalar, or [B] float32 for one a row.
      vocab_size: V, from which the chunk follows.
      mask: [B, T] bool, the tokens to score; by default all. Where logits are worked off in
          chunks, there are only as many as the row with the most tokens to score needs.
      chunk: positions at a time, whose logits the backward pass computes again unless they are
          all; by default all where their logits take at most 1 GiB, or 64 MiB with a mask, else
          as many as keep the logits under 64 MiB.

    Returns:
      log_probs [B, T] and entropy [B, T] float32, in nats; column 0, which nothing predicts,
      is 0 in both, and so is what the mask leaves out. Reverse-mode derivatives only.
    """
    rows, length = tokens.shape
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (rows,))
    # The state after token t predicts token t + 1; the last predicts nothing.
    targets = jnp.roll(tokens, -1, axis=1)
    if chunk is None:
        kept = _KEPT_ELEMENTS if mask is None else _CHUNK_ELEMENTS
        all_fit = rows * length * vocab_size <= kept
        chunk = length if all_fit else max(1, _CHUNK_ELEMENTS // (rows * vocab_size))
    if chunk >= length:
        logits = unembed(hidden.reshape(rows * length, -1))
        flat = _score(logits, targets.reshape(-1), jnp.repeat(temperature, length))
        scores = [x.reshape(rows, length) for x in flat]
    else:
        scores = _score_in_chunks(unembed, hidden, targets, temperature, mask, chunk)
    log_probs, entropy = (jnp.pad(x[:, : length - 1], ((0, 0), (1, 0))) for x in scores)
    if mask is None:
        return log_probs, entropy
    return jnp.where(mask, log_probs, 0.0), jnp.where(mask, entropy, 0.0)


def _score_in_chunks(
    unembed: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
    mask: jax.Array | None,
    chunk: int,
) -> list[jax.Array]:
    """Scores [B, T] a chunk at a time, what the mask wants in front of what it does not."""
    rows, length = targets.shape
    order = None
    count = jnp.int32(length)
    if mask is None:
        # Evenly long, so that as little as possible is padding.
        chunk = -(-length // -(-length // chunk))
    else:
        wanted = jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))
        order = jnp.argsort(~wanted, axis=1, stable=True)
        hidden = jnp.take_along_axis(hidden, order[:, :, None], axis=1)
        targets = jnp.take_along_axis(targets, order, axis=1)
        count = jnp.max(jnp.sum(wanted, axis=1, dtype=jnp.int32))
    padding = ((0, 0), (0, -length % chunk))
    hidden, targets = jnp.pad(hidden, (*padding, (0, 0))), jnp.pad(targets, padding)
    states = jnp.zeros((rows * chunk, hidden.shape[-1]), hidden.dtype)
    # A custom derivative needs what `unembed` closes over as arguments.
    converted, consts = jax.closure_convert(unembed, states)
    padded = _score_chunks(converted, chunk, consts, hidden, targets, temperature, count)
    scores = [x[:, :length] for x in padded]
    if order is None:
        return scores
    place = jnp.argsort(order, axis=1)
    return [jnp.take_along_axis(x, place, axis=1) for x in scores]
