"""Effective priorities in the log domain: base, age and exponent meet only here."""

import jax
import jax.numpy as jnp
from jax.experimental import checkify

__all__ = ["log_of_base", "log_priorities"]

# The smallest normal float32: below it, accelerators round to zero.
SMALLEST_BASE = float(jnp.finfo(jnp.float32).tiny)
_LARGEST_LAG = 1e30


def log_of_base(base: jax.Array, fallback: float, *, checked: bool) -> tuple[jax.Array, jax.Array]:
    """Takes logarithms of base priorities, with a finite floor and bad values replaced.

    A value from 0 to 1.2e-38 counts as 1.2e-38, the smallest normal float32.

    Args:
      base: `[B]` float base priorities.
      fallback: the base priority that stands in for NaN, infinite and negative ones.
      checked: whether a bad value is an error under `checkify.checkify`. The check takes
        a call off the fast path of `jit`, some 200 microseconds on CPU, so it is a choice.

    Returns:
      `[B]` float32 finite logarithms, and `[B]` bool, true where a value was replaced.
    """
    base = base.astype(jnp.float32)
    bad = ~(jnp.isfinite(base) & (base >= 0))
    if checked:
        checkify.debug_check(
            ~jnp.any(bad),
            "base_priority holds a NaN, infinite or negative value: {base}",
            base=base,
        )
    base = jnp.where(bad, jnp.float32(fallback), base)
    return jnp.log(jnp.maximum(base, jnp.float32(SMALLEST_BASE))), bad


def log_priorities(
    log_base: jax.Array, births: jax.Array, reference: jax.Array, alpha: jax.Array, tau: jax.Array
) -> jax.Array:
    """Computes log (base_i exp(-age_i / tau))^alpha, up to a constant that all rows share.

    Ages count from a reference, not from the clock: the clock cancels where priorities are
    compared, and integers near each other keep float32 exact however old all rows are.

    Args:
      log_base: `[C]` float32 logarithms of base priorities, -inf where no row is stored.
      births: `[C]` int32 clocks.
      reference: int32 scalar, the birth of some recent row.
      alpha: float32 scalar >= 0; 0 makes all rows equal.
      tau: float32 scalar > 0, in units of the clock; infinity switches ageing off.

    Returns:
      `[C]` float32, finite for a row, -inf for none.

    Source: Freshness-Aware PER, arXiv 2604.16918: p_i = base_i exp(-(t - t_i) / tau).
    """
    lag = (reference - births).astype(jnp.float32) / tau
    # A finite lag keeps alpha = 0 from multiplying infinity.
    powers = alpha * (log_base - jnp.clip(lag, -_LARGEST_LAG, _LARGEST_LAG))
    return jnp.where(log_base > -jnp.inf, powers, -jnp.inf)
