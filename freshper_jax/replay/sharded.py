"""A replay buffer spread over the devices of a mesh axis, with draws as exact as on one device.

Each device keeps a buffer of its own, and adds and updates touch no other. A draw treats the
devices as one more level above their trees: they exchange the logarithms of their masses, age
them to the newest birth of all, and place the same strata over them. So a device gets draws by
its mass, not an even part; the rows then travel to where their place in the batch lies.
"""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from freshper_jax.replay.buffer import ReplayBuffer, make_buffer
from freshper_jax.replay.rules import (
    ONCE_EACH,
    check_batch_size,
    check_count,
    check_one_a_handle,
    check_sums,
)
from freshper_jax.replay.sampling import (
    leaves_stored,
)
from freshper_jax.replay.scalars import Scalar, as_clock, as_exponent, as_tau
from freshper_jax.replay.sharded_draw import Spread, draw_part, log_probabilities_of_part
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

__all__ = ["make_sharded_buffer"]

_STRATEGIES = ("prioritized", "prioritized_without_replacement", "uniform", "groups")

_WHOLE: Any = PartitionSpec()  # the same on all devices


def make_sharded_buffer(*, mesh: Mesh, axis: str, capacity: int, **options: Any) -> ReplayBuffer:
    """Makes a replay buffer of which each device of a mesh axis holds an equal part of the slots.

    Its functions are those that `make_buffer` documents, on global arrays, eagerly or inside the
    caller's `jit`. Probabilities, weights, N, maxima, means and statistics are of all rows. Here
    D is the size of the axis, and device d holds the slots from d C / D on.

    - The state is that of D buffers, stacked: every leaf is `[D, ...]` and lies spread over the
      axis. Over all other axes of the mesh it is replicated.
    - `add`: B is a multiple of D, and the d-th block of B / D rows goes to device d. Each device
      numbers its own rows and makes room among them: the row that goes is the oldest (or least)
      of the device, not of all. Members of a group must come in blocks of the same device, or
      the group is never complete. Insertion `max` takes the largest base priority of all.
    - `sample`: the batch size is a multiple of D, and the batch comes spread over the axis,
      `ess` replicated. The k-th draw is from the k-th of B strata of the mass of all rows, in the
      order of slots. Only the rows drawn travel, and they arrive bit for bit.
    - `update`, `mark_drawn`: the handles are of any size and may lie anywhere; every device sees
      all of them and takes its own. One that names no row counts as stale once.
    - `probabilities`: `[C]`, spread over the axis.
    - `stats` gathers five numbers a row on each device.

    Args:
      mesh: the devices; with axes of type Auto.
      axis: name of one of its axes.
      capacity: C, rows of all devices together, a multiple of D.
      **options: as for `make_buffer`; `token_capacity` too is that of all devices together, a
        multiple of D. Strategies `newest` and `oldest` are not supported: the devices know no
        common order of insertion.

    Raises:
      ValueError: as for `make_buffer`; or the mesh has no such axis, a size is not a multiple of
        D, or the strategy is not supported.
      TypeError: as for `make_buffer`.
      RuntimeError: a function got a state that was given away before.
    """
    if axis not in mesh.shape:
        raise ValueError(f"axis must be one of the mesh, {', '.join(mesh.shape)}, got {axis!r}")
    devices = mesh.shape[axis]
    strategy = options.get("strategy", "prioritized")
    if strategy in ONCE_EACH and strategy not in _STRATEGIES:
        raise ValueError(
            f"strategy must be one of {', '.join(_STRATEGIES)} for a sharded buffer, "
            f"got {strategy!r}"
        )

    def part_of(name: str, value: int) -> int:
        check_count(name, value)
        if value % devices:
            raise ValueError(
                f"{name} must be a multiple of the {devices} devices of axis {axis!r}, got {value}"
            )
        return value // devices

    if options.get("token_capacity") is not None:
        options["token_capacity"] = part_of("token_capacity", options["token_capacity"])
    single = make_buffer(capacity=part_of("capacity", capacity), **options)
    rules = dataclasses.replace(single.rules, ragged=None)
    spread = Spread(mesh, axis, rules)
    init_spread = Spread(mesh, axis, single.rules)

    def check_shape(state: ReplayState) -> None:
        if state.rows.shape != (devices, rules.capacity, 4):
            raise ValueError(
                f"state holds {state.rows.shape[:-1]} slots, this buffer has capacity {capacity} "
                f"over {devices} devices, {(devices, rules.capacity)}"
            )
        groups = None if state.groups is None else state.groups.ids.shape[1]
        if groups != (rules.leaves if rules.group_size > 1 else None):
            raise ValueError(
                f"state holds room for {groups} groups a device, this buffer has group_size "
                f"{rules.group_size} and strategy {rules.strategy!r}"
            )
        own = state.rows
        if isinstance(own, jax.Array) and not isinstance(own, jax.core.Tracer) and own.is_deleted():
            # Given to a compiled program, a deleted array of several devices ends the process.
            raise RuntimeError(
                "state was given away, to add, update or mark_drawn; use the one they return"
            )

    def check_state(state: ReplayState) -> None:
        check_shape(state)
        check_sums(state.tree, rules)

    def init(example: chex.ArrayTree) -> ReplayState:
        leaves, structure = jax.tree.flatten(jax.eval_shape(lambda row: row, example))
        return _init(leaves=tuple(leaves), structure=structure, spread=init_spread)

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
        stored = dataclasses.replace(state, data=jax.tree.map(_without_devices, state.data))
        check_batch(stored, batch, base_priority, lengths, groups, rules=rules)
        part_of("the number of rows of a batch", np.shape(base_priority)[0])
        return _add(state, batch, base_priority, as_clock(clock), lengths, groups, spread=spread)

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
        part_of("batch_size", batch_size)
        check_batch_size(batch_size, capacity, rules)
        return _sample(
            state,
            key,
            as_clock(clock),
            as_exponent("beta", single.beta if beta is None else beta),
            None if alpha is None else as_exponent("alpha", alpha),
            None if tau is None else as_tau(tau),
            batch_size=batch_size,
            spread=spread,
        )

    def update(
        state: ReplayState,
        handles: Handles,
        base_priority: jax.Array,
        clock: Scalar | None = None,
    ) -> ReplayState:
        check_state(state)
        check_one_a_handle(base_priority, handles.index)
        birth = None if clock is None else as_clock(clock)
        changed = _update(_without_data(state), handles, base_priority, birth, spread=spread)
        return dataclasses.replace(changed, data=state.data)

    def mark_drawn(state: ReplayState, handles: Handles) -> ReplayState:
        check_state(state)
        return dataclasses.replace(state, rows=_mark_drawn(state.rows, handles, spread=spread))

    def can_sample(state: ReplayState, rows: int) -> jax.Array:
        stored = jnp.sum(leaves_stored(state, rules=rules), dtype=jnp.int32)
        return stored * rules.group_size >= rows

    def exponents(alpha: Scalar | None, tau: Scalar | None) -> tuple[Any, Any]:
        return (
            np.float32(rules.alpha) if alpha is None else as_exponent("alpha", alpha),
            np.float32(rules.tau) if tau is None else as_tau(tau),
        )

    def probabilities(
        state: ReplayState, *, alpha: Scalar | None = None, tau: Scalar | None = None
    ) -> jax.Array:
        check_state(state)
        return _probabilities(_without_data(state), *exponents(alpha, tau), spread=spread)

    def stats(
        state: ReplayState,
        clock: Scalar,
        *,
        alpha: Scalar | None = None,
        tau: Scalar | None = None,
    ) -> ReplayStats:
        check_state(state)
        now = as_clock(clock)
        return _stats(_without_data(state), now, *exponents(alpha, tau), spread=spread)

    def retune(state: ReplayState) -> ReplayState:
        check_shape(state)
        return dataclasses.replace(_retune(_without_data(state), spread=spread), data=state.data)

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
        rules=single.rules,
        beta=single.beta,
    )


