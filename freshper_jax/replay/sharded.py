"""A replay buffer spread over the devices of a mesh axis, with draws as exact as on one device.

Each device keeps a buffer of its own, and adds and updates touch no other. A draw treats the
devices as one more level above their trees: they exchange the logarithms of their masses, age
them to the newest birth of all, and place the same strata over them. So a device gets draws by
its mass, not an even part; the rows then travel to where their place in the batch lies.
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
from jax.sharding import Mesh, PartitionSpec

from freshper_jax.replay.buffer import ReplayBuffer, make_buffer
from freshper_jax.replay.draw import bits_for_draws, position, running_shares
from freshper_jax.replay.priority import decay_rate, newest_birth
from freshper_jax.replay.rules import ONCE_EACH, Rules, check_count
from freshper_jax.replay.sampling import (
    collect,
    forest_of,
    leaf_log_masses,
    least_log_mass,
    leaves_stored,
)
from freshper_jax.replay.scalars import Scalar, as_clock, as_exponent, as_tau
from freshper_jax.replay.statistics import summarise
from freshper_jax.replay.storage import (
    by_leaf,
    check_batch,
    count_draws,
    init_state,
    insert_rows,
    members_of,
    retune_tree,
    update_rows,
)
from freshper_jax.replay.tree import draw_leaves
from freshper_jax.replay.types import Handles, ReplayState, ReplayStats, Sample, as_float
from freshper_jax.replay.weights import importance_weights
from freshper_jax.replay.without_replacement import log_inclusion, log_waits

__all__ = ["make_sharded_buffer"]

_STRATEGIES = ("prioritized", "prioritized_without_replacement", "uniform", "groups")

_WHOLE: Any = PartitionSpec()  # the same on all devices
_LARGEST_LAG = 1e30  # finite, so that a rate of zero does not meet infinity


@dataclasses.dataclass(frozen=True)
class _Spread:
    """Where a buffer lies: over the devices of one axis, the same on those of all others.

    `rules` are what each device's own part follows; its capacity is C / D.
    """

    mesh: Mesh
    axis: str
    rules: Rules

    @property
    def devices(self) -> int:
        """How many parts there are, D."""
        return self.mesh.shape[self.axis]

    @property
    def capacity(self) -> int:
        """C, rows of all parts."""
        return self.devices * self.rules.capacity

    @property
    def split(self) -> Any:
        """The partition of what has an axis of devices, or of rows, in front."""
        return PartitionSpec(self.axis)

    def first_slot(self) -> jax.Array:
        """Returns the slot of all, int32, at which the part of this device begins."""
        return jax.lax.axis_index(self.axis) * self.rules.capacity

    def on_each_device(self, function: Callable[..., Any], inside: Any, outside: Any) -> Any:
        """Makes a function of global arrays of one of a device's own parts."""
        # Unchecked: the loops of the replay start from constants, which the check of what
        # differs between devices refuses.
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=inside, out_specs=outside, check_vma=False
        )


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
    spread = _Spread(mesh, axis, rules)
    init_spread = _Spread(mesh, axis, single.rules)

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
        theirs = None if state.tree is None else (state.tree.alpha, state.tree.tau)
        ours = (rules.tree_alpha, rules.tree_tau) if rules.keeps_tree else None
        if theirs != ours:
            raise ValueError(
                f"state holds sums for (alpha, tau) = {theirs}, this buffer wants {ours}; "
                "call its retune(state) first"
            )

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
        if rules.strategy in ONCE_EACH and batch_size > capacity:
            raise ValueError(
                f"batch_size must be at most the capacity for strategy {rules.strategy!r}, "
                f"which takes no row twice; got {batch_size} for {capacity} rows"
            )
        if batch_size % rules.group_size:
            raise ValueError(
                f"batch_size must be a multiple of group_size {rules.group_size}, got {batch_size}"
            )
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
        if np.shape(base_priority) != handles.index.shape:
            raise ValueError(
                f"base_priority has shape {np.shape(base_priority)}, "
                f"expected one value a handle, {handles.index.shape}"
            )
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
def _init(*, leaves: tuple[Any, ...], structure: Any, spread: _Spread) -> ReplayState:
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
    spread: _Spread,
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
    spread: _Spread,
) -> Sample:
    def own_part(state: ReplayState, *arguments: Any) -> Sample:
        return _draw_part(_unstack(state), *arguments, batch_size=batch_size, spread=spread)

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
    spread: _Spread,
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
def _mark_drawn(rows: jax.Array, handles: Handles, *, spread: _Spread) -> jax.Array:
    def own_part(rows: jax.Array, handles: Handles) -> jax.Array:
        return _stack(count_draws(_unstack(rows), _own_handles(handles, spread)[0]))

    return spread.on_each_device(own_part, (spread.split, _WHOLE), spread.split)(rows, handles)


