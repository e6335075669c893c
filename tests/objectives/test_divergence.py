import hypothesis.extra.numpy as hnp
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshper_jax import objectives

SHAPE = (3, 4)


@settings(max_examples=30)
@given(
    hnp.arrays(np.float32, 5, elements=st.floats(-30, 30, width=32)),
    hnp.arrays(np.bool_, 5),
)
def test_effective_sample_fraction_matches_float64(log_weights, mask):
    fraction = jax.jit(objectives.effective_sample_fraction)(log_weights, mask)
    weights = np.exp(log_weights.astype(np.float64))[mask]
    expected = weights.sum() ** 2 / (len(weights) * (weights**2).sum()) if mask.any() else 0.0
    np.testing.assert_allclose(fraction, expected, rtol=1e-4)


@pytest.mark.parametrize("shift", [-1000.0, 0.0, 1000.0])
def test_effective_sample_fraction_never_overflows(shift):
    # Weights 1 and 3: (1 + 3)^2 / (2 * (1 + 9)).
    log_weights = np.array([0.0, np.log(3.0), np.nan], np.float32) + np.float32(shift)
    fraction = objectives.effective_sample_fraction(log_weights, np.array([True, True, False]))
    np.testing.assert_allclose(fraction, 0.8, rtol=1e-3)


def test_an_unchanged_policy_is_exactly_on_policy(get_key):
    # The authors' monitor reported a mean ratio of 1.08 here.
    log_probs = -jax.random.exponential(get_key(), SHAPE)
    mask = jax.random.bernoulli(get_key(), 0.7, SHAPE).at[0, 0].set(True)
    summary = objectives.summarise_rows(objectives.row_statistics(log_probs, log_probs, mask))
    assert summary["ess_fraction"] == 1.0
    assert summary["ratio_mean"] == summary["ratio_max"] == 1.0
    assert summary["kl_k1"] == summary["kl_k3"] == summary["kl_policy"] == 0.0


def test_row_statistics_match_loops_in_float64(get_key):
    log_probs = np.asarray(-jax.random.exponential(get_key(), SHAPE))
    behaviour = np.asarray(-jax.random.exponential(get_key(), SHAPE))
    entropy = np.asarray(jax.random.uniform(get_key(), SHAPE))
    mask = np.array([[True, True, False, True], [False, True, False, False], [False] * 4])
    clipped = np.array([[True, False, False, True], [False] * 4, [False] * 4])
    rows = objectives.row_statistics(log_probs, behaviour, mask, clipped=clipped, entropy=entropy)
    rows = jax.tree.map(np.asarray, rows)
    for row in range(SHAPE[0]):
        places = np.flatnonzero(mask[row])
        logs = log_probs[row, places].astype(np.float64) - behaviour[row, places]
        ratios = np.exp(logs)
        assert rows.token_count[row] == len(places)
        assert rows.log_ratio[row] == pytest.approx(logs.sum(), abs=1e-5)
        assert rows.kl_k1[row] == pytest.approx(-logs.sum(), abs=1e-5)
        assert rows.kl_k3[row] == pytest.approx((ratios - 1 - logs).sum(), abs=1e-5)
        assert rows.kl_policy[row] == pytest.approx((ratios * logs - ratios + 1).sum(), abs=1e-5)
        assert rows.ratio_sum[row] == pytest.approx(ratios.sum(), abs=1e-5)
        assert rows.ratio_max[row] == pytest.approx(ratios.max(initial=0.0), abs=1e-5)
        assert rows.clipped[row] == clipped[row].sum()
        assert rows.entropy[row] == pytest.approx(entropy[row, places].sum(), abs=1e-5)
        mean_kl = (ratios - 1 - logs).sum() / max(len(places), 1)
        assert np.asarray(rows.token_kl)[row] == pytest.approx(mean_kl, abs=1e-5)

    summary = objectives.summarise_rows(rows)
    logs = log_probs[mask].astype(np.float64) - behaviour[mask]
    assert summary["kl_k3"] == pytest.approx(np.mean(np.exp(logs) - 1 - logs), rel=1e-5)
    assert summary["clip_fraction"] == pytest.approx(2 / 4)
    assert summary["entropy"] == pytest.approx(entropy[mask].mean(), rel=1e-5)
    assert summary["response_tokens"] == 4


def test_the_estimators_estimate_the_divergences_they_name():
    # All four tokens of a vocabulary, each as often as the behaviour policy draws it.
    behaviour = np.array([0.5, 0.25, 0.125, 0.125])
    policy = np.array([0.25, 0.5, 0.125, 0.125])
    draws = np.repeat(np.arange(4), (behaviour * 8).astype(int))
    rows = objectives.row_statistics(
        np.log(policy)[draws].astype(np.float32)[None],
        np.log(behaviour)[draws].astype(np.float32)[None],
        np.ones((1, 8), bool),
    )
    summary = objectives.summarise_rows(rows)
    reverse = np.sum(behaviour * np.log(behaviour / policy))
    forward = np.sum(policy * np.log(policy / behaviour))
    assert summary["kl_k1"] == pytest.approx(reverse, rel=1e-5)
    assert summary["kl_k3"] == pytest.approx(reverse, rel=1e-5)
    assert summary["kl_policy"] == pytest.approx(forward, rel=1e-5)


def test_nan_outside_the_mask_does_not_leak():
    mask = np.array([[True, False]])
    dirty = np.array([[-1.0, np.nan]], np.float32)
    rows = objectives.row_statistics(dirty, dirty * 2, mask, entropy=dirty)
    for leaf in jax.tree.leaves(rows):
        assert np.isfinite(leaf).all()


def test_hopeless_ratios_stay_finite():
    log_probs = np.array([[-1.0]], np.float32)
    rows = objectives.row_statistics(log_probs, log_probs - 500, np.ones((1, 1), bool))
    for leaf in jax.tree.leaves(objectives.summarise_rows(rows)):
        assert np.isfinite(leaf)
    assert rows.log_ratio[0] == 500
