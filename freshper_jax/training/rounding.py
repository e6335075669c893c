"""Stochastic rounding: a number is rounded up or down with odds that keep its mean."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def round_stochastically(key: jax.Array, values: Any, like: Any) -> Any:
    """Rounds float32 arrays to bfloat16 so that the mean over keys is the number itself.

    Args:
      key: consumed; each array draws from its own stream of it.
      values: pytree of arrays.
      like: the same structure; an array of `values` is rounded where its dtype is float32 and
        the one here bfloat16, and stays as it is otherwise.

    Returns:
      `values` in the dtypes of `like`. What is not finite stays so.

    Raises TypeError where a dtype is to change in another way.

    Reference: Gupta et al. 2015, https://arxiv.org/abs/1502.02551, section 3.
    """
    leaves, structure = jax.tree.flatten(values)
    rounded = []
    for index, (leaf, target) in enumerate(zip(leaves, jax.tree.leaves(like), strict=True)):
        if leaf.dtype == target.dtype:
            rounded.append(leaf)
        elif (leaf.dtype, target.dtype) == (jnp.float32, jnp.bfloat16):
            rounded.append(_round_array(jax.random.fold_in(key, index), leaf))
        else:
            raise TypeError(
                f"cannot round {leaf.dtype} to {target.dtype}, only float32 to bfloat16"
            )
    return jax.tree.unflatten(structure, rounded)


def _round_array(key: jax.Array, values: jax.Array) -> jax.Array:
    # A bfloat16 is the upper half of a float32: a random lower half, added, carries into the
    # upper one with a probability that is the distance from the bfloat16 below.
    noise = jax.random.bits(key, values.shape, jnp.uint16).astype(jnp.uint32)
    bits = lax.bitcast_convert_type(values, jnp.uint32) + noise
    upper = lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(values), upper, values.astype(jnp.bfloat16))
