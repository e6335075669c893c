"""Why rows age: effective sample sizes, the divergences behind them, and what tau means.

`rho` is the ratio policy / behaviour of a row (a whole trajectory), and the rows come from the
behaviour policy, the one that collected them. Arguments are Python numbers or arrays, traced
or not; only Python numbers are checked for their range. Results are float32.
"""

import math
import numbers

import chex
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

__all__ = [
    "ess_fraction_bound_from_kl",
    "ess_fraction_from_renyi2",
    "ess_of_log_weights",
    "freshness",
    "mean_drawn_age",
    "priority_half_life",
    "renyi2_divergence",
    "sampling_half_life",
    "tau_from_drift_rate",
    "tau_from_half_life",
]


def ess_of_log_weights(log_weights: jax.Array, *, where: jax.Array | None = None) -> jax.Array:
    """Computes (sum w)^2 / sum w^2, the number of equal rows that the weights are worth.

    A constant added to all logarithms changes nothing, so the weights may be unnormalised and
    far outside float32. With `w = rho` this estimates Kong's n / (1 + Var[rho]).

    Args:
      log_weights: `[n]` float, log w; -inf for a weight of zero.
      where: `[n]` bool, the rows that count; all of them if None.

    Returns:
      float32 scalar between 1 and the rows that count; 0 where no weight is above zero. NaN
      where a weight that counts is NaN or infinite.

    Source: Kong, A note on importance sampling using standardized weights, 1992.
    """
    weights, _ = _scaled_weights(log_weights, where)
    squares = jnp.sum(jnp.square(weights))
    # Above zero, the squares add up to at least 1: the largest weight is scaled to that.
    return jnp.square(jnp.sum(weights)) / jnp.where(squares == 0, 1.0, squares)


def renyi2_divergence(log_ratio: jax.Array, *, where: jax.Array | None = None) -> jax.Array:
    """Estimates D_2(policy || behaviour) = log E[rho^2] by log(mean rho^2 / (mean rho)^2).

    The estimate is self-normalised: the mean of rho, 1 in expectation, is taken from the same
    rows, so that ratios known up to a factor will do and ESS = n exp(-D_2) holds to the
    digit. Its price is a ceiling: n rows never show more than log n, so a value near that says
    only that the divergence is large.

    Args:
      log_ratio: `[n]` float, log rho, nats, of rows drawn from the behaviour policy.
      where: `[n]` bool, the rows that count; all of them if None.

    Returns:
      float32 scalar between 0 and log n, nats; infinity where no ratio is above zero. NaN
      where a ratio that counts is NaN or infinite.

    Source: van Erven and Harremoës, arXiv 1206.2459; Metelli et al., arXiv 1809.06098.
    """
    weights, counted = _scaled_weights(log_ratio, where)
    rows = jnp.maximum(jnp.sum(counted, dtype=jnp.int32), 1).astype(jnp.float32)
    mean = jnp.sum(weights) / rows
    some = mean != 0
    mean = jnp.where(some, mean, 1.0)
    # Squared deviations keep the digits of a small divergence, which log E[rho^2] would cancel.
    deviations = jnp.where(counted, weights / mean - 1.0, 0.0)
    return jnp.where(some, jnp.log1p(jnp.sum(jnp.square(deviations)) / rows), jnp.inf)


def ess_fraction_from_renyi2(d2: ArrayLike) -> jax.Array:
    """Computes ESS / n = exp(-D_2(policy || behaviour)), an identity.

    It is exact for Kong's ESS = n / (1 + Var[rho]), as E[rho] = 1 and E[rho^2] = exp(D_2). That
    ESS is itself a rule of thumb: it knows the ratios, not the integrand.

    Args:
      d2: any shape, nats, >= 0.

    Returns:
      float32 of the same shape, between 0 and 1.

    Raises:
      ValueError: d2 is a Python number that is negative or NaN.

    Source: Metelli et al., arXiv 1809.06098; Freshness-Aware PER, arXiv 2604.16918.
    """
    return jnp.exp(-_as_float32("d2", d2, zero=True, infinity=True))


