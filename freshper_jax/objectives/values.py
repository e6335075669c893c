"""What a value head learns from, and the advantages that it gives.

In the shape descriptions, `B` denotes rows (trajectories) and `T` tokens. `V_t` is the value of
the state in which response token `t` is chosen, and the state after it is the one in which the
row's next response token is: observations neither discount, nor cut a trace, nor have a value.
After its last response token a row is over, and its value is 0.
"""

import chex
import jax
import jax.numpy as jnp

from freshper_jax.objectives.divergence import token_ratio


def validate_discounting(gamma: float, trace: float) -> None:
    """Checks both decays; raises ValueError naming the one at fault."""
    for name, value in (("gamma", gamma), ("trace", trace)):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must lie in [0, 1], got {value}")


def validate_trace_caps(rho_cap: float, c_cap: float) -> None:
    """Checks the caps of `vtrace`; raises ValueError naming the one at fault."""
    if not c_cap > 0.0:
        raise ValueError(f"c_cap must be positive, got {c_cap}")
    if not rho_cap >= c_cap:
        raise ValueError(f"rho_cap must be at least c_cap ({c_cap}), got {rho_cap}")


def td_errors(
    rewards: jax.Array, values: jax.Array, response_mask: jax.Array, *, gamma: float
) -> jax.Array:
    """Computes `r_t + gamma V_next - V_t` of each response token.

    Source: Sutton, "Learning to predict by the methods of temporal differences" (1988).

    Args:
        rewards: float32 `[B, T]`; ignored outside the mask, as the values are.
        values: float32 `[B, T]`, `V_t`.
        response_mask: bool `[B, T]`.
        gamma: discount a response token, in [0, 1].

    Returns:
        float32 `[B, T]`, 0 outside the mask.

    Raises:
        ValueError: gamma lies outside [0, 1].
    """
    rewards, values = _inside(rewards, values, response_mask)
    validate_discounting(gamma, 1.0)
    return jnp.where(
        response_mask,
        rewards + gamma * _next_response(values, response_mask) - values,
        jnp.zeros_like(values),
    )


def generalised_advantages(
    rewards: jax.Array,
    values: jax.Array,
    response_mask: jax.Array,
    *,
    gamma: float,
    trace: float,
) -> tuple[jax.Array, jax.Array]:
    """Computes generalised advantage estimates, and the returns that the values should learn.

    `A_t = delta_t + gamma trace A_next`, with `delta` the TD errors; the return is `A_t + V_t`
    (Schulman et al., "High-dimensional continuous control using generalized advantage
    estimation", 2016, eq. 16).

    Args:
        rewards: float32 `[B, T]`.
        values: float32 `[B, T]`, of the policy that collected the rows.
        response_mask: bool `[B, T]`.
        gamma: discount a response token, in [0, 1].
        trace: lambda, in [0, 1]: 0 trusts the values, 1 the rewards alone.

    Returns:
        `(advantages, returns)`, float32 `[B, T]`, 0 outside the mask; not whitened.

    Raises:
        ValueError: gamma or trace lies outside [0, 1].
    """
    validate_discounting(gamma, trace)
    errors = td_errors(rewards, values, response_mask, gamma=gamma)
    advantages = _accumulate(errors, jnp.full_like(errors, gamma * trace), response_mask)
    returns = advantages + values
    return advantages, jnp.where(response_mask, returns, jnp.zeros_like(returns))


