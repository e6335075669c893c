"""The draw of a sharded buffer: devices exchange masses, place strata over them, hand out rows."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from freshper_jax.replay.draw import bits_for_draws, position, running_shares
from freshper_jax.replay.leaves import read_at
from freshper_jax.replay.priority import decay_rate, newest_birth
from freshper_jax.replay.rules import ONCE_EACH, Rules
from freshper_jax.replay.sampling import (
    collect,
    forest_of,
    leaf_log_masses,
    least_log_mass,
    leaves_stored,
)
from freshper_jax.replay.storage import by_leaf, members_of
from freshper_jax.replay.tree import draw_leaves
from freshper_jax.replay.types import ReplayState, Sample, as_float
from freshper_jax.replay.weights import importance_weights
from freshper_jax.replay.without_replacement import log_inclusion, log_waits

__all__ = ["Spread", "draw_part", "log_probabilities_of_part"]

_LARGEST_LAG = 1e30  # finite, so that a rate of zero does not meet infinity


@dataclasses.dataclass(frozen=True)
class Spread:
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


def draw_part(
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
    spread: Spread,
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
    rows = read_at(state.rows, slots)
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
    spread: Spread,
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
        rows=read_at(state.rows, leaf),
        own=own,
        valid=valid,
        log_chances=log_chances,
        log_shares=jnp.where(valid, log_chances - log_size, 0.0),
        least_log_share=least,
    )


def _log_masses(state: ReplayState, alpha: jax.Array, tau: jax.Array, spread: Spread) -> jax.Array:
    """Computes the logarithms of the masses of this device's leaves, as all devices count them."""
    newest = newest_birth(state.birth, state.generation >= 0)
    births, sizes = jax.lax.all_gather((newest, state.size), spread.axis)
    if spread.rules.strategy == "uniform":
        alpha, tau = jnp.float32(0.0), jnp.float32(math.inf)
    newest = newest_birth(births, sizes > 0)
    return leaf_log_masses(*by_leaf(state, spread.rules), newest, alpha, tau, rules=spread.rules)


def log_probabilities_of_part(
    state: ReplayState, alpha: jax.Array, tau: jax.Array, spread: Spread
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
