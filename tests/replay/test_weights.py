"""The effective sample size against its closed form."""

import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import replay


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1, 1, 1, 1], 4),
        ([0, 0, 5, 0], 1),
        ([3, 1], 1.6),
        ([0, 0, 0], 0),
        ([1e34, 1e34, 0], 2),
        ([1e-30, 1e-30], 2),
    ],
)
def test_effective_sample_size(weights, expected):
    actual = replay.effective_sample_size(jnp.array(weights, jnp.float32))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