# Compiled here, not in the factory, so that buffers with the same options share programs.
@functools.partial(jax.jit, static_argnames=("leaves", "structure", "spread"))
def _init(*, leaves: tuple[Any, ...], structure: Any, spread: Spread) -> ReplayState:
    def own_part() -> ReplayState:
        return _stack(init_state(jax.tree.unflatten(structure, leaves), rules=spread.rules))

    return spread.on_each_device(own_part, (), spread.split)()


@functools.partial(jax.jit, static_argnames="spread", donate_argnums=0)
def _add(
    state: ReplayState,
    batch: chex.ArrayTree,
    base_priority: jax.Array,
    clock: jax.Array,
    lengths: jax.Array | None,
    groups: jax.Array | None,
    *,
    spread: Spread,
) -> tuple[ReplayState, Handles]:
    def own_part(state: ReplayState, clock: jax.Array, *rows: Any) -> tuple[ReplayState, Handles]:
        batch, base_priority, lengths, groups = rows
        state, handles = insert_rows(
            _unstack(state),
            batch,
            base_priority,
            clock,
            lengths,
            groups,
            rules=spread.rules,
            axis=spread.axis,
        )
        index = handles.index + spread.first_slot()
        return _stack(state), dataclasses.replace(handles, index=index)

    split, whole = spread.split, _WHOLE
    return spread.on_each_device(own_part, (split, whole, split, split, split, split), split)(
        state, clock, batch, base_priority, lengths, groups
    )


