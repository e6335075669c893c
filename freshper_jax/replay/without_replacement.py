"""Draws of several rows at once, none of them twice, and the chance that each had."""

import jax
import jax.numpy as jnp

__all__ = ["draw_once_each", "log_inclusion", "log_waits"]

_LARGEST_LOG = 80.0  # exp of it is a float32


def draw_once_each(
    key: jax.Array, log_masses: jax.Array, draws: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws rows one after another, each with a chance in proportion to its mass among the rest.

    Every row waits an exponential time, at a rate that is its mass; the first ones are drawn.

    Args:
      key: typed PRNG key; it is consumed.
      log_masses: `[N]` float32, -inf for no row.
      draws: B, at most N.

    Returns:
      `[B]` int32 rows in the order drawn; `[B]` bool, false for a place that no row could fill;
      and a float32 scalar, the logarithm of the time of the first row left out, infinite when
      none was.

    Source: Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006.
    """
    rows = log_masses.shape[0]
    later, first = jax.lax.top_k(-log_waits(key, log_masses), min(draws + 1, rows))
    log_time = -later[draws] if draws < rows else jnp.float32(jnp.inf)
    return first[:draws].astype(jnp.int32), later[:draws] > -jnp.inf, log_time


def log_waits(key: jax.Array, log_masses: jax.Array) -> jax.Array:
    """Draws how long each row waits: an exponential time, at a rate that is its mass.

    Args:
      key: typed PRNG key; it is consumed.
      log_masses: `[N]` float32, -inf for no row.

    Returns:
      `[N]` float32 logarithms of the times, infinite for no row.
    """
    # Times near 0 decide about rare rows: two words give them a resolution of 2^-48.
    words = (jax.random.bits(key, (2, log_masses.shape[0]), jnp.uint32) >> 8).astype(jnp.float32)
    quantile = (words[0] + (words[1] + 0.5) * jnp.float32(2.0**-24)) * jnp.float32(2.0**-24)
    waits = jnp.log(-jnp.log1p(-jnp.minimum(quantile, jnp.float32(1 - 2.0**-24))))
    return jnp.where(log_masses > -jnp.inf, waits - log_masses, jnp.inf)


def log_inclusion(log_masses: jax.Array, log_time: jax.Array) -> jax.Array:
    """Computes the chance that a row was in the batch, given the first time left out.

    Given that time, rows were drawn independently, each with a chance of 1 - exp(-mass * time).
    That chance, and not the mass, is what an importance weight has to undo: the sum over the
    batch of f_i / chance_i has the mean of the sum of f_i over all rows.

    Args:
      log_masses: `[...]` float32, finite.
      log_time: float32 scalar, as `draw_once_each` returned it.

    Returns:
      `[...]` float32 logarithms of the chances, at most 0.

    Source: Duffield, Lund and Thorup, Priority sampling, 2007; for exponential times Kool, van
    Hoof and Welling, Estimating gradients for discrete random variables by sampling without
    replacement, ICLR 2020.
    """
    log_rate = jnp.minimum(log_masses + log_time, _LARGEST_LOG)
    chance = -jnp.expm1(-jnp.exp(jnp.maximum(log_rate, -12.0)))
    # Below e^-12, 1 - exp(-x) is x to float32, also where x itself is not one.
    return jnp.where(log_rate < -12.0, log_rate, jnp.log(chance))
