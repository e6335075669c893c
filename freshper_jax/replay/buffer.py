"""The replay buffer: one factory that checks options and returns pure functions.

Each function is compiled once per shape; inside the caller's own `jit`, `vmap` or `scan` it
is inlined like any other. Whoever hands a state to `add`, `update` or `mark_drawn` outside
`jit` gives it away: its arrays are donated and reused for the state that is returned.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from freshper_jax.replay.sampling import STRATEGIES, draw_sample, log_row_probabilities
from freshper_jax.replay.statistics import summarise
from freshper_jax.replay.storage import (
    check_batch,
    count_draws,
    init_state,
    insert_rows,
    update_rows,
)
from freshper_jax.replay.types import Handles, ReplayState, ReplayStats, Sample
from freshper_jax.replay.weights import WEIGHT_NORMALISERS

__all__ = ["ReplayBuffer", "make_buffer"]

Scalar = float | int | jax.Array | np.ndarray

_INSERTIONS = ("base", "max")
_EVICTIONS = ("oldest",)


@dataclasses.dataclass(frozen=True)
class ReplayBuffer:
    """A buffer's pure functions; `make_buffer` documents each.

    | field         | signature                                                              |
    |---------------|------------------------------------------------------------------------|
    | capacity      | int, C                                                                 |
    | init          | (example) -> state                                                     |
    | add           | (state, batch, base_priority, clock) -> state, handles                 |
    | sample        | (state, key, batch_size, clock, beta=, *, alpha=, tau=) -> sample      |
    | update        | (state, handles, base_priority, clock=None) -> state                   |
    | mark_drawn    | (state, handles) -> state                                              |
    | can_sample    | (state, rows) -> bool scalar                                           |
    | probabilities | (state, *, alpha=, tau=) -> P `[C]` float32                            |
    | stats         | (state, clock, *, alpha=, tau=) -> statistics                          |
    """

    capacity: int
    init: Callable[[chex.ArrayTree], ReplayState]
    add: Callable[..., tuple[ReplayState, Handles]]
    sample: Callable[..., Sample]
    update: Callable[..., ReplayState]
    mark_drawn: Callable[[ReplayState, Handles], ReplayState]
    can_sample: Callable[[ReplayState, int], jax.Array]
    probabilities: Callable[..., jax.Array]
    stats: Callable[..., ReplayStats]


def make_buffer(
    *,
    capacity: int,
    alpha: float = 0.6,
    beta: float = 0.4,
    tau: float | None = None,
    strategy: str = "prioritized",
    insertion: str = "base",
    eviction: str = "oldest",
    weight_normaliser: str = "batch_max",
    fallback_priority: float = 1e-6,
    checked: bool = False,
) -> ReplayBuffer:
    """Makes a replay buffer that draws row i with P_i ~ (base_i exp(-age_i / tau))^alpha.

    The age of a row is the clock of the call minus the clock of its `add`, both int32 in
    whatever unit the caller counts. The priority halves every tau ln 2 of it, the sampling
    weight every tau ln 2 / alpha. Nothing that depends on the clock, alpha, beta or tau is
    stored, so a change of any of them is exact at the next call, and costs no compilation.

    - `init(example)`: an empty state for rows shaped as the example.
    - `add(state, batch, base_priority, clock)`: appends B rows as if one at a time, over the
      oldest ones when full; returns the state and the rows' handles. Donates the state.
    - `sample(state, key, batch_size, clock, beta)`: draws a batch and its weights
      (N P_i)^-beta; the state does not change. `beta`, `alpha`, `tau` replace the buffer's own
      in this call and may be traced; `tau=math.inf` switches ageing off. From an empty buffer
      every weight and probability is 0 and every generation -1.
    - `update(state, handles, base_priority)`: sets base priorities; handles of rows that are
      gone, or out of range, are dropped and counted; of duplicates the last one wins. With
      `clock=` the rows are also born anew at that clock. Donates the state.
    - `mark_drawn(state, handles)`: adds to the rows' draw counts, which only `stats` reads.
      Donates the state.
    - `can_sample(state, rows)`: whether at least so many rows are stored.
    - `probabilities(state)`: P_i of one draw, for every slot, 0 for an empty one. It takes no
      clock: moving the clock ages all rows alike.
    - `stats(state, clock)`: see `ReplayStats`.

    Args:
      capacity: C, rows the buffer holds, at least 1.
      alpha: exponent of the priority, finite, >= 0; 0 is uniform.
      beta: exponent of the importance weights, finite, >= 0; 0 makes them all one.
      tau: age at which the priority has fallen to 1/e, > 0; None is standard PER.
      strategy: `prioritized`; `uniform`, which ignores base priorities and ages (for ages
        alone, add with the base priority `constant`); or `newest`, the rows inserted last, each
        once. The first two are stratified, with replacement, and list rows by slot.
      insertion: `base`, new rows enter at their own base priority, or `max`, at the largest
        base priority stored (in an empty buffer: of the batch). Ageing starts at `add` in both.
      eviction: `oldest`.
      weight_normaliser: `batch_max`, `buffer_max`, `mean` or `none`.
      fallback_priority: the base priority that replaces NaN, infinite and negative ones, which
        `stats` counts; finite, > 0.
      checked: whether those raise instead where the call is under `checkify.checkify`.

    Raises:
      ValueError: an option is out of range or not among those listed. The functions raise it
        too, for a batch that does not fit the example and for arguments out of range that are
        known before tracing.
      TypeError: a clock or capacity that is not an integer.

    Source: Freshness-Aware PER, arXiv 2604.16918; Prioritized Experience Replay,
    arXiv 1511.05952.
    """
    _check_count("capacity", capacity)
    _check_choice("strategy", strategy, STRATEGIES)
    _check_choice("insertion", insertion, _INSERTIONS)
    _check_choice("eviction", eviction, _EVICTIONS)
    _check_choice("weight_normaliser", weight_normaliser, WEIGHT_NORMALISERS)
    own_alpha = _as_exponent("alpha", alpha)
    own_beta = _as_exponent("beta", beta)
    own_tau = _as_tau(math.inf if tau is None else tau)
    _check_positive("fallback_priority", fallback_priority)
    fallback = float(fallback_priority)

    def check_state(state: ReplayState) -> None:
        if state.log_base.shape != (capacity,):
            raise ValueError(
                f"state holds {state.log_base.shape} slots, this buffer has capacity {capacity}"
            )

    def options(alpha: Scalar | None, tau: Scalar | None) -> tuple[Any, Any]:
        return (
            own_alpha if alpha is None else _as_exponent("alpha", alpha),
            own_tau if tau is None else _as_tau(tau),
        )

    def init(example: chex.ArrayTree) -> ReplayState:
        return init_state(capacity, example)

    def add(
        state: ReplayState, batch: chex.ArrayTree, base_priority: jax.Array, clock: Scalar
    ) -> tuple[ReplayState, Handles]:
        check_state(state)
        check_batch(state, batch, base_priority)
        return _add(
            state,
            batch,
            base_priority,
            _as_clock(clock),
            insertion=insertion,
            fallback=fallback,
            checked=checked,
        )

    def sample(
        state: ReplayState,
        key: jax.Array,
        batch_size: int,
        clock: Scalar,
        beta: Scalar | None = None,
        *,
        alpha: Scalar | None = None,
        tau: Scalar | None = None,
    ) -> Sample:
        check_state(state)
        _check_count("batch_size", batch_size)
        return _sample(
            state,
            key,
            _as_clock(clock),
            own_beta if beta is None else _as_exponent("beta", beta),
            *options(alpha, tau),
            batch_size=batch_size,
            strategy=strategy,
            weight_normaliser=weight_normaliser,
        )

    def update(
        state: ReplayState,
        handles: Handles,
        base_priority: jax.Array,
        clock: Scalar | None = None,
    ) -> ReplayState:
        check_state(state)
        if np.shape(base_priority) != handles.index.shape:
            raise ValueError(
                f"base_priority has shape {np.shape(base_priority)}, "
                f"expected one value a handle, {handles.index.shape}"
            )
        birth = None if clock is None else _as_clock(clock)
        return _update(state, handles, base_priority, birth, fallback=fallback, checked=checked)

    def mark_drawn(state: ReplayState, handles: Handles) -> ReplayState:
        check_state(state)
        return _mark_drawn(state, handles)

    def can_sample(state: ReplayState, rows: int) -> jax.Array:
        return state.size >= rows

    def probabilities(
        state: ReplayState,
        *,
        alpha: Scalar | None = None,
        tau: Scalar | None = None,
    ) -> jax.Array:
        check_state(state)
        return _probabilities(state, *options(alpha, tau), strategy=strategy)

    def stats(
        state: ReplayState,
        clock: Scalar,
        *,
        alpha: Scalar | None = None,
        tau: Scalar | None = None,
    ) -> ReplayStats:
        check_state(state)
        return _stats(state, _as_clock(clock), *options(alpha, tau), strategy=strategy)

    return ReplayBuffer(
        capacity=capacity,
        init=init,
        add=add,
        sample=sample,
        update=update,
        mark_drawn=mark_drawn,
        can_sample=can_sample,
        probabilities=probabilities,
        stats=stats,
    )


# Compiled here, not in the factory, so that buffers with the same options share programs.
_add = jax.jit(insert_rows, static_argnames=("insertion", "fallback", "checked"), donate_argnums=0)
_update = jax.jit(update_rows, static_argnames=("fallback", "checked"), donate_argnums=0)
_mark_drawn = jax.jit(count_draws, donate_argnums=0)
_sample = jax.jit(draw_sample, static_argnames=("batch_size", "strategy", "weight_normaliser"))


@functools.partial(jax.jit, static_argnames="strategy")
def _probabilities(
    state: ReplayState, alpha: jax.Array, tau: jax.Array, *, strategy: str
) -> jax.Array:
    return jnp.exp(log_row_probabilities(state, alpha, tau, strategy=strategy))


@functools.partial(jax.jit, static_argnames="strategy")
def _stats(
    state: ReplayState, clock: jax.Array, alpha: jax.Array, tau: jax.Array, *, strategy: str
) -> ReplayStats:
    log_probabilities = log_row_probabilities(state, alpha, tau, strategy=strategy)
    return summarise(state, clock, tau, log_probabilities)


def _check_count(name: str, value: int) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not 1 <= value < 1 << 30:
        raise ValueError(f"{name} must be at least 1 and below 2^30, got {value}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be finite and greater than 0, got {value}")


def _as_exponent(name: str, value: Scalar) -> Any:
    scalar = _as_scalar(name, value, np.float32)
    if _is_known(value) and not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and at least 0, got {value}")
    return scalar


def _as_tau(value: Scalar) -> Any:
    scalar = _as_scalar("tau", value, np.float32)
    if _is_known(value) and not value > 0:
        raise ValueError(f"tau must be greater than 0, got {value}")
    return scalar


def _as_clock(value: Scalar) -> Any:
    if not jnp.issubdtype(getattr(value, "dtype", type(value)), jnp.integer):
        raise TypeError(f"clock must be an int32 scalar, got {value!r}")
    if _is_known(value) and np.shape(value) == () and not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"clock must fit int32, got {value}")
    return _as_scalar("clock", value, np.int32)


def _is_known(value: Scalar) -> bool:
    """Tells host numbers from device arrays, whose values would cost a wait or are traced."""
    return not isinstance(value, jax.Array)


def _as_scalar(name: str, value: Scalar, dtype: type) -> Any:
    """Gives every scalar one dtype, so that kinds of numbers do not compile anew."""
    if not isinstance(value, numbers.Real | np.ndarray | jax.Array):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if np.shape(value) != ():
        raise ValueError(f"{name} must be a scalar, got shape {np.shape(value)}")
    return jnp.asarray(value, dtype) if isinstance(value, jax.Array) else dtype(value)