def ess_fraction_bound_from_kl(kl: ArrayLike) -> jax.Array:
    """Computes exp(-KL(policy || behaviour)), which ESS / n never exceeds.

    It is an upper bound and no estimate: D_2 >= KL, with equality only where rho takes one
    value wherever the policy acts. Between policies that are close D_2 is about 2 KL, so
    ESS / n is about the square of this bound. The direction matters: the mean of -log rho over
    rows of the behaviour policy estimates the other KL, for which this is no bound.

    Args:
      kl: any shape, nats, >= 0, of whole rows; negative estimates give more than 1.

    Returns:
      float32 of the same shape.

    Raises:
      ValueError: kl is a Python number that is negative or NaN.

    Source: Freshness-Aware PER, arXiv 2604.16918, by the order of Rényi divergences
    (van Erven and Harremoës, arXiv 1206.2459).
    """
    return jnp.exp(-_as_float32("kl", kl, zero=True, infinity=True))


def freshness(age: ArrayLike, tau: ArrayLike) -> jax.Array:
    """Computes exp(-age / tau), the factor by which age lowers a priority.

    It is a heuristic: what is left of the bound exp(-KL) if the KL grows by 1 / tau in each
    unit of the clock.

    Args:
      age: any shape, in units of the clock, finite, >= 0.
      tau: a scalar or of the same shape, in units of the clock, > 0; infinity switches
        ageing off.

    Returns:
      float32 of the same shape.

    Raises:
      ValueError: an argument is a Python number out of range.

    Source: Freshness-Aware PER, arXiv 2604.16918.
    """
    age = _as_float32("age", age, zero=True, infinity=False)
    return jnp.exp(-age / _as_float32("tau", tau, zero=False, infinity=True))


def priority_half_life(tau: ArrayLike) -> jax.Array:
    """Computes tau ln 2, the age at which a priority has halved.

    Args:
      tau: any shape, in units of the clock, > 0; infinity where rows do not age.

    Returns:
      float32 of the same shape, in units of the clock.

    Raises:
      ValueError: tau is a Python number that is 0, negative or NaN.

    Source: Freshness-Aware PER, arXiv 2604.16918.
    """
    return math.log(2) * _as_float32("tau", tau, zero=False, infinity=True)


def sampling_half_life(tau: ArrayLike, alpha: ArrayLike) -> jax.Array:
    """Computes tau ln 2 / alpha, the age at which the chance to be drawn has halved.

    The weight in the draw is the priority to the power alpha, so with alpha below 1 rows stay
    longer than their priorities suggest.

    Args:
      tau: any shape, in units of the clock, > 0; infinity where rows do not age.
      alpha: a scalar or of the same shape, exponent of the priority, finite, >= 0.

    Returns:
      float32 of the same shape, in units of the clock; infinity for alpha = 0.

    Raises:
      ValueError: an argument is a Python number out of range.

    Source: half of (exp(-age / tau))^alpha, the draw of Prioritized Experience Replay,
    arXiv 1511.05952, on the priority of Freshness-Aware PER, arXiv 2604.16918.
    """
    return priority_half_life(tau) / _as_float32("alpha", alpha, zero=True, infinity=False)


def tau_from_half_life(half_life: ArrayLike, *, alpha: ArrayLike = 1.0) -> jax.Array:
    """Computes alpha half_life / ln 2, the tau at which the chance to be drawn halves so.

    Args:
      half_life: any shape, in units of the clock, > 0; infinity where rows do not age.
      alpha: a scalar or of the same shape, exponent of the priority, finite, > 0. At 1, the
        half-life is also that of the priority.

    Returns:
      float32 of the same shape, in units of the clock.

    Raises:
      ValueError: an argument is a Python number out of range.

    Source: the inverse of `sampling_half_life`.
    """
    half_life = _as_float32("half_life", half_life, zero=False, infinity=True)
    alpha = _as_float32("alpha", alpha, zero=False, infinity=False)
    return alpha * half_life / math.log(2)


