"""Programs that stand alone on a CPU: what they return, and when they are used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from freshper_jax import replay
from freshper_jax.replay.one_kernel import in_one_kernel, is_alone_on_cpu, plainly

MARK = "xla_cpu_small_call"


def filled(rng, capacity, rows, **options):
    """A buffer and its state after three adds at clocks of their own."""
    buffer = replay.make_buffer(capacity=capacity, **options)
    state = buffer.init({"x": np.float32(0), "n": np.int32(0)})
    for clock in range(3):
        batch = {
            "x": rng.standard_normal(rows, np.float32),
            "n": rng.integers(0, 99, rows, np.int32),
        }
        more = {}
        if options.get("strategy") == "groups":
            more["groups"] = np.arange(rows, dtype=np.int32) // 2 + 1000 * clock
        state, _ = buffer.add(
            state, batch, rng.lognormal(size=rows).astype(np.float32), clock, **more
        )
    return buffer, state


def assert_same(found, expected):
    """Integers alike, floats to within the order in which they are added.

    Of a state, so are the floats kept as bits, and the units made of sums of floats.
    """
    pairs = zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True)
    for (path, ours), theirs in pairs:
        if jnp.issubdtype(ours.dtype, jnp.floating):
            np.testing.assert_allclose(ours, theirs, rtol=2e-6)
            continue
        name = jax.tree_util.keystr(path)
        slack = 1 if name.endswith(".rows") else 512 if name.endswith(".ends") else 0
        apart = np.asarray(ours, np.int64) - np.asarray(theirs, np.int64)
        assert np.abs(apart).max(initial=0) <= slack, name


OPTIONS = [
    {},
    {"tau": 2.0},
    {"strategy": "uniform"},
    {"strategy": "groups", "group_size": 2},
    {"strategy": "groups", "group_size": 2, "group_priority": "max"},
    {"weight_normaliser": "mean"},
    {"weight_normaliser": "buffer_max", "tau": 2.0},
    {"eviction": "lowest_priority"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_call_returns_what_it_returns_inside_jit(options, get_key):
    buffer, state = filled(np.random.default_rng(0), 600, 250, **options)
    rng = np.random.default_rng(1)
    key, again = get_key(), {"beta": jnp.float32(0.7), "tau": jnp.float32(3.0)}

    sample = buffer.sample(state, key, 32, 5)
    assert_same(sample, jax.jit(lambda s, k: buffer.sample(s, k, 32, 5))(state, key))
    assert_same(
        buffer.sample(state, key, 32, 5, **again),
        jax.jit(lambda s, k: buffer.sample(s, k, 32, 5, **again))(state, key),
    )

    base = rng.lognormal(size=32).astype(np.float32)
    for clock in (None, 7):
        inside = jax.jit(lambda s, h, clock=clock: buffer.update(s, h, base, clock))
        expected = inside(state, sample.handles)
        copy = jax.tree.map(jnp.copy, state)
        assert_same(buffer.update(copy, sample.handles, base, clock), expected)

    batch = {"x": np.ones(40, np.float32), "n": np.ones(40, np.int32)}
    base = rng.lognormal(size=40).astype(np.float32)
    more = {"groups": np.arange(40, dtype=np.int32) // 2} if "group_size" in options else {}
    expected = jax.jit(lambda s: buffer.add(s, batch, base, 9, **more))(state)
    assert_same(buffer.add(state, batch, base, 9, **more), expected)


SIZES = [
    (1, 1),
    (2, 3),
    (16, 16),
    (17, 255),
    (256, 1),
    (257, 256),  # of as many rows as this, the sums are not made in a kernel
    (4097, 4),
    (65_537, 255),
    (1_048_000, 3),
    (1_049_000, 255),  # of so large a buffer, neither are those of the crown
]


@pytest.mark.parametrize(("capacity", "rows"), SIZES)
def test_every_size_compiles(capacity, rows, get_key):
    buffer = replay.make_buffer(capacity=capacity, tau=5.0)
    state = buffer.init(np.float32(0))
    kept = min(rows, capacity)
    state, handles = buffer.add(state, np.arange(rows, dtype=np.float32), np.ones(rows), 0)
    state = buffer.update(state, handles, np.full(rows, 2.0))
    sample = buffer.sample(state, get_key(), rows, 1)
    assert int(state.size) == kept
    np.testing.assert_array_equal(
        np.asarray(sample.data), np.asarray(sample.handles.generation, np.float32)
    )
    np.testing.assert_allclose(sample.probabilities, 1 / kept, rtol=1e-5)


@pytest.mark.parametrize("draws", [1, 2, 4095, 4096, 5000])
def test_every_batch_compiles(draws, get_key):
    buffer, rows = replay.make_buffer(capacity=300), np.arange(300, dtype=np.int32)
    state, _ = buffer.add(buffer.init(rows[0]), rows, np.ones(300), 0)
    drawn = np.asarray(buffer.sample(state, get_key(), draws, 1).data)
    # One from each stratum: a row as wide as w strata is drawn in all that it fills, and perhaps
    # in the two that it reaches into.
    assert np.abs(np.bincount(drawn, minlength=300) - draws / 300).max() < 2


@pytest.mark.parametrize("rows", [40, 256, 2048])
def test_groups_of_every_size_compile(rows, get_key):
    buffer = replay.make_buffer(capacity=4096, strategy="groups", group_size=8, tau=4.0)
    data = np.arange(rows, dtype=np.float32)
    state, handles = buffer.add(
        buffer.init(data[0]), data, np.ones(rows), 0, groups=np.arange(rows, dtype=np.int32) // 8
    )
    state = buffer.update(state, handles, np.full(rows, 2.0))
    sample = buffer.sample(state, get_key(), rows, 1)
    np.testing.assert_allclose(sample.probabilities, 8 / rows, rtol=1e-5)
    assert sorted(np.asarray(sample.data).tolist()) == data.tolist()  # a group from each stratum


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16", "uint32", "complex64"],
)
def test_rows_of_every_dtype_and_shape_come_back(dtype, get_key):
    buffer = replay.make_buffer(capacity=9)
    rows = {}
    for shape in [(), (1,), (3,), (2, 5), (0,)]:
        values = jnp.arange(9 * int(np.prod(shape)), dtype=jnp.int32).reshape(9, *shape)
        rows[str(shape)] = values % 2 == 0 if dtype == "bool" else values.astype(dtype)
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0], rows))
    state, _ = buffer.add(state, rows, jnp.ones(9), 0)
    sample = buffer.sample(state, get_key(), 9, 1)
    index = np.asarray(sample.handles.index)
    for name, leaf in rows.items():
        np.testing.assert_array_equal(np.asarray(sample.data[name]), np.asarray(leaf)[index])


@pytest.mark.parametrize("width", [16, 4096])  # read with the search, and after it
def test_rows_come_back_however_many_bytes_they_have(width, get_key):
    buffer = replay.make_buffer(capacity=32)
    rows = np.arange(32 * width, dtype=np.float32).reshape(32, width)
    state, _ = buffer.add(buffer.init(rows[0]), rows, np.ones(32), 0)
    sample = buffer.sample(state, get_key(), 64, 1)
    np.testing.assert_array_equal(sample.data, rows[np.asarray(sample.handles.index)])


@pytest.mark.parametrize("make", [lambda: jax.random.key(3, impl="rbg"), lambda: jax.random.key(3)])
def test_keys_of_every_kind_draw(make):
    buffer = replay.make_buffer(capacity=8)
    state, _ = buffer.add(buffer.init(np.int32(0)), np.arange(8, dtype=np.int32), np.ones(8), 0)
    inside = jax.jit(lambda key: buffer.sample(state, key, 8, 1))(make())
    assert_same(buffer.sample(state, make(), 8, 1), inside)


def test_nothing_is_marked_in_a_program_of_the_caller(get_key):
    buffer, state = filled(np.random.default_rng(0), 600, 250)

    def loop(state, key):
        sample = buffer.sample(state, key, 32, 5)
        state = buffer.update(state, sample.handles, jnp.ones(32))
        return buffer.add(state, sample.data, jnp.ones(32), 6)

    key = get_key()
    assert MARK not in jax.jit(loop).lower(state, key).as_text()
    # Nor where all that it takes is known.
    assert MARK not in jax.jit(lambda: loop(state, key)).lower().as_text()


def test_an_output_that_nobody_reads_may_go(get_key):
    buffer, state = filled(np.random.default_rng(0), 600, 250)
    key = get_key()
    for name in ("ages", "weights", "probabilities", "ess"):
        only = jax.jit(lambda s, k, name=name: getattr(buffer.sample(s, k, 32, 5), name))
        np.testing.assert_allclose(
            only(state, key), getattr(buffer.sample(state, key, 32, 5), name), rtol=2e-6
        )


def test_a_call_is_in_one_kernel_where_it_sums_few_floats():
    def add_up(values):
        return jnp.sum(values), values + 1.0

    def text(count):
        program = jax.jit(lambda values: in_one_kernel(add_up, values, summed=count))
        return program.lower(jnp.ones(count)).compile().as_text()

    assert MARK in text(4095)
    assert MARK not in text(4096)
    for call in (plainly, in_one_kernel):
        total, more = call(add_up, jnp.arange(100.0), summed=100)
        assert float(total) == 4950.0
        np.testing.assert_array_equal(more, np.arange(1.0, 101.0))


def test_a_program_is_alone_on_one_cpu_or_not():
    here = jnp.ones(3)
    assert is_alone_on_cpu(here, np.ones(2), None, {"key": jax.random.key(0)}, 3)
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    spread = jax.device_put(jnp.ones(4), NamedSharding(mesh, PartitionSpec("d")))
    assert not is_alone_on_cpu(here, spread)

    def traced(x):
        assert not is_alone_on_cpu(here, [x])
        return x

    jax.jit(traced)(here)
    jax.vmap(traced)(here)


def test_rows_spread_over_devices_draw_as_on_one(get_key):
    buffer, state = filled(np.random.default_rng(0), 600, 250, tau=2.0)
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    copies = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    key = get_key()
    assert_same(buffer.sample(copies, key, 32, 5), buffer.sample(state, key, 32, 5))