@functools.partial(jax.jit, static_argnames=("batch_size", "spread"))
def _sample(
    state: ReplayState,
    key: jax.Array,
    clock: jax.Array,
    beta: jax.Array,
    alpha: jax.Array | None,
    tau: jax.Array | None,
    *,
    batch_size: int,
    spread: Spread,
) -> Sample:
    def own_part(state: ReplayState, *arguments: Any) -> Sample:
        return draw_part(_unstack(state), *arguments, batch_size=batch_size, spread=spread)

    split, whole = spread.split, _WHOLE
    outside = Sample(
        data=split, handles=split, probabilities=split, weights=split, ages=split, ess=whole
    )
    return spread.on_each_device(own_part, (split, whole, whole, whole, whole, whole), outside)(
        state, key, clock, beta, alpha, tau
    )


@functools.partial(jax.jit, static_argnames="spread", donate_argnums=0)
def _update(
    state: ReplayState,
    handles: Handles,
    base_priority: jax.Array,
    clock: jax.Array | None,
    *,
    spread: Spread,
) -> ReplayState:
    def own_part(state: ReplayState, handles: Handles, *arguments: Any) -> ReplayState:
        handles, foreign = _own_handles(handles, spread)
        state = update_rows(_unstack(state), handles, *arguments, rules=spread.rules)
        # To one device or another each handle is its own, so each is counted once.
        stale_updates = state.stale_updates - jnp.sum(foreign, dtype=jnp.int32)
        return _stack(state.counted(stale_updates=stale_updates))

    split, whole = spread.split, _WHOLE
    return spread.on_each_device(own_part, (split, whole, whole, whole), split)(
        state, handles, base_priority, clock
    )


@functools.partial(jax.jit, static_argnames="spread", donate_argnums=0)
def _mark_drawn(rows: jax.Array, handles: Handles, *, spread: Spread) -> jax.Array:
    def own_part(rows: jax.Array, handles: Handles) -> jax.Array:
        return _stack(count_draws(_unstack(rows), _own_handles(handles, spread)[0]))

    return spread.on_each_device(own_part, (spread.split, _WHOLE), spread.split)(rows, handles)


@functools.partial(jax.jit, static_argnames="spread")
def _retune(state: ReplayState, *, spread: Spread) -> ReplayState:
    def own_part(state: ReplayState) -> ReplayState:
        return _stack(retune_tree(_unstack(state), rules=spread.rules))

    return spread.on_each_device(own_part, (spread.split,), spread.split)(state)


@functools.partial(jax.jit, static_argnames="spread")
def _probabilities(
    state: ReplayState, alpha: jax.Array, tau: jax.Array, *, spread: Spread
) -> jax.Array:
    def own_part(state: ReplayState, alpha: jax.Array, tau: jax.Array) -> jax.Array:
        return jnp.exp(log_probabilities_of_part(_unstack(state), alpha, tau, spread))

    split, whole = spread.split, _WHOLE
    return spread.on_each_device(own_part, (split, whole, whole), split)(state, alpha, tau)


@functools.partial(jax.jit, static_argnames="spread")
def _stats(
    state: ReplayState, clock: jax.Array, alpha: jax.Array, tau: jax.Array, *, spread: Spread
) -> ReplayStats:
    def own_part(
        state: ReplayState, clock: jax.Array, alpha: jax.Array, tau: jax.Array
    ) -> ReplayStats:
        state = _unstack(state)
        log_probabilities = log_probabilities_of_part(state, alpha, tau, spread)
        rows, log_probabilities = jax.lax.all_gather(
            (state.rows, log_probabilities), spread.axis, tiled=True
        )
        counts = jax.lax.psum(state.counts, spread.axis)
        of_all = ReplayState(data=None, rows=rows, tree=None, groups=None, counts=counts)
        return summarise(of_all, clock, tau, log_probabilities)

    split, whole = spread.split, _WHOLE
    return spread.on_each_device(own_part, (split, whole, whole, whole), whole)(
        state, clock, alpha, tau
    )


def _own_handles(handles: Handles, spread: Spread) -> tuple[Handles, jax.Array]:
    """Turns handles of all slots into those of this device's part, the others into none.

    Args:
      handles: `[B]`.
      spread: where the buffer lies.

    Returns:
      `[B]` handles; and `[B]` bool, whether the handle is another device's. One that is out of
      every range belongs to the first device or to the last.
    """
    device = jnp.clip(handles.index // spread.rules.capacity, 0, spread.devices - 1)
    foreign = device != jax.lax.axis_index(spread.axis)
    index = handles.index - spread.first_slot()
    return Handles(index=index, generation=jnp.where(foreign, -1, handles.generation)), foreign


def _without_data(state: ReplayState) -> ReplayState:
    """Leaves out what does not change: a call takes longer the more arrays it is given."""
    return dataclasses.replace(state, data=None)


def _unstack(part: Any) -> Any:
    """Drops the axis of devices, which is of size 1 on each."""
    return jax.tree.map(lambda leaf: jnp.squeeze(leaf, 0), part)


def _stack(part: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.expand_dims(leaf, 0), part)


def _without_devices(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    """Describes what each device has of a leaf."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
