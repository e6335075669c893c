"""Draws follow the masses exactly: every stratum, every row, no row without mass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from freshper_jax.replay.draw import (
    UNITS,
    bits_for_draws,
    child_at,
    position,
    random_words,
    running_shares,
)
from freshper_jax.replay.tree import build_tree, draw_leaves, plant


def forest_of(masses):
    """Sums the masses as rows that were all born at once."""
    rate = jnp.float32(0.0)
    births = jnp.zeros(masses.shape, jnp.int32)
    tree = build_tree(jnp.log(masses), births, rate, alpha=1.0, tau=np.inf)
    return plant(tree, masses.shape[0], rate)


def draw_stratified(key, forest, draws):
    strata = jnp.arange(draws, dtype=jnp.int32)
    return draw_leaves(forest, strata, jnp.full_like(strata, draws), bits_for_draws(key, draws))


@functools.partial(jax.jit, static_argnums=2)
def draw(key, masses, draws):
    return draw_stratified(key, forest_of(masses), draws)


@functools.partial(jax.jit, static_argnums=(2, 3))
def draw_many(key, masses, batches, draws):
    forest = forest_of(masses)
    keys = jax.random.split(key, batches)
    return jax.vmap(lambda one: draw_stratified(one, forest, draws))(keys)


def heavy_tailed(rows):
    """Log-normal bases decayed to ages of up to 20 tau: masses over eight orders and more."""
    rng = np.random.default_rng(3)
    logs = 0.6 * (rng.normal(0, 2, rows) - rng.uniform(0, 20, rows))
    return np.exp(logs - logs.max()).astype(np.float32)


MASSES = {
    "equal": np.ones(4096, np.float32),
    "heavy": heavy_tailed(4096),
    "spike": np.concatenate([[1.0], np.full(999, 1e-6)]).astype(np.float32),
    "sparse": np.where(np.arange(1000) % 37 == 5, np.arange(1000), 0).astype(np.float32),
    "one": np.ones(1, np.float32),
    "few": np.array([0, 3, 0, 1, 2], np.float32),
}


def chi_square(counts, probabilities):
    """The p-value that counts come from the probabilities; rare rows are pooled."""
    expected = probabilities * counts.sum()
    rare = expected < 20
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(counts) == 1:
        return 1.0
    return scipy.stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1)


@pytest.mark.parametrize("name", MASSES)
def test_independent_draws_pass_chi_square(get_key, name):
    masses = MASSES[name]
    rows = np.asarray(draw_many(get_key(), masses, 250_000, 1)).ravel()
    counts = np.bincount(rows, minlength=len(masses))
    assert len(counts) == len(masses)
    probabilities = masses / masses.sum(dtype=np.float64)
    assert not counts[probabilities == 0].any()
    assert chi_square(counts, probabilities) > 1e-3


@pytest.mark.parametrize("name", ["heavy", "few"])
def test_stratified_draws_have_the_right_mean_and_less_variance(get_key, name):
    masses = MASSES[name]
    rows = np.asarray(draw_many(get_key(), masses, 4000, 64))
    probabilities = masses / masses.sum(dtype=np.float64)
    counts = np.bincount(rows.ravel(), minlength=len(masses))
    assert chi_square(counts, probabilities) > 1e-3
    largest = int(np.argmax(masses))
    per_batch = (rows == largest).sum(axis=1)
    assert per_batch.var() < 64 * probabilities[largest] * (1 - probabilities[largest])


def strata_touch(rows, masses):
    """Whether the k-th of n draws lies in a row that reaches into [k/n, (k+1)/n)."""
    ends = np.cumsum(masses, dtype=np.float64) / masses.sum(dtype=np.float64)
    starts = np.concatenate([[0.0], ends[:-1]])
    place = np.arange(len(rows))
    slack = 1e-6
    low, high = place / len(rows) - slack, (place + 1) / len(rows) + slack
    return (starts[rows] < high) & (ends[rows] > low)


@pytest.mark.parametrize("name", MASSES)
@pytest.mark.parametrize("draws", [1, 7, 64])
def test_each_draw_comes_from_its_own_stratum(get_key, name, draws):
    masses = MASSES[name]
    for _ in range(5):
        assert strata_touch(np.asarray(draw(get_key(), masses, draws)), masses).all()


@settings(max_examples=60)
@given(
    masses=st.lists(
        st.one_of(st.just(0.0), st.floats(2.0**-100, 1.0, width=32)), min_size=20, max_size=20
    ),
    seed=st.integers(0, 2**31 - 1),
)
def test_a_row_without_mass_is_never_drawn(masses, seed):
    masses = np.array(masses, np.float32)
    rows = np.asarray(draw(jax.random.key(seed), masses, 64))
    assert ((rows >= 0) & (rows < 20)).all()
    if masses.any():
        assert (masses[rows] > 0).all()
    else:
        assert not rows.any()


def test_every_one_of_a_hundred_thousand_equal_rows_is_reached(get_key):
    # A row's mass is two strata wide, so one whole stratum always lies inside it.
    rows = np.asarray(draw(get_key(), np.ones(100_000, np.float32), 200_000))
    counts = np.bincount(rows, minlength=100_000)
    assert len(counts) == 100_000
    assert counts.min() >= 1
    assert counts.max() <= 3


@pytest.mark.slow
def test_a_million_equal_rows_share_a_million_draws(get_key):
    # One float32 uniform misses rows of a million by up to 7%.
    rows = np.asarray(draw(get_key(), np.ones(1_000_000, np.float32), 1_000_000))
    counts = np.bincount(rows, minlength=1_000_000)
    assert len(counts) == 1_000_000
    assert counts.max() <= 2
    in_thousands = counts.reshape(1000, 1000).sum(axis=1)
    assert np.abs(in_thousands - 1000).max() <= 2


def test_rows_below_the_step_of_a_float32_uniform_are_all_within_reach(get_key):
    # Each of 255 rows holds 2^-25 of the mass; one float32 uniform could reach a quarter.
    masses = np.full(256, 2.0**-25, np.float32)
    masses[0] = 1.0
    rows = np.concatenate([np.asarray(draw(get_key(), masses, 1 << 21)) for _ in range(4)])
    rare = rows[rows > 0]
    expected = 4 * (1 << 21) * 255 * 2.0**-25
    assert abs(len(rare) - expected) < 4 * np.sqrt(expected)
    within_quarter = 64 * (1 - np.exp(-expected / 64))
    assert len(np.unique(rare)) > 1.2 * within_quarter


@pytest.mark.parametrize(
    "masses",
    [
        MASSES["heavy"][:16],
        np.array([0, 3, 0, 1, 2] + [0] * 11, np.float32),
        np.ones(16, np.float32),
        np.full(16, 1e30, np.float32),
        np.zeros(16, np.float32),
    ],
)
def test_running_shares_keep_total_and_shares(masses):
    total = jnp.float32(masses.sum(dtype=np.float64))
    ends = running_shares(jnp.asarray(masses)[:, None], total[None])
    ends = np.asarray(ends)[0].astype(np.int64)
    units = np.diff(ends, prepend=0)
    assert (units >= 0).all()
    np.testing.assert_array_equal(units[masses == 0], 0)
    if not masses.any():
        return
    assert UNITS - 1024 < ends[-1] <= UNITS
    shares = masses / masses.sum(dtype=np.float64)
    np.testing.assert_allclose(units / ends[-1], shares, rtol=1e-6, atol=1.1 / ends[-1])


@settings(max_examples=200)
@given(
    span=st.one_of(st.integers(1, 50), st.integers(1, UNITS)),
    total=st.one_of(st.integers(1, 50), st.integers(UNITS - 600, UNITS)),
    part=st.floats(0, 1, exclude_max=True),
    bits=st.integers(0, UNITS - 1),
)
def test_a_position_is_stretched_as_rational_numbers_are(span, total, part, bits):
    offset = int(part * span)
    one = functools.partial(jnp.array, dtype=jnp.int32)
    place, unused = position(one([offset]), one([span]), one([total]), one([bits]))
    exact = (offset + bits / UNITS) * total / span
    assert 0 <= int(place[0]) < total
    assert abs(int(place[0]) - exact) <= 4
    assert 0 <= int(unused[0]) < UNITS


@settings(max_examples=60)
@given(
    units=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    before=st.integers(0, 3),
    part=st.floats(0, 1, exclude_max=True),
)
def test_a_position_falls_to_the_child_that_holds_it(units, before, part):
    units[-1] += 1  # the ends of a node never are all zero where a place lies in it
    ends = np.cumsum(units)
    place = int(part * ends[-1])
    one = functools.partial(jnp.array, dtype=jnp.int32)
    flat = one([7] * before + ends.tolist())
    at = child_at(flat, one([before]), len(units), one([place]), one([9]))
    child = int(np.searchsorted(ends, place, side="right"))
    assert int(at.node[0]) == before + child
    assert int(at.offset[0]) == place - (ends[child] - units[child])
    assert (int(at.span[0]), int(at.bits[0])) == (units[child], 9)


@pytest.mark.parametrize("draws", [1, 7, 1024])
def test_random_words_are_those_of_jax(get_key, draws):
    for _ in range(3):
        key = get_key()
        expected = jax.random.bits(key, (2, draws), jnp.uint32)
        np.testing.assert_array_equal(
            jax.jit(random_words, static_argnums=1)(key, (2, draws)), expected
        )


def test_random_words_of_another_kind_of_key_are_those_of_jax():
    key = jax.random.key(3, impl="rbg")
    expected = jax.random.bits(key, (2, 5), jnp.uint32)
    np.testing.assert_array_equal(random_words(key, (2, 5)), expected)


def test_bits_left_over_are_as_random_as_new_ones(get_key):
    # After a factor of 64 the rest of the word is 24 bits, each value of its top 8 as likely.
    bits, _ = bits_for_draws(get_key(), 1 << 16)
    ones = jnp.ones_like(bits)
    _, unused = position(0 * ones, ones * (UNITS // 63), UNITS * ones, bits)
    counts = np.bincount(np.asarray(unused) >> 22, minlength=256)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_same_key_same_draw_other_key_other_draw(get_key):
    one, other = get_key(), get_key()
    first = draw(one, MASSES["heavy"], 64)
    np.testing.assert_array_equal(first, draw(one, MASSES["heavy"], 64))
    assert (first != draw(other, MASSES["heavy"], 64)).any()
