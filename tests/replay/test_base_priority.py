"""Base priorities against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import replay


def test_absolute_return():
    actual = replay.absolute_return(jnp.array([-1.5, 0.0, 2.0]))
    np.testing.assert_allclose(actual, [1.5 + 1e-6, 1e-6, 2 + 1e-6], rtol=1e-6)
    np.testing.assert_allclose(replay.absolute_return(jnp.array([-1.0]), eps=0.5), [1.5], rtol=1e-6)


@pytest.mark.parametrize("transform", [jax.jit, lambda function: function])
@pytest.mark.parametrize(
    "function", [replay.mean_absolute_advantage, replay.mean_absolute_td_error]
)
def test_masked_means(function, transform):
    values = np.array(
        [[9, -2, 4, 9], [np.nan, -1, np.inf, 3], [5, 5, 5, 5], [0, 0, 0, 0]], np.float32
    )
    mask = np.array([[0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
    actual = transform(function)(values, mask)
    np.testing.assert_allclose(actual, [3 + 1e-6, 2 + 1e-6, 1e-6, 1e-6], rtol=1e-6)


def test_rows_of_any_length_with_equal_values_have_equal_priority():
    # A mean over padding too would rank them by length.
    lengths = np.array([12, 100, 500])
    mask = np.arange(512)[None, :] < lengths[:, None]
    values = np.where(mask, 0.2, 0.0).astype(np.float32)
    np.testing.assert_allclose(
        replay.mean_absolute_advantage(values, mask), np.full(3, 0.2), rtol=1e-4
    )


def test_length_and_constant():
    np.testing.assert_array_equal(replay.length(jnp.array([3, 500])), [3.0, 500.0])
    assert replay.length(jnp.array([3])).dtype == jnp.float32
    np.testing.assert_array_equal(replay.constant(3), np.ones(3))
    np.testing.assert_array_equal(replay.constant(2, 0.5), np.full(2, 0.5))


@pytest.mark.parametrize(
    ("values", "mask"), [(np.zeros(3), np.ones(3, bool)), (np.zeros((2, 3)), np.ones((2, 2), bool))]
)
def test_shapes_that_do_not_match(values, mask):
    with pytest.raises(AssertionError):
        replay.mean_absolute_advantage(values, mask)
