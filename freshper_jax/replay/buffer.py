"""The replay buffer: one factory that checks options and returns pure functions.

Each function is compiled once per shape; inside the caller's own `jit`, `vmap` or `scan` it
is inlined like any other. Whoever hands a state to `add`, `update` or `mark_drawn` outside
`jit` gives it away: its arrays are donated and reused for the state that is returned.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from freshper_jax.replay.one_kernel import Caller, in_one_kernel, is_alone_on_cpu, plainly
from freshper_jax.replay.rules import (
    Rules,
    check_batch_size,
    check_one_a_handle,
    check_rules,
    check_sums,
)
from freshper_jax.replay.sampling import draw_sample, leaves_stored, log_leaf_probabilities
from freshper_jax.replay.scalars import Scalar, as_clock, as_exponent, as_tau
from freshper_jax.replay.statistics import summarise
from freshper_jax.replay.storage import (
    check_batch,
    count_draws,
    init_state,
    insert_rows,
    retune_tree,
    update_rows,
)
from freshper_jax.replay.types import Handles, ReplayState, ReplayStats, Sample

__all__ = ["ReplayBuffer", "make_buffer"]


@dataclasses.dataclass(frozen=True)
class ReplayBuffer:
    """A buffer's pure functions; `make_buffer` documents each.

    | field         | signature                                                              |
    |---------------|------------------------------------------------------------------------|
    | capacity      | int, C                                                                 |
    | init          | (example) -> state                                                     |
    | add           | (state, batch, base_priority, clock, *, lengths=, groups=)             |
    |               | -> state, handles                                                      |
    | sample        | (state, key, batch_size, clock, beta=, *, alpha=, tau=) -> sample      |
    | update        | (state, handles, base_priority, clock=None) -> state                   |
    | mark_drawn    | (state, handles) -> state                                              |
    | can_sample    | (state, rows) -> bool scalar                                           |
    | probabilities | (state, *, alpha=, tau=) -> P `[C]` float32                            |
    | stats         | (state, clock, *, alpha=, tau=) -> statistics                          |
    | retune        | (state) -> state                                                       |
    | rules         | Rules, the options, all but beta                                       |
    | beta          | float, what `sample` takes where it is given none                      |
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
    retune: Callable[[ReplayState], ReplayState]
    rules: Rules
    beta: float


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
    group_size: int = 1,
    group_priority: str = "mean",
    storage: str = "dense",
    token_capacity: int | None = None,
    ragged: chex.ArrayTree | None = None,
    checked: bool = False,
) -> ReplayBuffer:
    """Makes a replay buffer that draws row i with P_i ~ (base_i exp(-age_i / tau))^alpha.

    The age of a row is the clock of the call minus the clock of its `add`, both int32 in
    whatever unit the caller counts. The priority halves every tau ln 2 of it, the sampling
    weight every tau ln 2 / alpha. Nothing stored depends on the clock or on beta, so moving
    them costs nothing; the state keeps sums of priorities for the buffer's own alpha and tau.

    - `init(example)`: an empty state for rows shaped as the example.
    - `add(state, batch, base_priority, clock)`: appends B rows as if one at a time, over
      others when full; returns the state and the rows' handles. Donates the state. Packed
      storage needs `lengths=`, `[B]` int, the tokens of each row; strategy `groups` needs
      `groups=`, `[B]` int, the name of each row's group.
    - `sample(state, key, batch_size, clock, beta)`: draws a batch and its weights
      (N P_i)^-beta; the state does not change. `beta`, `alpha`, `tau` replace the buffer's own
      in this call and may be traced; `tau=math.inf` switches ageing off. Another alpha or tau
      is exact too, but costs one pass over the rows. From an empty buffer every weight and
      probability is 0 and every generation -1.
    - `update(state, handles, base_priority)`: sets base priorities; handles of rows that are
      gone, or out of range, are dropped and counted; of duplicates the last one wins. With
      `clock=` the rows are also born anew at that clock. Donates the state.
    - `mark_drawn(state, handles)`: adds to the rows' draw counts, which only `stats` reads.
      Donates the state.
    - `can_sample(state, rows)`: whether at least so many rows are stored (for `groups`, in
      complete groups).
    - `probabilities(state)`: P_i of one draw, for every slot, 0 for an empty one; for `groups`
      `[C / g]`, one a group. It takes no clock: moving the clock ages all rows alike.
    - `stats(state, clock)`: see `ReplayStats`.
    - `retune(state)`: makes the sums of another buffer's state, of the same shape, anew for
      this buffer's alpha and tau; without that its functions refuse it.

    Args:
      capacity: C, rows the buffer holds, at least 1.
      alpha: exponent of the priority, finite, >= 0; 0 is uniform.
      beta: exponent of the importance weights, finite, >= 0; 0 makes them all one.
      tau: age at which the priority has fallen to 1/e, > 0; None is standard PER.
      strategy: how to draw.
        `prioritized` draws with replacement, one row from each of B strata of equal mass.
        `uniform` does so too, but ignores base priorities and ages (for ages alone, add with
        the base priority `constant`).
        `prioritized_without_replacement` draws B rows one after another, none twice; its
        weights undo the chance of being in the batch. One pass over the rows a call.
        `newest` and `oldest` take the rows inserted last, or first, each once.
        `groups` draws B / g groups as `prioritized` draws rows, and returns all members of
        each; the weights count groups. Groups that are not complete are never drawn. An `add`
        takes one pass over the rows, and one over the groups for each row it adds.
      insertion: `base`, new rows enter at their own base priority, or `max`, at the largest
        base priority stored (in an empty buffer: of the batch), found in one pass over the rows.
        Ageing starts at `add` in both.
      eviction: `oldest`, or `lowest_priority`: what has the lowest effective priority at the
        time of the `add` goes first, of equals the one in the lower slot; one pass over the
        rows. Groups go as a whole; one whose members are still arriving stays while complete
        ones are left, unless C / g groups have been opened after it.
      weight_normaliser: `batch_max`, `buffer_max` (one pass over the rows), `mean` or `none`.
      fallback_priority: the base priority that replaces NaN, infinite and negative ones, which
        `stats` counts; finite, > 0.
      group_size: g, members of a group, for strategy `groups`; divides the capacity.
      group_priority: `mean` or `max` of the members' priorities, each with its own age.
      storage: `dense`, or `packed`: ragged leaves in one ring of tokens, so that memory follows
        the tokens held. Then a row goes, as a whole, also when its tokens are overwritten, and
        an `add` takes one pass over the rows.
      token_capacity: tokens the ring holds, at least those of the longest row; for `packed`.
      ragged: which leaves are ragged, a pytree of bools that is a prefix of the example; for
        `packed`. Ragged leaves have the tokens of the longest row as their leading axis, and
        come back zero beyond the length of a row.
      checked: whether bad priorities raise instead, where the call is under
        `checkify.checkify`.

    Raises:
      ValueError: an option is out of range, not among those listed, or does not go with
        another. The functions raise it too, for a batch that does not fit the example and for
        arguments out of range that are known before tracing.
      TypeError: a clock or capacity that is not an integer.

    Source: Freshness-Aware PER, arXiv 2604.16918; Prioritized Experience Replay,
    arXiv 1511.05952.
    """
    own_beta = as_exponent("beta", beta)
    rules = Rules(
        capacity=capacity,
        alpha=float(as_exponent("alpha", alpha)),
        tau=float(as_tau(math.inf if tau is None else tau)),
        strategy=strategy,
        insertion=insertion,
        eviction=eviction,
        weight_normaliser=weight_normaliser,
        fallback_priority=fallback_priority,
        group_size=group_size,
        group_priority=group_priority,
        storage=storage,
        token_capacity=token_capacity,
        ragged=ragged,
        checked=checked,
    )
    check_rules(rules)
    # What only `init` reads would be compared, leaf by leaf, at every call.
    rules, init_rules = dataclasses.replace(rules, ragged=None), rules
    inlined = _programs(rules, float(own_beta), plainly)
    on_cpu = _programs(rules, float(own_beta), in_one_kernel)

    def programs_for(*args: Any) -> _Programs:
        return on_cpu if is_alone_on_cpu(*args) else inlined

    # Known once, as every call compares them.
    own_shape = (capacity, 4)
    own_groups = rules.leaves if rules.group_size > 1 else None

    def check_shape(state: ReplayState) -> None:
        if state.rows.shape != own_shape:
            raise ValueError(
                f"state holds {state.rows.shape[:-1]} slots, this buffer has capacity {capacity}"
            )
        groups = None if state.groups is None else state.groups.ids.shape[0]
        if groups != own_groups:
            raise ValueError(
                f"state holds room for {groups} groups, this buffer has group_size "
                f"{rules.group_size} and strategy {rules.strategy!r}"
            )

    def check_state(state: ReplayState) -> None:
        check_shape(state)
        check_sums(state.tree, rules)

    def init(example: chex.ArrayTree) -> ReplayState:
        return init_state(example, rules=init_rules)

    def add(
        state: ReplayState,
        batch: chex.ArrayTree,
        base_priority: jax.Array,
        clock: Scalar,
        *,
        lengths: jax.Array | None = None,
        groups: jax.Array | None = None,
    ) -> tuple[ReplayState, Handles]:
        check_state(state)
        check_batch(state, batch, base_priority, lengths, groups, rules=rules)
        clock = as_clock(clock)
        programs = programs_for(state.rows, batch, base_priority, clock, lengths, groups)
        return programs.add(state, batch, base_priority, clock, lengths, groups)

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
        check_batch_size(batch_size, capacity, rules)
        options = (
            as_clock(clock),
            None if beta is None else as_exponent("beta", beta),
            None if alpha is None else as_exponent("alpha", alpha),
            None if tau is None else as_tau(tau),
        )
        programs = programs_for(state.rows, key, options)
        return programs.sample(state, key, *options, batch_size)

    def update(
        state: ReplayState,
        handles: Handles,
        base_priority: jax.Array,
        clock: Scalar | None = None,
    ) -> ReplayState:
        check_state(state)
        check_one_a_handle(base_priority, handles.index)
        birth = None if clock is None else as_clock(clock)
        # What does not change stays out of the call: each array costs it more than a microsecond.
        changed = programs_for(state.rows, handles, base_priority, birth).update(
            dataclasses.replace(state, data=None), handles, base_priority, birth
        )
        return dataclasses.replace(changed, data=state.data)

    def mark_drawn(state: ReplayState, handles: Handles) -> ReplayState:
        check_state(state)
        return dataclasses.replace(state, rows=_mark_drawn(state.rows, handles))

    def can_sample(state: ReplayState, rows: int) -> jax.Array:
        return leaves_stored(state, rules=rules) * rules.group_size >= rows

    def options(alpha: Scalar | None, tau: Scalar | None) -> tuple[Any, Any]:
        return (
            np.float32(rules.alpha) if alpha is None else as_exponent("alpha", alpha),
            np.float32(rules.tau) if tau is None else as_tau(tau),
        )

    def probabilities(
        state: ReplayState,
        *,
        alpha: Scalar | None = None,
        tau: Scalar | None = None,
    ) -> jax.Array:
        check_state(state)
        return _probabilities(state, *options(alpha, tau), rules=rules)

    def stats(
        state: ReplayState,
        clock: Scalar,
        *,
        alpha: Scalar | None = None,
        tau: Scalar | None = None,
    ) -> ReplayStats:
        check_state(state)
        return _stats(state, as_clock(clock), *options(alpha, tau), rules=rules)

    def retune(state: ReplayState) -> ReplayState:
        check_shape(state)
        return _retune(state, rules=rules)

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
        retune=retune,
        rules=init_rules,
        beta=float(own_beta),
    )


