"""The buffer inside jit, vmap, scan and checkify, on a mesh, donated, saved and restored."""

import dataclasses
import functools
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from freshper_jax import replay

CAPACITY, ROWS = 8, 3
EXAMPLE = {
    "tokens": np.zeros((4,), np.int32),
    "mask": np.zeros((4,), bool),
    "inner": (np.zeros((2, 3), np.float32), np.zeros((), np.float32)),
}


@functools.cache
def make(**options):
    return replay.make_buffer(capacity=CAPACITY, tau=9.0, **options)


def batch_of(seed, rows=ROWS):
    rng = np.random.default_rng(seed)
    return {
        "tokens": rng.integers(0, 100, (rows, 4)).astype(np.int32),
        "mask": rng.random((rows, 4)) < 0.5,
        "inner": (
            rng.normal(size=(rows, 2, 3)).astype(np.float32),
            rng.normal(size=(rows,)).astype(np.float32),
        ),
    }


def priorities_of(seed, rows=ROWS):
    return np.random.default_rng(seed + 100).uniform(0.1, 3, rows).astype(np.float32)


def step(buffer, state, key, batch, base_priority, clock):
    """One turn of a training loop: add, draw, count, update."""
    state, _ = buffer.add(state, batch, base_priority, clock)
    sample = buffer.sample(state, key, 4, clock, 0.5)
    state = buffer.mark_drawn(state, sample.handles)
    state = buffer.update(state, sample.handles, sample.probabilities + 0.5)
    return state, sample


def run(state, steps, start=0, transform=lambda function: function):
    buffer = make()
    one = transform(functools.partial(step, buffer))
    samples = []
    for number in range(start, start + steps):
        key = jax.random.key(number)
        state, sample = one(state, key, batch_of(number), priorities_of(number), jnp.int32(number))
        samples.append(sample)
    return state, samples


def assert_equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_under_the_callers_jit_equals_entry_points():
    assert_equal(run(make().init(EXAMPLE), 5, transform=jax.jit), run(make().init(EXAMPLE), 5))


def test_without_jit_equals_entry_points():
    with jax.disable_jit():
        state, samples = run(make().init(EXAMPLE), 1)
    expected_state, expected_samples = run(make().init(EXAMPLE), 1)
    chex.assert_trees_all_close(state, expected_state, rtol=1e-5)
    for sample, expected in zip(samples, expected_samples, strict=True):
        assert_equal(sample.handles, expected.handles)
        chex.assert_trees_all_close(sample, expected, rtol=1e-5)


def test_in_a_scan_equals_a_loop():
    stack = functools.partial(jax.tree.map, lambda *leaves: jnp.stack(leaves))
    numbers = range(5)
    inputs = (
        jnp.stack([jax.random.key(number) for number in numbers]),
        stack(*[batch_of(number) for number in numbers]),
        stack(*[priorities_of(number) for number in numbers]),
        jnp.arange(5, dtype=jnp.int32),
    )
    final, samples = jax.jit(
        lambda state: jax.lax.scan(lambda carry, x: step(make(), carry, *x), state, inputs)
    )(make().init(EXAMPLE))
    expected_final, expected_samples = run(make().init(EXAMPLE), 5)
    assert_equal(final, expected_final)
    assert_equal(samples, stack(*expected_samples))


def test_vmap_over_four_buffers_equals_four_single_runs():
    singles, keys = [], jax.random.split(jax.random.key(3), 4)
    stack = functools.partial(jax.tree.map, lambda *leaves: jnp.stack(leaves))
    states = jax.vmap(lambda _: make().init(EXAMPLE))(jnp.arange(4))
    for number in range(4):
        state = make().init(EXAMPLE)
        for turn in range(4):
            state, sample = step(
                make(), state, keys[number], batch_of(10 * turn + number), priorities_of(number), 2
            )
        singles.append((state, sample))
    many = jax.vmap(functools.partial(step, make()), in_axes=(0, 0, 0, 0, None))
    for turn in range(4):
        batches = stack(*[batch_of(10 * turn + number) for number in range(4)])
        bases = stack(*[priorities_of(number) for number in range(4)])
        states, samples = many(states, keys, batches, bases, jnp.int32(2))
    chex.assert_trees_all_close((states, samples), stack(*singles), rtol=1e-6)
    assert_equal(samples.handles, stack(*[sample.handles for _, sample in singles]))


