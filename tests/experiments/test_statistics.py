import numpy as np
import pytest

from experiments.statistics import (
    improvement_estimate,
    interquartile_mean,
    iqm_estimate,
    mean_estimate,
    share_estimate,
)


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


def test_interquartile_mean_leaves_out_the_lowest_and_the_highest_quarter():
    assert interquartile_mean(np.array([100.0, 1.0, 2.0, -50.0])) == 1.5
    # Of five, one is left out at each end.
    assert interquartile_mean(np.array([5.0, 1.0, 2.0, 3.0, 100.0])) == pytest.approx(10 / 3)


def test_interval_of_the_interquartile_mean_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for number in range(200):
        found = iqm_estimate(rng.normal(1.0, 1.0, 40), seed=number, resamples=500)
        hits += found.low <= 1.0 <= found.high
    assert 0.88 < hits / 200 < 0.99


def test_tasks_are_strata_of_the_bootstrap():
    # With one value a task, whichever run is drawn, nothing varies.
    found = iqm_estimate(np.tile([0.0, 1.0, 2.0, 3.0], (5, 1)), resamples=100)
    assert (found.value, found.low, found.high) == (1.5, 1.5, 1.5)


def test_probability_of_improvement_counts_pairs():
    found = improvement_estimate(np.array([1.0, 2.0]), np.array([1.0, 3.0, 0.0]))
    assert found.value == pytest.approx((0.5 + 0 + 1 + 1 + 0 + 1) / 6)
    assert 0 <= found.low <= found.value <= found.high <= 1
    sure = improvement_estimate(np.array([2.0, 3.0]), np.array([0.0, 1.0]), resamples=50)
    assert (sure.value, sure.low, sure.high) == (1.0, 1.0, 1.0)
