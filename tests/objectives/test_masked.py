import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import objectives

MASK = np.array([[True, False, True, True], [False, True, False, False]])
VALUES = np.array([[1.0, 50.0, 2.0, 4.0], [7.0, -3.0, 9.0, 9.0]], np.float32)


def test_masked_mean_is_the_mean_of_the_selected_values():
    inside = VALUES[MASK].astype(np.float64)
    assert objectives.masked_mean(VALUES, MASK) == pytest.approx(inside.mean())
    np.testing.assert_allclose(objectives.masked_mean(VALUES, MASK, axis=1), [7 / 3, -3.0], 1e-6)
    np.testing.assert_allclose(objectives.masked_sum(VALUES, MASK, axis=1), [7.0, -3.0])


def test_an_empty_mask_gives_zero():
    nothing = np.zeros_like(MASK)
    assert objectives.masked_mean(VALUES, nothing) == 0.0
    np.testing.assert_array_equal(objectives.whiten(VALUES, nothing), np.zeros_like(VALUES))


@pytest.mark.parametrize("shift_mean", [True, False])
def test_whiten_matches_numpy(shift_mean):
    inside = VALUES[MASK].astype(np.float64)
    expected = np.zeros_like(VALUES)
    expected[MASK] = (inside - inside.mean()) / inside.std()
    if not shift_mean:
        expected[MASK] += inside.mean()
    whitened = objectives.whiten(VALUES, MASK, shift_mean=shift_mean)
    np.testing.assert_allclose(whitened, expected, rtol=1e-6)


@pytest.mark.parametrize("constant", [0.1, 10.9, -1.3, 12345.67])
def test_equal_values_whiten_to_zero(constant):
    # With one pass the rounding of the mean would whiten 10.9 to 0.04 here.
    mask = np.random.default_rng(0).random((37, 101)) < 0.37
    whitened = objectives.whiten(np.full(mask.shape, constant, np.float32), mask)
    np.testing.assert_allclose(whitened, 0.0, atol=1e-6)


@pytest.mark.parametrize("function", [objectives.masked_mean, objectives.whiten])
def test_nan_outside_the_mask_reaches_neither_value_nor_gradient(function):
    dirty = np.where(MASK, VALUES, np.nan).astype(np.float32)
    clean = np.where(MASK, VALUES, 0.0).astype(np.float32)

    def scalar(values):
        return jnp.sum(function(values, MASK) * jnp.float32(1.5))

    np.testing.assert_array_equal(function(dirty, MASK), function(clean, MASK))
    gradient = jax.grad(scalar)(jnp.asarray(dirty))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient)[~MASK], 0.0)