@functools.partial(jax.jit, static_argnames="spread")
def _retune(state: ReplayState, *, spread: _Spread) -> ReplayState:
    def own_part(state: ReplayState) -> ReplayState:
        return _stack(retune_tree(_unstack(state), rules=spread.rules))

    return spread.on_each_device(own_part, (spread.split,), spread.split)(state)


@functools.partial(jax.jit, static_argnames="spread")
def _probabilities(
    state: ReplayState, alpha: jax.Array, tau: jax.Array, *, spread: _Spread
) -> jax.Array:
    def own_part(state: ReplayState, alpha: jax.Array, tau: jax.Array) -> jax.Array:
        return jnp.exp(_log_probabilities(_unstack(state), alpha, tau, spread))

    split, whole = spread.split, _WHOLE
    return spread.on_each_device(own_part, (split, whole, whole), split)(state, alpha, tau)


@functools.partial(jax.jit, static_argnames="spread")
def _stats(
    state: ReplayState, clock: jax.Array, alpha: jax.Array, tau: jax.Array, *, spread: _Spread
) -> ReplayStats:
    def own_part(
        state: ReplayState, clock: jax.Array, alpha: jax.Array, tau: jax.Array
    ) -> ReplayStats:
        state = _unstack(state)
        log_probabilities = _log_probabilities(state, alpha, tau, spread)
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