@pytest.mark.parametrize("call", ["add", "update", "mark_drawn"])
def test_a_state_given_away_is_deleted(call):
    buffer = make()
    state, handles = buffer.add(buffer.init(EXAMPLE), batch_of(0), priorities_of(0), 0)
    sample_before = buffer.sample(state, jax.random.key(0), 4, 0)
    assert not state.rows.is_deleted()
    if call == "add":
        buffer.add(state, batch_of(1), priorities_of(1), 1)
    elif call == "update":
        buffer.update(state, handles, priorities_of(1))
    else:
        buffer.mark_drawn(state, handles)
    # What a call does not change is not part of it.
    given = {
        "add": state,
        "update": dataclasses.replace(state, data=None),
        "mark_drawn": state.rows,
    }[call]
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    assert np.isfinite(sample_before.weights).all()


@pytest.mark.parametrize("insertion", ["base", "max"])
@pytest.mark.parametrize("rows", [16, 70_000])
def test_no_leaf_is_copied(insertion, rows):
    buffer = replay.make_buffer(capacity=1 << 16, insertion=insertion)
    state = buffer.init(EXAMPLE)
    nbytes = replay.state_nbytes(state)
    handles = replay.Handles(
        index=jnp.zeros((16,), jnp.int32), generation=jnp.zeros((16,), jnp.int32)
    )
    calls = [
        (buffer.add, batch_of(0, rows), priorities_of(0, rows), jnp.int32(0)),
        (buffer.update, handles, priorities_of(0, 16), jnp.int32(0)),
        (buffer.mark_drawn, handles),
    ]
    for function, *arguments in calls:
        compiled = jax.jit(function, donate_argnums=0).lower(state, *arguments).compile()
        memory = compiled.memory_analysis()
        assert memory.alias_size_in_bytes == nbytes
        # The smallest leaf with a row axis is four bytes wide, so any copy is at least 256 KiB.
        if function is not buffer.add or rows == 16:
            # The largest base priority is found in one pass over all of them.
            bases = (4 << 16) * (insertion == "max" and function is buffer.add)
            assert memory.temp_size_in_bytes < bases + 64 * 1024


def test_narrow_floats_keep_their_bits_and_are_not_copied():
    # On CPU, XLA writes a row of bfloat16 by way of a float32 copy of all rows.
    buffer = replay.make_buffer(capacity=1 << 14)
    state = buffer.init(jnp.zeros((16,), jnp.bfloat16))
    bits = np.random.default_rng(0).integers(0, 1 << 16, (8, 16)).astype(np.uint16)
    bits[0, :3] = [0x7FC5, 0xFF81, 0x8000]  # NaNs with a payload, and minus zero
    rows = jax.lax.bitcast_convert_type(jnp.asarray(bits), jnp.bfloat16)
    compiled = jax.jit(buffer.add, donate_argnums=0).lower(state, rows, np.ones(8), 0).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 32 * 1024
    state, _ = buffer.add(state, rows, np.ones(8), 0)
    sample = buffer.sample(state, jax.random.key(0), 64, 0)
    assert sample.data.dtype == jnp.bfloat16
    drawn = jax.lax.bitcast_convert_type(sample.data, jnp.uint16)
    np.testing.assert_array_equal(drawn, bits[np.asarray(sample.handles.index)])


def test_scalars_of_any_kind_share_one_program(caplog):
    buffer = replay.make_buffer(capacity=CAPACITY, tau=3.0)
    state = buffer.init(np.zeros((), np.float32))

    def use(state, clock, scalar):
        buffer.sample(state, jax.random.key(0), 5, clock, scalar, alpha=scalar, tau=scalar)
        buffer.sample(state, jax.random.key(0), 5, clock)
        buffer.probabilities(state, tau=scalar)
        buffer.stats(state, clock, alpha=scalar)
        state, handles = buffer.add(state, np.zeros(3, np.float32), np.ones(3), clock)
        return buffer.update(state, handles, np.ones(3), clock)

    state = use(state, 1, 0.5)
    with jax.log_compiles():
        jax.jit(lambda x: x + 1)(state.log_base)
        own = [record for record in caplog.records if "Compiling" in record.getMessage()]
        assert len(own) == 1  # The log does tell of a compilation.
        caplog.clear()
        for clock, scalar in [
            (np.int64(2), np.float64(0.7)),
            (jnp.int32(3), jnp.array(1.0)),
            (4, 1),
        ]:
            state = use(state, clock, scalar)
    compiled = [record.getMessage() for record in caplog.records]
    assert not [text for text in compiled if "Compiling" in text and f"float32[{CAPACITY}]" in text]