def tau_from_drift_rate(rate: ArrayLike) -> jax.Array:
    """Computes 1 / rate, the tau that a constant drift of the policy suggests.

    It is a heuristic, for it takes the KL of a row to be rate * age. A policy that moves
    steadily in one direction drifts with the square of the age, and a learning rate that
    falls slows it.

    Args:
      rate: any shape, growth of KL(policy || behaviour) of whole rows, nats for each unit of
        the clock, finite, >= 0.

    Returns:
      float32 of the same shape, in units of the clock; infinity for no drift.

    Raises:
      ValueError: rate is a Python number that is negative, infinite or NaN.

    Source: Freshness-Aware PER, arXiv 2604.16918.
    """
    return 1.0 / _as_float32("rate", rate, zero=True, infinity=False)


def mean_drawn_age(tau: ArrayLike, alpha: ArrayLike, *, spacing: ArrayLike = 0.0) -> jax.Array:
    """Computes spacing / (exp(alpha spacing / tau) - 1), how old drawn rows are on average.

    It takes equally many rows of equal base priority to arrive every `spacing` units of the
    clock, the newest of them at age 0, and a buffer that has forgotten none. With spacing 0
    they arrive all the time, and the mean is tau / alpha. A share exp(-alpha W / tau) of the
    draws has age W or more, which says how far back a buffer must reach for this to hold.

    Args:
      tau: any shape, in units of the clock, > 0; infinity where rows do not age.
      alpha: a scalar or of the same shape, exponent of the priority, finite, >= 0.
      spacing: a scalar or of the same shape, in units of the clock, finite, >= 0.

    Returns:
      float32 of the same shape, in units of the clock; infinity where the draw is uniform.

    Raises:
      ValueError: an argument is a Python number out of range.

    Source: the mean of a geometric distribution over ages k spacing, with weights
    exp(-alpha k spacing / tau).
    """
    tau = _as_float32("tau", tau, zero=False, infinity=True)
    alpha = _as_float32("alpha", alpha, zero=True, infinity=False)
    spacing = _as_float32("spacing", spacing, zero=True, infinity=False)
    step = alpha * spacing / tau
    # x / (exp(x) - 1) is 1 at x = 0.
    ratio = jnp.where(step == 0, 1.0, step / jnp.expm1(jnp.where(step == 0, 1.0, step)))
    return tau / alpha * ratio


def _scaled_weights(log_weights: jax.Array, where: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Divides weights by the largest one that counts; gives them and which rows count."""
    chex.assert_rank(log_weights, 1)
    counted = jnp.ones(log_weights.shape, bool) if where is None else where
    chex.assert_equal_shape([log_weights, counted])
    counted = jnp.asarray(counted, bool)
    logs = jnp.where(counted, jnp.asarray(log_weights, jnp.float32), -jnp.inf)
    # The result does not depend on the shift, so neither does its gradient.
    largest = jax.lax.stop_gradient(jnp.max(logs, initial=-jnp.inf))
    return jnp.exp(logs - jnp.where(jnp.isfinite(largest), largest, 0.0)), counted


def _as_float32(name: str, value: ArrayLike, *, zero: bool, infinity: bool) -> jax.Array:
    """Converts a number, and checks one that Python knows: arrays may be traced."""
    if isinstance(value, numbers.Real):
        # Written so that NaN fails.
        inside = (value >= 0 if zero else value > 0) and (infinity or value < math.inf)
        if not inside:
            expected = f"{'' if infinity else 'finite and '}{'at least' if zero else 'above'} 0"
            raise ValueError(f"{name} must be {expected}, got {value}")
    return jnp.asarray(value, jnp.float32)
