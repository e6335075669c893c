import numpy as np
import pytest

from experiments.statistics import mean_estimate, share_estimate


@pytest.mark.parametrize(("hits", "count"), [(0, 20), (7, 20), (20, 20), (1, 1)])
def test_a_share_has_wilsons_interval(hits, count):
    estimate = share_estimate(np.arange(count) < hits)
    z, p, n = 1.959964, hits / count, count
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert estimate.value == p
    np.testing.assert_allclose(
        [estimate.low, estimate.high], [centre - half, centre + half], atol=1e-6
    )


def test_a_mean_has_an_interval_near_the_normal_one():
    values = np.random.default_rng(3).normal(5.0, 2.0, 400)
    estimate = mean_estimate(values)
    half = 1.96 * values.std() / np.sqrt(400)
    assert estimate.value == pytest.approx(values.mean())
    np.testing.assert_allclose(estimate.high - estimate.low, 2 * half, rtol=0.1)
    assert estimate.low < estimate.value < estimate.high


def test_equal_values_have_no_spread():
    estimate = mean_estimate(np.full(9, 3.0))
    assert (estimate.low, estimate.value, estimate.high) == (3.0, 3.0, 3.0)
