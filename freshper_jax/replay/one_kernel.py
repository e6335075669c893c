"""On CPU, one kernel for what XLA would run as a hundred.

A draw is a chain of small gathers and sums. XLA's CPU runtime runs each of them, and each step of
each loop, as a task of its own, and splits a read from a large array between threads however
little it reads: all that takes longer than the work. XLA has a mark for calls too small for
tasks, and this module sets it. Where it is set the compiler checks little and may abort, so it
is set only in programs of our own, never inside a caller's, and only for versions of JAX that
the tests ran on.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax
from jax._src import core  # nothing public tells whether a trace is under way
from jax.experimental.xla_metadata import set_xla_metadata

__all__ = ["Caller", "in_one_kernel", "is_alone_on_cpu", "plainly"]

Result = TypeVar("Result")

_IS_TESTED = jax.__version__ == "0.10.2"
# XLA gives sums over more floats to a library, which no kernel can call.
_MOST_SUMMED = 4095


class Caller(Protocol):
    """How to call a part of a program, given the floats in the largest array that it sums."""

    def __call__(self, function: Callable[..., Result], /, *args: Any, summed: int) -> Result:
        """Call the function."""
        ...


def plainly(function: Callable[..., Result], /, *args: Any, summed: int) -> Result:
    """Calls a function as it is."""
    del summed
    return function(*args)


def in_one_kernel(function: Callable[..., Result], /, *args: Any, summed: int) -> Result:
    """Calls a function so that XLA compiles it to one kernel, in a program for one CPU device.

    Args:
      function: pure, with two arrays or more in its result that are used; in it, XLA has no
        scatter, sort, product of matrices, collective or generator of random bits, and it runs
        on one thread.
      *args: pytrees of arrays.
      summed: floats in the largest array that the function sums, or takes the maximum of; with
        many, the function is called as it is.

    Returns:
      What the function returns.
    """
    if summed > _MOST_SUMMED:
        return function(*args)

    def unmarked(*args: Any) -> Result:
        with set_xla_metadata(inlineable=None, xla_cpu_small_call=None):
            return function(*args)

    # XLA's inliner comes first, and must not undo the call.
    with set_xla_metadata(inlineable="false", xla_cpu_small_call="true"):
        result = jax.jit(unmarked)(*args)
    # XLA may split the work on a result that is just one array, which it cannot do in here.
    assert len(jax.tree.leaves(result)) > 1
    return result


def is_alone_on_cpu(*args: Any) -> bool:
    """Tells whether a jitted call with such arguments is a program of its own on one CPU device.

    Args:
      *args: pytrees of arrays, JAX's or numpy's, known or traced.

    Returns:
      Whether it is, and the version of JAX is one for which `in_one_kernel` is tested.
    """
    return (
        _IS_TESTED and core.trace_state_clean() and all(map(_is_on_one_cpu, jax.tree.leaves(args)))
    )


def _is_on_one_cpu(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array):
        return True
    devices = leaf.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"