def vtrace(
    log_ratio: jax.Array,
    rewards: jax.Array,
    values: jax.Array,
    response_mask: jax.Array,
    *,
    gamma: float,
    trace: float = 1.0,
    rho_cap: float = 1.0,
    c_cap: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """Computes V-trace value targets from rows of another policy, and advantages by them.

    With `rho_t = min(rho_cap, r_t)`, `c_t = trace min(c_cap, r_t)` and `r` the token ratio of
    the policy to the behaviour policy,

        v_t - V_t = rho_t delta_t + gamma c_t (v_next - V_next)
        A_t       = r'_t + gamma v_next - V_t

    with `r'` the reward (Espeholt et al., "IMPALA", 2018, eq. 1, remark 2 and section 4.2). The
    paper multiplies `A_t` by `rho_t` in its policy gradient: so does the objective `tis`, with
    `rho_cap` as its cap. On policy and with `trace` 1 the targets are the discounted returns.

    Args:
        log_ratio: float32 `[B, T]`, log of the ratio, nats.
        rewards: float32 `[B, T]`.
        values: float32 `[B, T]`, of the present policy.
        response_mask: bool `[B, T]`; what lies outside is ignored in all of these.
        gamma: discount a response token, in [0, 1].
        trace: lambda, in [0, 1].
        rho_cap: decides whose values are learnt, those of a policy between both.
        c_cap: how far a TD error reaches back; positive and at most `rho_cap`.

    Returns:
        `(targets, advantages)`, float32 `[B, T]`, 0 outside the mask. No gradient flows through
        them.

    Raises:
        ValueError: a decay lies outside [0, 1], or a cap out of range.
    """
    chex.assert_equal_shape([log_ratio, response_mask])
    validate_discounting(gamma, trace)
    validate_trace_caps(rho_cap, c_cap)
    ratio = token_ratio(jnp.where(response_mask, log_ratio, jnp.zeros_like(log_ratio)))
    rewards, values = _inside(rewards, values, response_mask)
    errors = td_errors(rewards, values, response_mask, gamma=gamma)
    excess = _accumulate(
        jnp.minimum(ratio, rho_cap) * errors,
        gamma * trace * jnp.minimum(ratio, c_cap),
        response_mask,
    )
    targets = values + excess
    advantages = rewards + gamma * _next_response(targets, response_mask) - values
    advantages = jnp.where(response_mask, advantages, jnp.zeros_like(advantages))
    return jax.lax.stop_gradient((targets, advantages))


def value_losses(
    values: jax.Array,
    targets: jax.Array,
    response_mask: jax.Array,
    *,
    old_values: jax.Array | None = None,
    clip: float | None = None,
) -> jax.Array:
    """Computes half the squared error of each value, 0 outside the mask.

    With a clip `c`, `max((V - G)^2, (V_old + clip(V - V_old, -c, c) - G)^2) / 2`: a value that
    has moved by more than `c` towards its target is left alone. It comes from the code of PPO,
    not its paper (Engstrom et al., "Implementation matters in deep policy gradients", 2020).

    Args:
        values: float32 `[B, T]`, of the policy being trained.
        targets: float32 `[B, T]`, `G`.
        response_mask: bool `[B, T]`.
        old_values: float32 `[B, T]`, of the policy that collected the rows.
        clip: positive, in units of reward, or None for none.

    Returns:
        float32 `[B, T]`.

    Raises:
        ValueError: the clip is not positive, or comes without `old_values`.
    """
    targets, values = _inside(targets, values, response_mask)
    squares = jnp.square(values - targets)
    if clip is not None:
        validate_value_clip(clip)
        if old_values is None:
            raise ValueError("clip needs old_values")
        old_values, _ = _inside(old_values, values, response_mask)
        near = old_values + jnp.clip(values - old_values, -clip, clip)
        squares = jnp.maximum(squares, jnp.square(near - targets))
    return 0.5 * squares


def validate_value_clip(clip: float | None) -> None:
    """Checks the clip of `value_losses`; raises ValueError."""
    if clip is not None and not clip > 0.0:
        raise ValueError(f"value clip must be positive or None, got {clip}")


def _inside(
    first: jax.Array, second: jax.Array, response_mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Checks shapes and puts zeros outside the mask of both."""
    chex.assert_rank([first, second, response_mask], 2)
    chex.assert_equal_shape([first, second, response_mask])
    return (
        jnp.where(response_mask, first, jnp.zeros_like(first)),
        jnp.where(response_mask, second, jnp.zeros_like(second)),
    )


def _next_response(values: jax.Array, response_mask: jax.Array) -> jax.Array:
    """Finds, for each token, the value at its row's next response token, 0 if there is none."""

    def step(later: jax.Array, token: tuple[jax.Array, jax.Array]):
        value, is_response = token
        return jnp.where(is_response, value, later), later

    nothing = jnp.zeros_like(values, shape=values.shape[:1])
    _, found = jax.lax.scan(step, nothing, (values.T, response_mask.T), reverse=True)
    return found.T


def _accumulate(terms: jax.Array, factors: jax.Array, response_mask: jax.Array) -> jax.Array:
    """Solves `x_t = term_t + factor_t x_next` over response tokens, 0 outside the mask."""

    def step(later: jax.Array, token: tuple[jax.Array, jax.Array, jax.Array]):
        term, factor, is_response = token
        here = jnp.where(is_response, term + factor * later, later)
        return here, jnp.where(is_response, here, jnp.zeros_like(here))

    nothing = jnp.zeros_like(terms, shape=terms.shape[:1])
    by_token = (terms.T, factors.T, response_mask.T)
    _, sums = jax.lax.scan(step, nothing, by_token, reverse=True)
    return sums.T
