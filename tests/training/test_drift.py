import numpy as np

from freshper_jax.objectives import RowStatistics
from freshper_jax.training.drift import AGE_EDGES, age_bin_labels, drift_by_age


def rows(count, **fields):
    zero = np.zeros(count, np.float32)
    names = RowStatistics.__dataclass_fields__
    return RowStatistics(**{name: np.asarray(fields.get(name, zero)) for name in names})


def test_rows_fall_into_octaves_of_age():
    ages = np.array([0, 1, 2, 3, 4, 7, 8, 5000])
    numbers = np.arange(8.0)
    summary = drift_by_age(
        ages,
        rows(8, kl_k3=numbers, kl_k1=-numbers, token_count=np.full(8, 2.0), clipped=numbers / 4),
    )
    filled = [0, 1, 2, 3, 4, -1]
    expected = np.zeros(len(AGE_EDGES))
    expected[filled] = [1, 1, 2, 2, 1, 1]
    np.testing.assert_array_equal(summary["count"], expected)
    means = np.array([0, 1, 2.5, 4.5, 6, 7])
    for name, factor in (("kl", 1), ("kl_k1", -1), ("token_kl", 1 / 2), ("clip_fraction", 1 / 8)):
        np.testing.assert_allclose(np.array(summary[name])[filled], factor * means)
    assert len(age_bin_labels()) == len(AGE_EDGES)
    assert age_bin_labels()[:4] == ["0", "1", "2-3", "4-7"]
    assert age_bin_labels()[-1] == "2048+"


def test_ess_is_the_closed_form_of_two_ratios_and_survives_huge_ones():
    # Ratios r and 1: (1 + r)^2 / (2 (1 + r^2)).
    ratio = 3.0
    summary = drift_by_age(np.array([5, 5]), rows(2, log_ratio=np.log([ratio, 1.0]) + 1000.0))
    share = (1 + ratio) ** 2 / (2 * (1 + ratio**2))
    np.testing.assert_allclose(summary["ess"][3], share)
    np.testing.assert_allclose(summary["renyi2"][3], -np.log(share))
    assert summary["ess"][4] == 0
    assert summary["renyi2"][4] == 0


def test_quantiles_are_of_each_bins_own_rows():
    logs = np.concatenate([np.linspace(-1, 1, 11), [40.0]])
    summary = drift_by_age(np.array([1] * 11 + [2]), rows(12, log_ratio=logs))
    for name, value in (("low", -0.8), ("median", 0.0), ("high", 0.8)):
        np.testing.assert_allclose(summary[f"log_ratio_{name}"][1], value, atol=1e-12)
        np.testing.assert_allclose(summary[f"log_ratio_{name}"][2], 40.0)
