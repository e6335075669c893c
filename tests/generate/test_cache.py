import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax.generate import (
    cut_rows,
    fits,
    grow_cache,
    init_cache,
    place_rows,
    reset_rows,
    take_rows,
)
from tests.models.common import small_config


def filled_cache():
    """Three rows of five slots, every slot a number of its own."""
    cache = init_cache(small_config(), 3, 5)
    shape = cache.keys[0].shape
    numbers = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return type(cache)(
        keys=tuple(jnp.asarray(numbers + layer) for layer in range(2)),
        values=tuple(jnp.asarray(-numbers - layer) for layer in range(2)),
        lengths=jnp.array([2, 5, 0], jnp.int32),
    )


def test_a_new_cache_is_empty_and_has_one_array_a_layer():
    cache = init_cache(small_config(), 3, 5)
    assert len(cache.keys) == len(cache.values) == 2
    chex.assert_shape([*cache.keys, *cache.values], (3, 2, 5, 6))
    chex.assert_type([*cache.keys, *cache.values], jnp.float32)
    np.testing.assert_array_equal(cache.lengths, [0, 0, 0])
    assert cache.slots == 5
    assert init_cache(small_config(compute_dtype="bfloat16"), 1, 1).keys[0].dtype == jnp.bfloat16
    assert init_cache(small_config(), 1, 1, dtype="bfloat16").keys[0].dtype == jnp.bfloat16


@pytest.mark.parametrize(("rows", "slots", "name"), [(0, 5, "rows"), (3, 0, "slots")])
def test_refuses_an_empty_shape(rows, slots, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        init_cache(small_config(), rows, slots)


def test_reset_changes_lengths_only():
    cache = filled_cache()
    after = reset_rows(cache, jnp.array([True, False, False]))
    np.testing.assert_array_equal(after.lengths, [0, 5, 0])
    chex.assert_trees_all_equal((after.keys, after.values), (cache.keys, cache.values))


def test_growth_keeps_what_there_is():
    cache = filled_cache()
    after = grow_cache(cache, 8)
    assert after.slots == 8
    np.testing.assert_array_equal(after.lengths, cache.lengths)
    for old, new in zip(cache.keys + cache.values, after.keys + after.values, strict=True):
        np.testing.assert_array_equal(new[:, :, :5], old)
    with pytest.raises(ValueError, match="slots must be at least the 5 there are, got 4"):
        grow_cache(cache, 4)


def test_rows_are_copied_for_a_group():
    cache = filled_cache()
    after = take_rows(cache, jnp.array([1, 1, 0, 2], jnp.int32))
    np.testing.assert_array_equal(after.lengths, [5, 5, 2, 0])
    for old, new in zip(cache.keys + cache.values, after.keys + after.values, strict=True):
        np.testing.assert_array_equal(new, np.asarray(old)[[1, 1, 0, 2]])


def test_a_cut_takes_tokens_off_the_end():
    cache = filled_cache()
    after = cut_rows(cache, np.array([1, 3, 0], np.int32))
    np.testing.assert_array_equal(after.lengths, [1, 2, 0])
    chex.assert_trees_all_equal((after.keys, after.values), (cache.keys, cache.values))


def test_rows_of_another_cache_take_their_places():
    cache, other = filled_cache(), take_rows(filled_cache(), jnp.array([2, 1], jnp.int32))
    other = jax.tree.map(lambda array: array + 1, other)
    after = place_rows(cache, other, jnp.array([1, -1, 1], jnp.int32))
    np.testing.assert_array_equal(after.lengths, [6, 5, 6])
    parts = zip(
        cache.keys + cache.values,
        other.keys + other.values,
        after.keys + after.values,
        strict=True,
    )
    for old, moved, new in parts:
        np.testing.assert_array_equal(new, np.stack([moved[1], old[1], moved[1]]))
    with pytest.raises(ValueError, match="other must have the cache's 5 slots, got 6"):
        place_rows(cache, grow_cache(other, 6), jnp.zeros(3, jnp.int32))


def test_room_in_each_row():
    got = fits(filled_cache(), jnp.array([3, 1, 6], jnp.int32))
    np.testing.assert_array_equal(got, [True, False, False])
