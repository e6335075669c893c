"""A buffer spread over devices draws, weighs and updates as one buffer of all their rows."""

import dataclasses
import functools
import math
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import NamedSharding, PartitionSpec

from freshper_jax import replay
from freshper_jax.models.sharding import make_mesh
from freshper_jax.replay.leaves import as_held
from tests.replay.oracle import Oracle, pairs
from tests.replay.test_draw import chi_square

DEVICES, PART, ROWS, BATCH = 8, 24, 40, 16
CAPACITY = DEVICES * PART
TAU, ALPHA = 9.0, 0.6
EMPTY = 3  # a device without rows
# Masses of devices, alike but for these, are a factor of 1e6 apart.
SCALES = np.random.default_rng(1).permutation(np.geomspace(1e-5, 1e5, DEVICES))
NORMALISERS = ["batch_max", "buffer_max", "mean", "none"]
EXAMPLE = {
    "value": np.zeros((), np.float32),
    "wide": np.zeros((37,), np.float32),
}


@functools.cache
def mesh_of(**axes):
    return make_mesh(**(axes or {"data": DEVICES}))


@functools.cache
def make(**options):
    options = {"mesh": mesh_of(), "axis": "data", "capacity": CAPACITY, "tau": TAU} | options
    return replay.make_sharded_buffer(**options)