@dataclasses.dataclass(frozen=True)
class _Programs:
    """What is called often, compiled for one set of options.

    Options that every call hands over are hashed and compared at every call, and each number
    that it hands over is moved to the device: so they are part of the program.
    """

    add: Callable[..., tuple[ReplayState, Handles]]
    sample: Callable[..., Sample]
    update: Callable[..., ReplayState]


@functools.cache
def _programs(rules: Rules, own_beta: float, call: Caller) -> _Programs:
    """Makes the programs once, so that buffers with the same options share them."""

    def sample(
        state: ReplayState,
        key: jax.Array,
        clock: jax.Array,
        beta: jax.Array | None,
        alpha: jax.Array | None,
        tau: jax.Array | None,
        batch_size: int,
    ) -> Sample:
        beta = jnp.float32(own_beta) if beta is None else beta
        return draw_sample(
            state, key, clock, beta, alpha, tau, batch_size=batch_size, rules=rules, call=call
        )

    return _Programs(
        add=jax.jit(functools.partial(insert_rows, rules=rules, call=call), donate_argnums=0),
        sample=jax.jit(sample, static_argnums=6),
        update=jax.jit(functools.partial(update_rows, rules=rules, call=call), donate_argnums=0),
    )


_mark_drawn = jax.jit(count_draws, donate_argnums=0)
_retune = jax.jit(retune_tree, static_argnames="rules")


@functools.partial(jax.jit, static_argnames="rules")
def _probabilities(
    state: ReplayState, alpha: jax.Array, tau: jax.Array, *, rules: Rules
) -> jax.Array:
    return jnp.exp(log_leaf_probabilities(state, alpha, tau, rules=rules))


@functools.partial(jax.jit, static_argnames="rules")
def _stats(
    state: ReplayState, clock: jax.Array, alpha: jax.Array, tau: jax.Array, *, rules: Rules
) -> ReplayStats:
    log_probabilities = log_leaf_probabilities(state, alpha, tau, rules=rules)
    return summarise(state, clock, tau, log_probabilities)
