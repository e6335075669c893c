"""Rotary frequencies, one at a time in plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax.models import RopeScaling
from freshper_jax.models.attention import rotary_table

SIZE, THETA = 16, 5e5
LLAMA3 = RopeScaling(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=512,
)


def llama3(frequency):
    wavelength = 2 * np.pi / frequency
    if wavelength < 512 / 4:
        return frequency
    if wavelength > 512:
        return frequency / 8
    smooth = (512 / wavelength - 1) / (4 - 1)
    return (1 - smooth) * frequency / 8 + smooth * frequency


@pytest.mark.parametrize(
    ("scaling", "stretch"),
    [
        (None, lambda frequency: frequency),
        (RopeScaling(rope_type="linear", factor=3.0), lambda frequency: frequency / 3),
        (LLAMA3, llama3),
    ],
    ids=["plain", "linear", "llama3"],
)
def test_rotates_by_position_times_frequency(scaling, stretch):
    positions = np.array([[0, 1, 7, 100]], np.int32)
    plain = [THETA ** (-index / SIZE) for index in range(0, SIZE, 2)]
    angles = np.array([[p * stretch(f) for f in plain] for p in positions[0]])
    cosines, sines = rotary_table(jnp.asarray(positions), SIZE, THETA, scaling)
    assert cosines.shape == sines.shape == (1, 4, 1, SIZE // 2)
    np.testing.assert_allclose(cosines[0, :, 0], np.cos(angles), atol=1e-5)
    np.testing.assert_allclose(sines[0, :, 0], np.sin(angles), atol=1e-5)


def test_llama_3_keeps_blends_and_divides_in_these_tests():
    plain = np.array([THETA ** (-index / SIZE) for index in range(0, SIZE, 2)], np.float32)
    kept = np.asarray(jax.jit(LLAMA3.apply)(plain)) / plain
    assert np.isclose(kept, 1.0).any()
    assert np.isclose(kept, 1 / 8).any()
    assert ((kept > 0.13) & (kept < 0.99)).any()