class Union:
    """One plain buffer a device; their rows are asked for as those of one."""

    def __init__(self):
        self.parts = [Oracle(PART) for _ in range(DEVICES)]

    def add(self, values, bases, clock):
        handles = []
        blocks = zip(np.split(values, DEVICES), np.split(bases, DEVICES), strict=True)
        for device, (part, block) in enumerate(zip(self.parts, blocks, strict=True)):
            handles += [(device * PART + slot, number) for slot, number in part.add(*block, clock)]
        return handles

    def update(self, handles, bases, clock=None):
        for (index, number), base in zip(handles, bases, strict=True):
            part = self.parts[index // PART]
            part.update([(index % PART, number)], [base], clock)

    def whole(self):
        whole = Oracle(CAPACITY)
        for device, part in enumerate(self.parts):
            for row in part.rows:
                whole.rows.append(dataclasses.replace(row, slot=device * PART + row.slot))
        return whole


def batch_of(seed, rows=ROWS):
    """Each row has its own number as a value, so rows say which they are."""
    wide = np.random.default_rng(seed).normal(size=(rows, 37)).astype(np.float32)
    return {"value": (seed * rows + np.arange(rows)).astype(np.float32), "wide": wide}


@functools.cache
def filled():
    """A full buffer of unequal devices and births, one of them empty; not to be given away."""
    buffer, union, rng = make(), Union(), np.random.default_rng(0)
    state = buffer.init(EXAMPLE)
    for turn in range(6):
        bases = (np.exp(rng.normal(0, 1, ROWS)) * np.repeat(SCALES, 5)).astype(np.float32)
        batch = batch_of(turn)
        state, handles = buffer.add(state, batch, bases, 3 * turn)
        assert pairs(handles) == union.add(batch["value"], bases, 3 * turn)
    again = np.arange(0, ROWS, 3)
    reborn = jax.tree.map(lambda leaf: leaf[again], handles)
    state = buffer.update(state, reborn, bases[again] * 2, 27)
    union.update(pairs(reborn), bases[again] * 2, 27)
    union.parts[EMPTY].rows = []
    return emptied(buffer, state, [EMPTY]), union.whole()


@functools.partial(jax.jit, static_argnums=0)
def _mixed(buffer, state, empty):
    def choose(leaf, new):
        return jnp.where(empty.reshape(DEVICES, *[1] * (leaf.ndim - 1)), new, leaf)

    return jax.tree.map(choose, state, buffer.init(EXAMPLE))


def emptied(buffer, state, devices):
    """Takes the parts of some devices from a new buffer."""
    return _mixed(buffer, state, np.isin(np.arange(DEVICES), devices))


@jax.jit
def copy_of(state):
    return jax.tree.map(jnp.copy, state)


def rows_of(state, field):
    return np.asarray(getattr(state, field)).reshape(CAPACITY)


def assert_equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def assert_bits_equal(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def lies_on(leaf, spec):
    return leaf.sharding.is_equivalent_to(NamedSharding(mesh_of(), spec), leaf.ndim)


def test_state_and_batch_lie_spread_over_the_axis():
    state, _ = filled()
    split = PartitionSpec("data")
    assert all(lies_on(leaf, split) and len(leaf) == DEVICES for leaf in jax.tree.leaves(state))
    sample = make().sample(state, jax.random.key(0), BATCH, 30)
    assert lies_on(sample.ess, PartitionSpec())
    leaves = jax.tree.leaves(dataclasses.replace(sample, ess=None))
    assert all(lies_on(leaf, split) and len(leaf) == BATCH for leaf in leaves)
    assert lies_on(make().probabilities(state), split)
    planned = jax.eval_shape(make().init, EXAMPLE)
    assert replay.state_nbytes(planned) == replay.state_nbytes(state)


@pytest.mark.parametrize(
    ("alpha", "tau"),
    [(None, None), (0.0, 2.5), (0.0, math.inf), (0.6, math.inf), (1.0, 2.5), (1.0, 90.0)],
)
def test_probabilities_are_of_all_rows(alpha, tau):
    state, union = filled()
    buffer = make()
    expected = union.probabilities(
        ALPHA if alpha is None else alpha, TAU if tau is None else tau, 30
    )
    assert np.count_nonzero(expected) == CAPACITY - PART
    actual = buffer.probabilities(state, alpha=alpha, tau=tau)
    np.testing.assert_allclose(actual, expected, rtol=5e-5)
    assert float(actual.sum()) == pytest.approx(1, abs=1e-5)
    sample = buffer.sample(state, jax.random.key(0), BATCH, 30, 1.0, alpha=alpha, tau=tau)
    slots = np.asarray(sample.handles.index)
    np.testing.assert_allclose(sample.probabilities, expected[slots], rtol=5e-5)
    weights = union.weights(expected, slots, 1.0, "batch_max")
    np.testing.assert_allclose(sample.weights, weights, rtol=1e-4)


def test_draws_pass_chi_square(get_key):
    state, union = filled()
    keys = jax.random.split(get_key(), 25_600)
    draw = jax.jit(jax.vmap(lambda key: make().sample(state, key, DEVICES, 30).handles.index))
    counts = np.bincount(np.asarray(draw(keys)).ravel(), minlength=CAPACITY)
    expected = union.probabilities(ALPHA, TAU, 30)
    assert not counts[expected == 0].any()
    assert chi_square(counts, expected) > 1e-3
    by_device = expected.reshape(DEVICES, PART).sum(1)
    assert (by_device > 0).sum() == DEVICES - 1
    assert by_device[by_device > 0].max() > 1e5 * by_device[by_device > 0].min()
    assert chi_square(counts.reshape(DEVICES, PART).sum(1), by_device) > 1e-3


def test_each_draw_is_from_its_own_stratum_of_all_rows(get_key):
    state, union = filled()
    ends = np.cumsum(union.probabilities(ALPHA, TAU, 30))
    starts = np.concatenate([[0.0], ends[:-1]])
    strata = np.arange(BATCH) / BATCH
    for _ in range(20):
        slots = np.asarray(make().sample(state, get_key(), BATCH, 30).handles.index)
        assert (ends[slots] > strata - 1e-6).all()
        assert (starts[slots] < strata + 1 / BATCH + 1e-6).all()


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_weights_are_of_all_rows(get_key, normaliser):
    state, union = filled()
    probabilities = union.probabilities(ALPHA, TAU, 30)
    births = {row.slot: row.birth for row in union.rows}
    for beta in (0.0, 0.4, 1.0):
        sample = make(weight_normaliser=normaliser).sample(state, get_key(), BATCH, 30, beta)
        slots = np.asarray(sample.handles.index)
        assert None not in map(union.find, pairs(sample.handles))
        expected = union.weights(probabilities, slots, beta, normaliser)
        np.testing.assert_allclose(sample.weights, expected, rtol=1e-4)
        ess = expected.sum() ** 2 / (expected**2).sum()
        assert float(sample.ess) == pytest.approx(ess, rel=1e-4)
        np.testing.assert_array_equal(sample.ages, [30 - births[slot] for slot in slots])


def test_rows_are_those_of_their_handles(get_key):
    state, union = filled()
    sample = make().sample(state, get_key(), BATCH, 30, alpha=0.0, tau=TAU)
    assert len({int(index) // PART for index in sample.handles.index}) == DEVICES - 1
    values = [union.find(handle).value for handle in pairs(sample.handles)]
    np.testing.assert_array_equal(sample.data["value"], values)
    added = np.concatenate([batch_of(turn)["wide"] for turn in range(6)])
    np.testing.assert_array_equal(sample.data["wide"], added[np.array(values, int)])


def test_rows_arrive_bit_for_bit(get_key):
    # Random bits, so NaNs of all kinds too; and what is nothing in a sum of floats.
    state, rng = filled()[0], np.random.default_rng(2)
    bits = rng.integers(0, 256, (DEVICES, PART, 16), np.uint8)
    bits[..., 4:8], bits[..., 8:12] = [0, 0, 0, 128], [69, 35, 193, 127]
    kinds = ["float32", "complex64", "float16", "bfloat16", "float8_e4m3fn"]
    kinds += ["int8", "int32", "uint8", "uint16", "uint32"]
    data = {kind: bits.view(jnp.dtype(kind)) for kind in kinds}
    data["bool"] = bits > 127
    data["key"] = jax.random.split(jax.random.key(3), (DEVICES, PART))
    dtypes = tuple(leaf.dtype for leaf in jax.tree.leaves(data))
    state = dataclasses.replace(state, data=jax.tree.map(as_held, data), dtypes=dtypes)
    sample = make().sample(state, get_key(), DEVICES, 0)
    index = np.asarray(sample.handles.index)
    expected = jax.tree.map(lambda leaf: leaf[index // PART, index % PART], data)
    for drawn in (sample.data, expected):
        drawn["key"] = jax.random.key_data(drawn["key"])
    assert np.signbit(sample.data["float32"][:, 1]).all()
    assert_bits_equal(sample.data, expected)


def test_update_changes_the_rows_of_its_handles_only(get_key):
    state, union = filled()
    buffer = make()
    drawn = buffer.sample(state, get_key(), BATCH, 30, alpha=0.1, tau=TAU).handles
    assert None not in map(union.find, pairs(drawn))
    # Of duplicates the last one wins; the last six name no row, or one that is gone.
    index = np.concatenate([drawn.index, drawn.index, [-1, CAPACITY, PART * EMPTY, 5, 7, 7]])
    generation = np.concatenate([drawn.generation, drawn.generation, [0, 0, 0, -1, 2, 1 << 20]])
    bases = np.arange(1, len(index) + 1, dtype=np.float32)
    handles = replay.Handles(jnp.asarray(index, jnp.int32), jnp.asarray(generation, jnp.int32))
    changed = buffer.update(copy_of(state), handles, bases)
    expected = rows_of(state, "log_base").copy()
    for slot, base in zip(index[: 2 * BATCH], bases, strict=False):
        expected[slot] = np.log(base)
    np.testing.assert_allclose(rows_of(changed, "log_base"), expected, rtol=1e-6, atol=1e-6)
    for field in ("birth", "generation", "draws"):
        assert_equal(rows_of(changed, field), rows_of(state, field))
    assert_bits_equal(changed.data, state.data)
    stale = buffer.stats(changed, 30).stale_updates - buffer.stats(state, 30).stale_updates
    assert int(stale) == 6
    logs = np.where(
        rows_of(state, "generation") >= 0,
        ALPHA * (expected.astype(np.float64) + rows_of(state, "birth") / TAU),
        -np.inf,
    )
    shares = np.exp(logs - logs.max())
    np.testing.assert_allclose(buffer.probabilities(changed), shares / shares.sum(), rtol=5e-5)
    # Draws go by the new masses too.
    sample = buffer.sample(changed, get_key(), BATCH, 30)
    slots = np.asarray(sample.handles.index)
    np.testing.assert_allclose(sample.probabilities, (shares / shares.sum())[slots], rtol=5e-5)


def test_handles_of_a_sample_may_lie_anywhere(get_key):
    state, _ = filled()
    buffer = make()
    drawn = buffer.sample(state, get_key(), BATCH, 30).handles
    here = jax.tree.map(np.asarray, drawn)
    one, other = (
        buffer.update(copy_of(state), handles, np.full(BATCH, 2.0)) for handles in (drawn, here)
    )
    assert_bits_equal(one, other)
    one = buffer.mark_drawn(one, drawn)
    draws = np.bincount(here.index, minlength=CAPACITY)
    np.testing.assert_array_equal(rows_of(one, "draws"), draws)
    stats = buffer.stats(one, 30)
    filled_rows = rows_of(one, "generation") >= 0
    assert float(stats.never_drawn_share) == pytest.approx((draws[filled_rows] == 0).mean())
    assert float(stats.mean_draws) == pytest.approx(BATCH / filled_rows.sum())
    assert int(stats.draw_quantiles[4]) == draws.max()


def test_statistics_are_of_all_rows():
    state, union = filled()
    stats = make().stats(state, 30)
    ages = np.array([30 - row.birth for row in union.rows])
    levels = [0, 0.25, 0.5, 0.75, 1]
    assert int(stats.size) == CAPACITY - PART
    assert int(stats.evicted) == (DEVICES - 1) * (30 - PART)
    assert float(stats.evicted_undrawn_share) == 1
    np.testing.assert_array_equal(stats.age_quantiles, np.quantile(ages, levels, method="lower"))
    freshness = np.quantile(np.exp(-ages / TAU), levels, method="lower")
    np.testing.assert_allclose(stats.freshness_quantiles, freshness, rtol=1e-6)
    probabilities = union.probabilities(ALPHA, TAU, 30)
    probabilities = probabilities[probabilities > 0]
    entropy = -(probabilities * np.log(probabilities)).sum()
    np.testing.assert_allclose(stats.priority_entropy, entropy, rtol=1e-5)
    np.testing.assert_allclose(stats.priority_ess, 1 / (probabilities**2).sum(), rtol=1e-4)


def test_an_empty_buffer():
    buffer = make()
    state = buffer.init(EXAMPLE)
    sample = buffer.sample(state, jax.random.key(0), BATCH, 30)
    np.testing.assert_array_equal(sample.handles.generation, np.full(BATCH, -1))
    for values in (sample.weights, sample.probabilities, sample.ages):
        np.testing.assert_array_equal(values, np.zeros(BATCH))
    assert float(sample.ess) == 0
    np.testing.assert_array_equal(buffer.probabilities(state), np.zeros(CAPACITY))
    for name, value in vars(buffer.stats(state, 30)).items():
        np.testing.assert_array_equal(value, np.zeros(value.shape), err_msg=name)
    assert not bool(buffer.can_sample(state, 1))
    none = make(weight_normaliser="buffer_max").sample(state, jax.random.key(0), BATCH, 30)
    np.testing.assert_array_equal(none.weights, np.zeros(BATCH))


@pytest.mark.parametrize("device", [0, 5, 7])
def test_one_device_has_all_rows(get_key, device):
    state = emptied(make(), filled()[0], [other for other in range(8) if other != device])
    sample = make().sample(state, get_key(), BATCH, 30)
    np.testing.assert_array_equal(sample.handles.index // PART, np.full(BATCH, device))
    live = rows_of(state, "generation")[sample.handles.index]
    np.testing.assert_array_equal(sample.handles.generation, live)
    probabilities = np.asarray(make().probabilities(state))
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(probabilities[sample.handles.index], sample.probabilities, rtol=5e-5)
    assert bool(make().can_sample(state, PART))
    assert not bool(make().can_sample(state, PART + 1))


def test_a_clock_that_wraps_between_devices():
    # Device 0 has no row, and its births, which mean nothing, are far from all others.
    buffer, late = make(), (1 << 31) - 2
    states = [
        buffer.add(buffer.init(EXAMPLE), batch_of(0), np.ones(ROWS), clock)[0]
        for clock in (late, late + 5 - (1 << 32))
    ]
    state = jax.tree.map(lambda old, new: old.at[4:].set(new[4:]), *states)
    state = emptied(buffer, state, [0])
    clock = late + 7 - (1 << 32)
    old, new = 15, 20
    expected = np.where(np.arange(DEVICES) < 4, np.exp(-ALPHA * 5 / TAU), 1.0)
    expected[0] = 0
    expected = np.repeat(expected / (old * expected[1] + new), PART).reshape(DEVICES, PART)
    expected[:, 5:] = 0
    np.testing.assert_allclose(buffer.probabilities(state), expected.ravel(), rtol=1e-5)
    sample = buffer.sample(state, jax.random.key(1), BATCH, clock)
    index = np.asarray(sample.handles.index)
    np.testing.assert_array_equal(sample.ages, np.where(index < 4 * PART, 7, 2))
    np.testing.assert_allclose(sample.probabilities, expected.ravel()[index], rtol=1e-5)


@pytest.mark.parametrize("strategy", ["prioritized", "prioritized_without_replacement"])
def test_on_one_device_it_is_the_buffer_of_one(get_key, strategy):
    options = {"capacity": PART, "strategy": strategy, "tau": TAU, "weight_normaliser": "mean"}
    spread = make(mesh=mesh_of(data=1), **options)
    one = replay.make_buffer(**options)
    state = spread.retune(jax.tree.map(lambda leaf: np.asarray(leaf[5:6]), filled()[0]))
    own = jax.tree.map(lambda leaf: leaf[0], state)
    key = get_key()
    sample = spread.sample(state, key, 6, 30, 0.7)
    expected = one.sample(own, key, 6, 30, 0.7)
    assert_bits_equal((sample.data, sample.handles), (expected.data, expected.handles))
    chex.assert_trees_all_close(sample, expected, rtol=1e-6)
    np.testing.assert_allclose(spread.probabilities(state), one.probabilities(own), rtol=1e-6)


def test_uniform_draws_are_over_all_rows():
    state, _ = filled()
    uniform = make(strategy="uniform", weight_normaliser="none")
    with pytest.raises(ValueError, match="retune"):
        uniform.sample(state, jax.random.key(0), BATCH, 30)
    state = uniform.retune(state)
    stored = rows_of(state, "generation") >= 0
    expected = np.where(stored, 1 / stored.sum(), 0)
    np.testing.assert_allclose(uniform.probabilities(state), expected, rtol=1e-5)
    sample = uniform.sample(state, jax.random.key(0), BATCH, 30)
    np.testing.assert_allclose(sample.probabilities, np.full(BATCH, 1 / stored.sum()), rtol=1e-5)
    np.testing.assert_allclose(sample.weights, np.ones(BATCH), rtol=1e-5)


@functools.cache
def without_replacement(normaliser="none"):
    return make(strategy="prioritized_without_replacement", weight_normaliser=normaliser)


def test_draws_without_replacement_come_one_after_another(get_key):
    state, union = filled()
    buffer = without_replacement()
    state = buffer.retune(state)
    expected = union.probabilities(ALPHA, TAU, 30)
    keys = jax.random.split(get_key(), 25_600)
    samples = jax.jit(
        jax.vmap(
            lambda key: dataclasses.replace(buffer.sample(state, key, DEVICES, 30, 1.0), data=None)
        )
    )(keys)
    slots = np.asarray(samples.handles.index)
    assert (np.diff(np.sort(slots), axis=1) > 0).all()
    assert chi_square(np.bincount(slots[:, 0], minlength=CAPACITY), expected) > 1e-3
    # Given the first one, the second is drawn from the rest.
    likeliest = np.argmax(expected)
    rest = np.where(np.arange(CAPACITY) == likeliest, 0, expected)
    second = slots[slots[:, 0] == likeliest, 1]
    assert chi_square(np.bincount(second, minlength=CAPACITY), rest / rest.sum()) > 1e-3
    # Sums over the batch of f / chance have the mean of the sum of f over all rows.
    f = np.cos(np.arange(CAPACITY)) + 2
    heavy = expected > 1e-4
    estimates = (f * heavy)[slots] / np.asarray(samples.probabilities, np.float64)
    totals = estimates.sum(1)
    error = totals.std() / np.sqrt(len(totals))
    assert abs(totals.mean() - f[heavy].sum()) < 4 * error


def test_without_replacement_all_rows_come_once():
    buffer = without_replacement("buffer_max")
    state = buffer.retune(filled()[0])
    sample = buffer.sample(state, jax.random.key(0), CAPACITY, 30)
    stored = np.flatnonzero(rows_of(state, "generation") >= 0)
    valid = np.asarray(sample.handles.generation) >= 0
    assert sorted(np.asarray(sample.handles.index)[valid]) == list(stored)
    # Every row is in such a batch for certain, so there is nothing to make up for.
    np.testing.assert_array_equal(sample.probabilities, valid.astype(np.float32))
    np.testing.assert_array_equal(sample.weights, valid.astype(np.float32))
    assert float(sample.ess) == len(stored)


def test_groups_are_drawn_whole(get_key):
    size = 4
    buffer = make(strategy="groups", group_size=size, weight_normaliser="buffer_max")
    rng, rows = np.random.default_rng(4), 64
    names = np.arange(rows, dtype=np.int32) // size
    names[-1] = 1000  # alone, so two groups of the last device are not complete
    bases = np.exp(rng.normal(0, 2, rows)).astype(np.float32)
    state = buffer.init(EXAMPLE)
    state, handles = buffer.add(state, batch_of(0, rows), bases, 0, groups=names)
    assert bool(buffer.can_sample(state, rows - size))
    assert not bool(buffer.can_sample(state, rows - size + 1))
    means = bases.reshape(-1, size).mean(1).astype(np.float64)[:-1] ** ALPHA
    probabilities = np.asarray(buffer.probabilities(state))
    np.testing.assert_allclose(probabilities[probabilities > 0], means / means.sum(), rtol=5e-5)
    sample = buffer.sample(state, get_key(), 32, 1, 1.0)
    index = np.asarray(sample.handles.index).reshape(-1, size)
    np.testing.assert_array_equal(index, index[:, :1] + np.arange(size))
    np.testing.assert_array_equal(index[:, 0] % size, 0)
    of_groups = probabilities[index[:, 0] // size]
    np.testing.assert_allclose(sample.probabilities, np.repeat(of_groups, size), rtol=5e-5)
    weights = means.min() / means.sum() / of_groups
    np.testing.assert_allclose(sample.weights, np.repeat(weights, size), rtol=1e-4)
    place = [pairs(handles).index(handle) for handle in pairs(sample.handles)]
    np.testing.assert_array_equal(sample.data["value"], np.array(place, np.float32))


def test_packed_rows(get_key):
    longest = 5
    example = {"tokens": jnp.zeros((longest,), jnp.bfloat16), "value": np.float32(0)}
    buffer = replay.make_sharded_buffer(
        mesh=mesh_of(),
        axis="data",
        capacity=CAPACITY,
        tau=TAU,
        storage="packed",
        token_capacity=DEVICES * 2 * longest,
        ragged={"tokens": True, "value": False},
    )
    state, rng = buffer.init(example), np.random.default_rng(6)
    for turn in range(2):
        lengths = rng.integers(1, longest + 1, ROWS).astype(np.int32)
        tokens = rng.integers(0, 1 << 15, (ROWS, longest), np.uint16).view(jnp.bfloat16)
        batch = {"tokens": tokens, "value": np.arange(ROWS, dtype=np.float32)}
        bases = np.repeat(SCALES, 5).astype(np.float32)
        state, handles = buffer.add(state, batch, bases, 4 * turn, lengths=lengths)
    # The rings hold ten tokens and five more, so rows have gone by tokens and not by slots.
    stored = rows_of(state, "generation") >= 0
    assert stored.sum() < 2 * ROWS
    assert int(state.size.sum()) == stored.sum()
    logs = ALPHA * (rows_of(state, "log_base") + rows_of(state, "birth") / TAU).astype(np.float64)
    shares = np.where(stored, np.exp(logs - logs[stored].max()), 0)
    probabilities = shares / shares.sum()
    np.testing.assert_allclose(buffer.probabilities(state), probabilities, rtol=5e-5)
    sample = buffer.sample(state, get_key(), BATCH, 9)
    newest = [place for place in pairs(sample.handles) if place in pairs(handles)]
    assert newest
    for place, handle in enumerate(pairs(sample.handles)):
        if handle in pairs(handles):
            row = pairs(handles).index(handle)
            expected = np.where(np.arange(longest) < lengths[row], tokens[row].view(np.uint16), 0)
            actual = np.asarray(sample.data["tokens"][place]).view(np.uint16)
            np.testing.assert_array_equal(actual, expected)
            assert float(sample.data["value"][place]) == row


def test_maximum_insertion_is_over_all_devices_and_each_evicts_its_own_least():
    buffer, state = make(insertion="max", eviction="lowest_priority"), filled()[0]
    births = rows_of(state, "birth").astype(np.float32)
    priorities = (rows_of(state, "log_base") + births / np.float32(TAU)).reshape(DEVICES, PART)
    least = np.argsort(priorities, axis=1, kind="stable")[:, : ROWS // DEVICES]
    largest = rows_of(state, "log_base").max()
    changed, handles = buffer.add(copy_of(state), batch_of(9), np.ones(ROWS, np.float32), 50)
    index = np.asarray(handles.index).reshape(DEVICES, -1)
    np.testing.assert_array_equal(
        np.sort(index, axis=1), np.sort(least, axis=1) + PART * np.arange(DEVICES)[:, None]
    )
    np.testing.assert_array_equal(
        rows_of(changed, "log_base")[index.ravel()], np.full(ROWS, largest)
    )
    kept = np.isin(np.arange(CAPACITY), index, invert=True)
    for field in ("log_base", "generation"):
        np.testing.assert_array_equal(rows_of(changed, field)[kept], rows_of(state, field)[kept])


@pytest.mark.parametrize("call", ["add", "update", "mark_drawn"])
def test_a_state_given_away_cannot_be_used(call):
    buffer, state = make(), copy_of(filled()[0])
    slots = jnp.arange(BATCH, dtype=jnp.int32)
    arguments = {
        "add": (batch_of(0), np.ones(ROWS, np.float32), 0),
        "update": (replay.Handles(slots, slots), np.ones(BATCH, np.float32)),
        "mark_drawn": (replay.Handles(slots, slots),),
    }
    getattr(buffer, call)(state, *arguments[call])
    with pytest.raises(RuntimeError, match="given away"):
        buffer.stats(state, 30)


def turn_of(buffer, state, key, batch, bases, clock):
    state, _ = buffer.add(state, batch, bases, clock)
    sample = buffer.sample(state, key, BATCH, clock, 0.5)
    state = buffer.mark_drawn(state, sample.handles)
    state = buffer.update(state, sample.handles, sample.probabilities + 0.5)
    return state, sample


def test_in_the_callers_scan_with_a_donated_state():
    buffer = make()
    turns = [
        (jax.random.key(turn), batch_of(turn), np.full(ROWS, 1 + turn, np.float32), np.int32(turn))
        for turn in range(3)
    ]
    inputs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *turns)

    @functools.partial(jax.jit, donate_argnums=0)
    @chex.assert_max_traces(n=1)
    def run(state, inputs):
        return jax.lax.scan(lambda carry, x: turn_of(buffer, carry, *x), state, inputs)

    given = buffer.init(EXAMPLE)
    state, samples = run(given, inputs)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    assert_bits_equal(run(buffer.init(EXAMPLE), inputs)[0], state)
    # The same one call at a time.
    loop, drawn = buffer.init(EXAMPLE), []
    for arguments in turns:
        loop, sample = turn_of(buffer, loop, *arguments)
        drawn.append(sample)
    assert_bits_equal((loop.data, loop.generation), (state.data, state.generation))
    chex.assert_trees_all_close(loop.log_base, state.log_base, rtol=1e-5)
    for sample, expected in zip(drawn, unstacked(samples), strict=True):
        assert_equal((sample.handles, sample.data), (expected.handles, expected.data))
        chex.assert_trees_all_close(sample.weights, expected.weights, rtol=1e-5)


def unstacked(samples):
    return [jax.tree.map(lambda leaf, turn=turn: leaf[turn], samples) for turn in range(3)]


def test_other_axes_of_the_mesh_hold_copies(get_key):
    mesh = mesh_of(data=2, fsdp=2, tp=2)
    buffer = make(mesh=mesh)
    state, batch = buffer.init(EXAMPLE), batch_of(0)
    state, handles = buffer.add(state, batch, np.arange(1, ROWS + 1, dtype=np.float32), 0)
    sample = buffer.sample(state, get_key(), BATCH, 0)
    state = buffer.mark_drawn(state, sample.handles)
    split = NamedSharding(mesh, PartitionSpec("data"))
    for leaf in jax.tree.leaves((state, dataclasses.replace(sample, ess=None))):
        assert leaf.sharding.is_equivalent_to(split, leaf.ndim)
        copies = {}
        for shard in leaf.addressable_shards:
            copies.setdefault(str(shard.index), []).append(np.asarray(shard.data).tobytes())
        assert [len(same) for same in copies.values()] == [4, 4]
        assert [len(set(same)) for same in copies.values()] == [1, 1]
    # The first half of a batch is on the first devices.
    slots = np.arange(ROWS) % (ROWS // 2) + np.arange(ROWS) // (ROWS // 2) * (CAPACITY // 2)
    np.testing.assert_array_equal(handles.index, slots)
    rows = np.asarray(sample.data["value"]).astype(int)
    np.testing.assert_array_equal(sample.handles.index, slots[rows])
    np.testing.assert_array_equal(sample.data["wide"], batch["wide"][rows])
    masses = np.arange(1, ROWS + 1) ** ALPHA
    np.testing.assert_allclose(sample.probabilities, (masses / masses.sum())[rows], rtol=1e-5)


def collectives_of(text):
    """Lists what devices exchange: the operation and the elements of its result on one device."""
    found = re.findall(
        r"(\([^)]*\)|\S+) (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)"
        r"(?:-start)?\(",
        text,
    )
    return [
        (name, max(map(elements, re.findall(r"\[([\d,]*)\]", shapes)))) for shapes, name in found
    ]


def elements(shape):
    return math.prod(int(size) for size in shape.split(",") if size)


def test_only_the_rows_drawn_travel():
    state, _ = filled()
    sample = jax.jit(make().sample, static_argnums=2)
    text = sample.lower(state, jax.random.key(0), BATCH, 30).compile().as_text()
    found = collectives_of(text)
    assert {name for name, _ in found} == {"all-gather", "all-reduce", "reduce-scatter"}
    assert max(size for name, size in found if name == "all-gather") == DEVICES
    assert max(size for name, size in found if name == "all-reduce") == BATCH
    assert max(size for name, size in found if name == "reduce-scatter") == BATCH // DEVICES * 37
    # No array is larger than what a device stores itself; the whole batch is smaller here.
    sizes = [elements(shape) for shape in re.findall(r"\w+\[([\d,]+)\]", text)]
    assert max(sizes) == PART * 37 > BATCH * 37


def test_adds_and_updates_exchange_nothing_and_copy_nothing():
    buffer = make()
    state, _ = filled()
    handles = replay.Handles(
        index=jnp.zeros((4,), jnp.int32), generation=jnp.zeros((4,), jnp.int32)
    )
    calls = [
        (buffer.add, batch_of(0), np.ones(ROWS, np.float32), 0),
        (buffer.update, handles, np.ones(4, np.float32), 0),
    ]
    for function, *arguments in calls:
        lowered = jax.jit(function, donate_argnums=0).lower(state, *arguments)
        compiled = lowered.compile()
        assert not collectives_of(compiled.as_text())
        aliased = compiled.memory_analysis().alias_size_in_bytes
        assert aliased == replay.state_nbytes(state) // DEVICES


def test_checked_mode_raises_under_checkify():
    buffer = make(checked=True)
    add = checkify.checkify(buffer.add)
    bases = np.where(np.arange(ROWS) == 7, -1, 1).astype(np.float32)
    error, _ = add(copy_of(filled()[0]), batch_of(0), bases, 0)
    with pytest.raises(checkify.JaxRuntimeError, match="base_priority"):
        error.throw()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis": "model"}, "axis must be one of the mesh, data, fsdp, tp, got 'model'"),
        ({"capacity": 20}, "capacity must be a multiple of the 8 devices of axis 'data', got 20"),
        ({"capacity": 0}, "capacity must be at least 1"),
        ({"strategy": "newest"}, "prioritized_without_replacement.* got 'newest'"),
        ({"strategy": "oldest"}, "prioritized, .* for a sharded buffer, got 'oldest'"),
        ({"strategy": "best"}, "strategy must be one of .* 'best'"),
        ({"alpha": -1.0}, "alpha"),
        (
            {"storage": "packed", "token_capacity": 50, "ragged": True},
            "token_capacity must be a multiple of the 8 devices",
        ),
        ({"strategy": "groups", "group_size": 5}, "capacity must be a multiple of group_size"),
    ],
)
def test_options(options, message):
    arguments = {"mesh": mesh_of(), "axis": "data", "capacity": CAPACITY} | options
    with pytest.raises(ValueError, match=message):
        replay.make_sharded_buffer(**arguments)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda b, s: b.add(s, batch_of(0, 12), np.ones(12), 0), ValueError, "rows .* 8 .* got 12"),
        (lambda b, s: b.add(s, {}, np.ones(8), 0), ValueError, "leaves"),
        (lambda b, s: b.add(s, batch_of(0, 8), np.ones(16), 0), ValueError, "leading axis"),
        (lambda b, s: b.sample(s, jax.random.key(0), 12, 0), ValueError, "batch_size .* got 12"),
        (lambda b, s: b.sample(s, jax.random.key(0), 8, 0.5), TypeError, "clock"),
        (lambda b, s: b.sample(s, jax.random.key(0), 8, 0, -1.0), ValueError, "beta"),
        (lambda b, s: b.probabilities(s, tau=0.0), ValueError, "tau"),
        (
            lambda b, s: b.update(s, replay.Handles(np.zeros(2), np.zeros(2)), np.ones(3)),
            ValueError,
            r"base_priority has shape \(3,\)",
        ),
        (
            lambda b, s: make(capacity=CAPACITY * 2).stats(s, 0),
            ValueError,
            r"capacity 384 over 8 devices, \(8, 48\)",
        ),
        (lambda b, s: make(tau=3.0).stats(s, 0), ValueError, "retune"),
        (lambda b, s: make(capacity=CAPACITY * 2).retune(s), ValueError, "capacity 384"),
        (
            lambda b, s: without_replacement().sample(
                without_replacement().retune(s), jax.random.key(0), CAPACITY + 8, 0
            ),
            ValueError,
            "at most the capacity",
        ),
    ],
)
def test_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(make(), filled()[0])
