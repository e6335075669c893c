"""Effective priorities in the log domain: base, age and exponent meet only here."""

import jax
import jax.numpy as jnp
from jax.experimental import checkify

__all__ = ["log_of_base", "log_priorities"]

# The smallest normal float32: below it, accelerators round to zero.
SMALLEST_BASE = float(jnp.finfo(jnp.float32).tiny)
_LARGEST_DECAY = float(jnp.finfo(jnp.float32).max)


def log_of_base(base: jax.Array, fallback: float) -> tuple[jax.Array, jax.Array]:
    """Takes logarithms of base priorities, with a finite floor and bad values replaced.

    A value from 0 to 1.2e-38 counts as 1.2e-38, the smallest normal float32. Under
    `checkify.checkify` a bad value is an error.

    Args:
      base: `[B]` float base priorities.
      fallback: the base priority that stands in for NaN, infinite and negative ones.

    Returns:
      `[B]` float32 finite logarithms, and `[B]` bool, true where a value was replaced.
    """
    base = base.astype(jnp.float32)
    bad = ~(jnp.isfinite(base) & (base >= 0))
    checkify.debug_check(
        ~jnp.any(bad), "base_priority holds a NaN, infinite or negative value: {base}", base=base
    )
    base = jnp.where(bad, jnp.float32(fallback), base)
    return jnp.log(jnp.maximum(base, jnp.float32(SMALLEST_BASE))), bad


def log_priorities(
    log_base: jax.Array, ages: jax.Array, filled: jax.Array, alpha: jax.Array, tau: jax.Array
) -> jax.Array:
    """Computes log (base_i exp(-age_i / tau))^alpha, up to a constant that all rows share.

    Ages count from the youngest row: that is the shared constant, and it keeps float32 exact
    for any clock, since two rows compare by the difference of two integers.

    Args:
      log_base: `[C]` float32 logarithms of base priorities.
      ages: `[C]` int32, clock minus birth.
      filled: `[C]` bool, true where a row is stored.
      alpha: float32 scalar >= 0; 0 makes all rows equal.
      tau: float32 scalar > 0, in units of the clock; infinity switches ageing off.

    Returns:
      `[C]` float32, -inf where no row is stored.

    Source: Freshness-Aware PER, arXiv 2604.16918: p_i = base_i exp(-(t - t_i) / tau).
    """
    youngest = jnp.min(jnp.where(filled, ages, jnp.iinfo(jnp.int32).max))
    lag = jnp.where(filled, ages - youngest, 0).astype(jnp.float32)
    # A finite decay keeps alpha = 0 from multiplying infinity.
    decay = jnp.minimum(lag / tau, jnp.float32(_LARGEST_DECAY))
    return jnp.where(filled, alpha * (log_base - decay), -jnp.inf)
