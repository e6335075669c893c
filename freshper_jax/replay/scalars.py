"""Numbers that calls take: Python's, numpy's or JAX's, known or traced, of one dtype each."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Scalar", "as_clock", "as_exponent", "as_tau"]

Scalar = float | int | jax.Array | np.ndarray

# What float32 can still compute with; nothing sensible is anywhere near.
_LARGEST_EXPONENT, _LEAST_TAU, _LARGEST_TAU = 1e6, 1e-30, 1e30


def as_exponent(name: str, value: Scalar) -> Any:
    """Gives alpha or beta as a float32 scalar; checks it where the host knows it."""
    if not isinstance(value, jax.Array):
        _check_number(name, value)
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and at least 0, got {value}")
        if value > _LARGEST_EXPONENT:
            raise ValueError(f"{name} must be at most {_LARGEST_EXPONENT:g}, got {value}")
    return _as_scalar(name, value, np.float32)


def as_tau(value: Scalar) -> Any:
    """Gives tau as a float32 scalar; checks it where the host knows it."""
    if not isinstance(value, jax.Array):
        _check_number("tau", value)
        if not value > 0:
            raise ValueError(f"tau must be greater than 0, got {value}")
        if not (value == math.inf or _LEAST_TAU <= value <= _LARGEST_TAU):
            raise ValueError(
                f"tau must be from {_LEAST_TAU:g} to {_LARGEST_TAU:g}, or infinite, got {value}"
            )
    return _as_scalar("tau", value, np.float32)


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, int | float | np.number | np.ndarray):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if np.shape(value) != ():
        raise ValueError(f"{name} must be a scalar, got shape {np.shape(value)}")


def as_clock(value: Scalar) -> Any:
    """Gives a clock as an int32 scalar; checks it where the host knows it."""
    if type(value) is int and -(1 << 31) <= value < 1 << 31:
        return np.int32(value)  # what most calls give, told apart the fastest
    if not isinstance(value, jax.Array):
        if isinstance(value, bool) or not isinstance(value, int | np.integer | np.ndarray):
            raise TypeError(f"clock must be an int32 scalar, got {value!r}")
        if np.shape(value) == () and not -(1 << 31) <= value < 1 << 31:
            raise ValueError(f"clock must fit int32, got {value}")
    elif not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"clock must be an int32 scalar, got {value!r}")
    return _as_scalar("clock", value, np.int32)


def _as_scalar(name: str, value: Scalar, dtype: type) -> Any:
    """Gives every scalar one dtype, so that kinds of numbers do not compile anew."""
    if isinstance(value, int | float | np.number):
        return dtype(value)
    if not isinstance(value, np.ndarray | jax.Array):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if value.shape != ():
        raise ValueError(f"{name} must be a scalar, got shape {value.shape}")
    # A host's number would cost a wait, or is traced; the device's own is not converted twice.
    same = isinstance(value, jax.Array) and value.dtype == dtype and not value.aval.weak_type
    return value if same else jnp.asarray(value, dtype)
