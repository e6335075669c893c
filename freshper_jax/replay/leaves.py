"""What leaves of rows look like, as they are given and as they are held."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["as_given", "as_held", "held_dtype", "read_at", "shape_and_dtype"]


def shape_and_dtype(leaf: Any) -> tuple[tuple[int, ...], Any]:
    """Reads shape and dtype as JAX would store them, so float64 of numpy is float32."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype
    array = np.asarray(leaf)
    return array.shape, jax.dtypes.canonicalize_dtype(array.dtype)


def held_dtype(dtype: Any) -> Any:
    """Gives the dtype in which leaves of a dtype are held.

    Floats narrower than float32 are held as the integers of their bits: on CPU, XLA would turn
    the whole of what is stored into float32 and back to write one row.
    """
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return np.dtype(f"uint{jnp.finfo(dtype).bits}")
    return dtype


def as_held(values: jax.Array) -> jax.Array:
    """Turns values of the example's dtype into those held."""
    values = jnp.asarray(values)
    held = held_dtype(values.dtype)
    return values if values.dtype == held else jax.lax.bitcast_convert_type(values, held)


def as_given(values: jax.Array, dtype: Any) -> jax.Array:
    """Turns values held into those of the example's dtype."""
    return values if values.dtype == dtype else jax.lax.bitcast_convert_type(values, dtype)


def read_at(values: jax.Array, index: jax.Array | tuple[jax.Array | int, ...]) -> jax.Array:
    """Reads an array at indices from 0 that are known to be in range, without a check."""
    return values.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