def _draw_part(
    state: ReplayState,
    key: jax.Array,
    clock: jax.Array,
    beta: jax.Array,
    alpha: jax.Array | None,
    tau: jax.Array | None,
    *,
    batch_size: int,
    spread: _Spread,
) -> Sample:
    """Draws the whole batch, reads what lies on this device and returns the part that goes here.

    Args:
      state: this device's own.
      key: typed PRNG key, the same on all devices; it is consumed.
      clock: int32 scalar.
      beta: float32 scalar >= 0.
      alpha: float32 scalar >= 0 to use in place of the buffer's own, None for that.
      tau: float32 scalar > 0, likewise.
      batch_size: B, of all devices.
      spread: where the buffer lies.

    Returns:
      B / D places of the sample.
    """
    rules, axis = spread.rules, spread.axis
    draw = _draw_once_each if rules.strategy in ONCE_EACH else _draw_stratified
    drawn = draw(state, key, alpha, tau, draws=batch_size // rules.group_size, spread=spread)
    weights = importance_weights(
        drawn.log_shares,
        drawn.valid,
        jax.lax.psum(leaves_stored(state, rules=rules), axis),
        beta,
        normaliser=rules.weight_normaliser,
        least_log_probability=drawn.least_log_share,
    )
    chances = jnp.exp(drawn.log_chances)
    sample = collect(
        state, clock, drawn.slots, drawn.rows, drawn.valid, chances, weights, rules=rules
    )
    index = sample.handles.index + spread.first_slot()
    places = batch_size // spread.devices
    first_place = jax.lax.axis_index(axis) * places

    def block(values: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(values, first_place, places)

    data, handles, ages = _hand_out(
        (sample.data, dataclasses.replace(sample.handles, index=index), sample.ages),
        jnp.repeat(drawn.own, rules.group_size),
        axis,
    )
    return Sample(
        data=data,
        handles=handles,
        probabilities=block(sample.probabilities),
        weights=block(sample.weights),
        ages=ages,
        ess=sample.ess,
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Drawn:
    """G draws of the whole batch; all but `slots`, `rows`, `own` is the same on every device.

    | field           | shape     | meaning                                                    |
    |-----------------|-----------|------------------------------------------------------------|
    | slots           | G int32   | those of the leaf; for groups `[G, g]`                     |
    | rows            | G, 4      | the state's rows there; for groups `[G, g, 4]`             |
    | own             | G bool    | whether the draw is of this device; true on just one       |
    | valid           | G bool    | false where nothing was drawn                              |
    | log_chances     | G float32 | logarithms of what the sample calls probabilities          |
    | log_shares      | G float32 | logarithms of P, or of what stands for it in the weights   |
    | least_log_share | float32   | the least of them that any row could have, for `buffer_max` |
    """

    slots: jax.Array
    rows: jax.Array
    own: jax.Array
    valid: jax.Array
    log_chances: jax.Array
    log_shares: jax.Array
    least_log_share: jax.Array


def _draw_stratified(
    state: ReplayState,
    key: jax.Array,
    alpha: jax.Array | None,
    tau: jax.Array | None,
    *,
    draws: int,
    spread: _Spread,
) -> _Drawn:
    """Draws with replacement, the k-th from the k-th stratum of the mass of all devices."""
    rules, axis = spread.rules, spread.axis
    alpha, tau, forest = forest_of(state, alpha, tau, rules=rules)
    log_masses, births = jax.lax.all_gather((forest.log_mass, forest.newest), axis)
    newest = newest_birth(births, log_masses > -jnp.inf)
    lag = jnp.minimum((newest - births).astype(jnp.float32) * decay_rate(alpha, tau), _LARGEST_LAG)
    aged = jnp.where(log_masses > -jnp.inf, log_masses - lag, -jnp.inf)
    largest = jnp.max(aged)
    some = largest > -jnp.inf
    shares = jnp.exp(aged - jnp.where(some, largest, 0.0))
    log_mass = largest + jnp.log(jnp.maximum(jnp.sum(shares), 1.0))

    device, offset, span, bits = _place_strata(key, shares, draws)
    own = device == jax.lax.axis_index(axis)
    leaf = draw_leaves(forest, jnp.where(own, offset, 0), jnp.where(own, span, 1), bits)
    slots = members_of(leaf, rules)
    rows = state.rows.at[slots].get(mode="promise_in_bounds")
    masses = leaf_log_masses(as_float(rows[..., 0]), rows[..., 1], newest, alpha, tau, rules=rules)
    log_probabilities = _from_owner(jnp.where(some, masses - log_mass, 0.0), own, axis)
    least = jnp.float32(0.0)
    if rules.weight_normaliser == "buffer_max":
        least = least_log_mass(state, newest, alpha, tau, rules=rules)
        least = jax.lax.pmin(least, axis) - log_mass
    return _Drawn(
        slots=slots,
        rows=rows,
        own=own,
        valid=jnp.full((draws,), some),
        log_chances=log_probabilities,
        log_shares=log_probabilities,
        least_log_share=least,
    )


def _place_strata(
    key: jax.Array, shares: jax.Array, draws: int
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """Places strata of equal mass over the devices, in order.

    Args:
      key: typed PRNG key, the same on all devices; it is consumed.
      shares: `[D]` float32 masses, the largest 1, or all 0.
      draws: G.

    Returns:
      `[G]` int32, the device of each; `[G]` int32, its unit inside the device; `[G]` int32, the
      units of the device; and the random bits for the descent from there.
    """
    strata = jnp.arange(draws, dtype=jnp.int32)
    span = jnp.full_like(strata, draws)
    if shares.shape[0] == 1:
        # Just as a buffer on one device draws.
        return jnp.zeros_like(strata), strata, span, bits_for_draws(key, draws)
    above, below = jax.random.split(key)
    ends = running_shares(shares[:, None], jnp.sum(shares)[None])[0]
    place, _ = position(
        strata, span, jnp.full_like(strata, ends[-1]), bits_for_draws(above, draws)[0]
    )
    device = jnp.sum(ends[None, :] <= place[:, None], axis=1, dtype=jnp.int32)
    starts = jnp.concatenate([jnp.zeros((1,), jnp.int32), ends[:-1]])
    start = starts[device]
    # With no mass at all there is no unit, and nothing will be descended.
    units = jnp.maximum(ends[device] - start, 1)
    return device, place - start, units, bits_for_draws(below, draws)


def _draw_once_each(
    state: ReplayState,
    key: jax.Array,
    alpha: jax.Array | None,
    tau: jax.Array | None,
    *,
    draws: int,
    spread: _Spread,
) -> _Drawn:
    """Draws the rows of all devices that wait the least: one more than wanted is on offer."""
    rules, axis = spread.rules, spread.axis
    alpha = jnp.float32(rules.alpha) if alpha is None else alpha
    tau = jnp.float32(rules.tau) if tau is None else tau
    log_masses = _log_masses(state, alpha, tau, spread)
    me = jax.lax.axis_index(axis)
    waits = log_waits(key if spread.devices == 1 else jax.random.fold_in(key, me), log_masses)
    offered = min(draws + 1, rules.capacity)
    soonest, leaves = jax.lax.top_k(-waits, offered)
    of_all = jax.lax.all_gather(soonest, axis, tiled=True)
    later, first = jax.lax.top_k(of_all, min(draws + 1, of_all.shape[0]))
    log_time = -later[draws] if draws < spread.capacity else jnp.float32(jnp.inf)

    valid, first = later[:draws] > -jnp.inf, first[:draws].astype(jnp.int32)
    own = first // offered == me
    leaf = leaves[first % offered].astype(jnp.int32)
    log_chances = log_inclusion(jnp.where(valid & own, log_masses[leaf], 0.0), log_time)
    log_chances = _from_owner(log_chances, own, axis)
    size = jax.lax.psum(state.size, axis)
    # A chance of being in the batch stands where B times P does in a draw with replacement.
    log_size = jnp.log(jnp.maximum(jnp.minimum(size, draws), 1).astype(jnp.float32))
    least = jnp.float32(0.0)
    if rules.weight_normaliser == "buffer_max":
        lightest = jnp.min(jnp.where(log_masses > -jnp.inf, log_masses, jnp.inf))
        lightest = jax.lax.pmin(lightest, axis)
        least = log_inclusion(jnp.where(size > 0, lightest, 0.0), log_time) - log_size
    return _Drawn(
        slots=leaf,
        rows=state.rows.at[leaf].get(mode="promise_in_bounds"),
        own=own,
        valid=valid,
        log_chances=log_chances,
        log_shares=jnp.where(valid, log_chances - log_size, 0.0),
        least_log_share=least,
    )


def _log_masses(state: ReplayState, alpha: jax.Array, tau: jax.Array, spread: _Spread) -> jax.Array:
    """Computes the logarithms of the masses of this device's leaves, as all devices count them."""
    newest = newest_birth(state.birth, state.generation >= 0)
    births, sizes = jax.lax.all_gather((newest, state.size), spread.axis)
    if spread.rules.strategy == "uniform":
        alpha, tau = jnp.float32(0.0), jnp.float32(math.inf)
    newest = newest_birth(births, sizes > 0)
    return leaf_log_masses(*by_leaf(state, spread.rules), newest, alpha, tau, rules=spread.rules)


def _log_probabilities(
    state: ReplayState, alpha: jax.Array, tau: jax.Array, spread: _Spread
) -> jax.Array:
    """Computes log P of this device's leaves; with those of all others the P sum to 1."""
    log_masses = _log_masses(state, alpha, tau, spread)
    largest = jax.lax.pmax(jnp.max(log_masses), spread.axis)
    largest = jnp.where(largest > -jnp.inf, largest, 0.0)
    total = jax.lax.psum(jnp.sum(jnp.exp(log_masses - largest)), spread.axis)
    return log_masses - (largest + jnp.log(jnp.maximum(total, 1.0)))


def _from_owner(values: jax.Array, own: jax.Array, axis: str) -> jax.Array:
    """Gives all devices each of the `[G]` values as the device has it that owns the place."""
    return jax.lax.psum(jnp.where(own, values, 0.0), axis)


def _hand_out(rows: chex.ArrayTree, own: jax.Array, axis: str) -> chex.ArrayTree:
    """Hands each device its block of rows, as they are on the device that owns each.

    Args:
      rows: a pytree with a leading axis B; only what is owned is read.
      own: `[B]` bool, true on one device for each row.
      axis: the mesh axis.

    Returns:
      The rows, bit for bit, with a leading axis B / D.
    """

    def one_leaf(values: jax.Array) -> jax.Array:
        # A sum of one integer and zeros is that integer, while a float might lose its bits.
        bits = _to_bits(values)
        mask = own.reshape(own.shape + (1,) * (bits.ndim - 1))
        bits = jnp.where(mask, bits, jnp.zeros_like(bits))
        return _from_bits(jax.lax.psum_scatter(bits, axis, tiled=True), values)

    return jax.tree.map(one_leaf, rows)


def _to_bits(values: jax.Array) -> jax.Array:
    """Turns values of any dtype into unsigned integers of the same bits."""
    if jnp.issubdtype(values.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(values)
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        values = jnp.stack([jnp.real(values), jnp.imag(values)], axis=-1)
    if values.dtype == jnp.bool_:
        return values.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(values, jnp.dtype(f"uint{8 * values.dtype.itemsize}"))


def _from_bits(bits: jax.Array, like: jax.Array) -> jax.Array:
    """Undoes `_to_bits` for values of the dtype of `like`."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(like))
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        parts = jax.lax.bitcast_convert_type(bits, jnp.finfo(like.dtype).dtype)
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    if like.dtype == jnp.bool_:
        return bits.astype(jnp.bool_)
    return jax.lax.bitcast_convert_type(bits, like.dtype)


def _own_handles(handles: Handles, spread: _Spread) -> tuple[Handles, jax.Array]:
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
