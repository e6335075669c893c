"""Effective priorities in the log domain: base, age and exponent meet only here."""

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from freshper_jax.replay.rules import Rules

__all__ = [
    "decay_rate",
    "group_values",
    "leaf_values",
    "log_of_base",
    "log_priorities",
    "newest_birth",
]

Scalar = float | jax.Array

# The smallest normal float32: below it, accelerators round to zero.
SMALLEST_BASE = float(jnp.finfo(jnp.float32).tiny)
_LARGEST_LAG = 1e30
_EARLIEST = -(1 << 31)


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


def decay_rate(alpha: Scalar, tau: Scalar) -> jax.Array:
    """Computes alpha / tau, by how much the logarithm of a mass falls a unit of the clock.

    Args:
      alpha: float32 scalar >= 0.
      tau: float32 scalar > 0.

    Returns:
      float32 scalar, at most 1e30: more would be the same, but infinite times an age of 0 not.
    """
    return jnp.minimum(jnp.float32(alpha) / jnp.float32(tau), _LARGEST_LAG)


def newest_birth(births: jax.Array, stored: jax.Array) -> jax.Array:
    """Finds the latest of some births, also when the clock wraps between them.

    Args:
      births: `[n, ...]` int32 clocks.
      stored: `[n, ...]` bool, false where a birth does not count.

    Returns:
      `[...]` int32; the first birth where none counts.
    """
    since = births - births[:1]
    latest = jnp.max(jnp.where(stored, since, _EARLIEST), axis=0)
    return births[0] + jnp.where(jnp.any(stored, axis=0), latest, 0)


def log_priorities(
    log_base: jax.Array, births: jax.Array, reference: jax.Array, alpha: Scalar, tau: Scalar
) -> jax.Array:
    """Computes log (base_i exp(-age_i / tau))^alpha, up to a constant that all rows share.

    Ages count from a reference, not from the clock: the clock cancels where priorities are
    compared, and integers near each other keep float32 exact however old all rows are.

    Args:
      log_base: `[...]` float32 logarithms of base priorities, -inf where no row is stored.
      births: `[...]` int32 clocks.
      reference: int32, the birth of some recent row; broadcast against the births.
      alpha: float32 scalar >= 0; 0 makes all rows equal.
      tau: float32 scalar > 0, in units of the clock; infinity switches ageing off.

    Returns:
      `[...]` float32, finite for a row, -inf for none.

    Source: Freshness-Aware PER, arXiv 2604.16918: p_i = base_i exp(-(t - t_i) / tau).
    """
    lag = (reference - births).astype(jnp.float32) / tau
    # A finite lag keeps alpha = 0 from multiplying infinity.
    powers = alpha * (log_base - jnp.clip(lag, -_LARGEST_LAG, _LARGEST_LAG))
    return jnp.where(log_base > -jnp.inf, powers, -jnp.inf)


def leaf_values(
    log_base: jax.Array, births: jax.Array, alpha: Scalar, tau: Scalar, *, rules: Rules
) -> tuple[jax.Array, jax.Array]:
    """Computes what a tree sums: for each row, or group of rows, its mass at a birth.

    Args:
      log_base: `[...]` float32, one a row; for groups `[..., g]`.
      births: int32, likewise.
      alpha: float32 scalar >= 0.
      tau: float32 scalar > 0.
      rules: the buffer's options.

    Returns:
      `[...]` float32, alpha times the logarithm of the priority, -inf for no row and for a
      group that is not complete; and `[...]` int32, the birth at which it is so.
    """
    if rules.group_size == 1:
        return jnp.where(log_base > -jnp.inf, alpha * log_base, -jnp.inf), births
    value, newest, complete = group_values(log_base, births, tau, rules=rules)
    return jnp.where(complete, alpha * jnp.where(complete, value, 0.0), -jnp.inf), newest


def group_values(
    log_base: jax.Array, births: jax.Array, tau: Scalar, *, rules: Rules
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes the priority of groups: the mean or the largest of the members present.

    Args:
      log_base: `[..., g]` float32, -inf for a member that has not arrived.
      births: `[..., g]` int32; each member has its own age.
      tau: float32 scalar > 0.
      rules: the buffer's options.

    Returns:
      `[...]` float32 logarithms of the priorities, -inf for no member; `[...]` int32, the
      birth of the newest member, at which they are so; and `[...]` bool, whether all are there.
    """
    present = log_base > -jnp.inf
    # Births relative to the first one, which is right also when the clock wraps. The first
    # place is filled first.
    first = births[..., :1]
    newest = first[..., 0] + jnp.max(jnp.where(present, births - first, 0), axis=-1)
    members = log_priorities(log_base, births, newest[..., None], 1.0, tau)
    value = jnp.max(members, axis=-1)
    if rules.group_priority == "mean":
        scale = jnp.where(present[..., 0], value, 0.0)
        count = jnp.maximum(jnp.sum(present, axis=-1, dtype=jnp.int32), 1).astype(jnp.float32)
        value = scale + jnp.log(jnp.sum(jnp.exp(members - scale[..., None]), axis=-1) / count)
    return value, newest, jnp.all(present, axis=-1)