def test_one_trace_while_options_and_clock_vary():
    buffer = make()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def turn(state, key, batch, bases, clock, alpha, beta, tau):
        state, _ = buffer.add(state, batch, bases, clock)
        return state, buffer.sample(state, key, 4, clock, beta, alpha=alpha, tau=tau)

    state = buffer.init(EXAMPLE)
    for number in range(4):
        scalars = jnp.float32(0.2 * number), jnp.float32(0.3 * number), jnp.float32(number + 1)
        state, sample = turn(
            state,
            jax.random.key(number),
            batch_of(number),
            priorities_of(number),
            jnp.int32(number),
            *scalars,
        )
    expected = buffer.probabilities(state, alpha=scalars[0], tau=scalars[2])
    np.testing.assert_allclose(
        sample.probabilities, np.asarray(expected)[sample.handles.index], rtol=1e-6
    )


def test_saved_and_restored_it_continues_bit_for_bit(tmp_path):
    state, _ = run(make().init(EXAMPLE), 6)
    leaves, structure = jax.tree.flatten(state)
    np.savez(tmp_path / "replay.npz", *[np.asarray(leaf) for leaf in leaves])
    with np.load(tmp_path / "replay.npz") as saved:
        restored = jax.tree.unflatten(structure, [jnp.asarray(saved[name]) for name in saved])
    assert_equal(run(restored, 4, start=6), run(state, 4, start=6))


def test_replicated_on_a_mesh_equals_one_device():
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = jax.device_put(make().init(EXAMPLE), everywhere)
    expected_state, expected_samples = run(make().init(EXAMPLE), 5)
    state, samples = run(state, 5)
    assert_equal((state, samples), (expected_state, expected_samples))
    assert all(
        leaf.sharding.is_equivalent_to(everywhere, leaf.ndim) for leaf in jax.tree.leaves(state)
    )


def test_rows_spread_over_a_mesh_equal_one_device():
    mesh = Mesh(np.array(jax.devices()), ("data",))

    def spread(leaf):
        even = leaf.ndim and leaf.shape[0] % len(jax.devices()) == 0
        return jax.device_put(
            leaf, NamedSharding(mesh, PartitionSpec("data") if even else PartitionSpec())
        )

    state, samples = run(jax.tree.map(spread, make().init(EXAMPLE)), 5)
    expected_state, expected_samples = run(make().init(EXAMPLE), 5)
    for sample, expected in zip(samples, expected_samples, strict=True):
        assert_equal(sample.handles, expected.handles)
    chex.assert_trees_all_close((state, samples), (expected_state, expected_samples), rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_checked_mode_raises_under_checkify(bad):
    buffer = make(checked=True)
    bases = np.float32([1, bad, 1])
    add, update = checkify.checkify(buffer.add), checkify.checkify(buffer.update)
    error, (state, handles) = add(buffer.init(EXAMPLE), batch_of(0), np.ones(3, np.float32), 0)
    assert error.get() is None
    error, _ = update(state, handles, bases)
    with pytest.raises(checkify.JaxRuntimeError, match="base_priority"):
        error.throw()
    error, _ = add(buffer.init(EXAMPLE), batch_of(0), bases, 0)
    with pytest.raises(checkify.JaxRuntimeError, match="base_priority"):
        error.throw()


def test_checked_mode_counts_as_usual_outside_checkify():
    buffer = make(checked=True)
    state, _ = buffer.add(buffer.init(EXAMPLE), batch_of(0), np.float32([1, np.nan, 1]), 0)
    assert int(state.replaced) == 1


def test_a_typed_key_can_be_stored():
    buffer = make()
    keys = jax.random.split(jax.random.key(5), 3)
    state, _ = buffer.add(buffer.init({"key": keys[0]}), {"key": keys}, np.ones(3), 0)
    sample = buffer.sample(state, jax.random.key(0), 4, 0)
    expected = jax.random.key_data(keys)[sample.handles.index]
    np.testing.assert_array_equal(jax.random.key_data(sample.data["key"]), expected)


def test_bytes_can_be_planned_before_allocating():
    buffer = make()
    planned = replay.state_nbytes(jax.eval_shape(buffer.init, EXAMPLE))
    row = 4 * 4 + 4 + 6 * 4 + 4 + 4 * 4
    node = 16 * 4 + 4 + 4
    # Eight rows have one node, and that one a node above it.
    assert planned == CAPACITY * row + 2 * node + 7 * 4
    assert planned == replay.state_nbytes(buffer.init(EXAMPLE))


def test_state_is_one_pytree_of_arrays():
    state = make().init(EXAMPLE)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.size = jnp.int32(3)


def test_import_needs_no_more_than_jax_and_chex():
    program = (
        "import sys; from freshper_jax import replay; "
        "heavy = {'flax', 'optax', 'orbax', 'transformers', 'gymnasium'}; "
        "loaded = heavy & {name.split('.')[0] for name in sys.modules}; "
        "assert not loaded, loaded; "
        "ours = {name for name in sys.modules if name.startswith('freshper_jax.')}; "
        "assert all(name.startswith('freshper_jax.replay') for name in ours), ours"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
