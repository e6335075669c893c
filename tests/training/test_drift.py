import numpy as np

from freshper_jax.training.drift import AGE_EDGES, age_bin_labels, drift_by_age


def test_rows_fall_into_octaves_of_age():
    ages = np.array([0, 1, 2, 3, 4, 7, 8, 5000])
    summary = drift_by_age(ages, np.zeros(8), np.arange(8.0))
    expected = np.zeros(len(AGE_EDGES))
    expected[[0, 1, 2, 3, 4, -1]] = [1, 1, 2, 2, 1, 1]
    np.testing.assert_array_equal(summary["count"], expected)
    np.testing.assert_allclose(np.array(summary["kl"])[[0, 1, 2, 3, 4, -1]], [0, 1, 2.5, 4.5, 6, 7])
    assert len(age_bin_labels()) == len(AGE_EDGES)
    assert age_bin_labels()[:4] == ["0", "1", "2-3", "4-7"]
    assert age_bin_labels()[-1] == "2048+"


def test_ess_is_the_closed_form_of_two_ratios_and_survives_huge_ones():
    # Ratios r and 1: (1 + r)^2 / (2 (1 + r^2)).
    ratio = 3.0
    summary = drift_by_age(np.array([5, 5]), np.log([ratio, 1.0]) + 1000.0, np.zeros(2))
    np.testing.assert_allclose(summary["ess"][3], (1 + ratio) ** 2 / (2 * (1 + ratio**2)))
    assert summary["ess"][4] == 0
