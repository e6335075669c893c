"""Masked reductions: what lies outside the mask, even NaN, reaches neither value nor gradient."""

import chex
import jax
import jax.numpy as jnp


def masked_sum(values: jax.Array, mask: jax.Array, axis: int | None = None) -> jax.Array:
    """Sums the values inside the mask.

    Args:
        values: float array of any shape.
        mask: bool array of the same shape.
        axis: the axis to sum over; all axes by default.
    """
    chex.assert_equal_shape([values, mask])
    return jnp.sum(jnp.where(mask, values, jnp.zeros_like(values)), axis=axis)


def masked_mean(values: jax.Array, mask: jax.Array, axis: int | None = None) -> jax.Array:
    """Averages the values inside the mask; an empty mask gives 0.

    Args:
        values: float array of any shape.
        mask: bool array of the same shape.
        axis: the axis to average over; all axes by default.
    """
    count = jnp.sum(mask, axis=axis, dtype=values.dtype)
    return masked_sum(values, mask, axis) / jnp.maximum(count, 1)


def whiten(
    values: jax.Array, mask: jax.Array, *, eps: float = 1e-8, shift_mean: bool = True
) -> jax.Array:
    """Scales the values inside the mask to unit variance, over the whole batch at once.

    The variance is the population's. Equal values whiten to 0, however large they are.

    Args:
        values: float array of any shape.
        mask: bool array of the same shape.
        eps: added to the variance before its root.
        shift_mean: whether the mean is moved to 0; otherwise it stays where it was.

    Returns:
        An array like `values`, 0 outside the mask.
    """
    chex.assert_equal_shape([values, mask])
    inside = jnp.where(mask, values, jnp.zeros_like(values))
    mean = masked_mean(inside, mask)
    centred = inside - mean
    # The mean of many float32 values is off by some ulps of its own size. A second pass
    # removes that error, which a small deviation would otherwise amplify.
    centred = centred - masked_mean(centred, mask)
    variance = masked_mean(jnp.square(centred), mask)
    whitened = centred * jax.lax.rsqrt(variance + eps)
    if not shift_mean:
        whitened = whitened + mean
    return jnp.where(mask, whitened, jnp.zeros_like(whitened))
