import functools

import hypothesis.extra.numpy as hnp
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshper_jax import objectives

SHAPE = (3, 6)
REALS = hnp.arrays(np.float32, SHAPE, elements=st.floats(-8, 8, width=32))
MASKS = hnp.arrays(np.bool_, SHAPE)


def plain_returns(rewards, mask, gamma):
    """The definition, row by row: only response tokens exist."""
    returns = np.zeros(rewards.shape)
    for row, (row_rewards, row_mask) in enumerate(zip(rewards, mask, strict=True)):
        places = np.flatnonzero(row_mask)
        for first, place in enumerate(places):
            later = row_rewards[places[first:]].astype(np.float64)
            returns[row, place] = np.sum(later * gamma ** np.arange(len(later)))
    return returns


@functools.cache
def jitted_returns(gamma):
    return jax.jit(functools.partial(objectives.discounted_returns, gamma=gamma))


@settings(max_examples=40)
@given(REALS, MASKS, st.sampled_from([0.0, 0.5, 1.0]))
def test_returns_match_the_definition(rewards, mask, gamma):
    returns = jitted_returns(gamma)(rewards, mask)
    np.testing.assert_allclose(returns, plain_returns(rewards, mask, gamma), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transform", [jax.jit, lambda function: function])
def test_observations_between_turns_neither_discount_nor_hide_a_reward(transform):
    # Turn, observation, turn: the second turn's reward 8 is one response token away.
    rewards = np.array([[0.0, 2.0, 0.0, 0.0, 0.0, 8.0]], np.float32)
    mask = np.array([[True, True, False, False, True, True]])
    returns = transform(functools.partial(objectives.discounted_returns, gamma=0.5))(rewards, mask)
    np.testing.assert_array_equal(returns, [[2.0, 4.0, 0.0, 0.0, 4.0, 8.0]])


def test_every_turn_of_a_successful_episode_gets_the_final_reward():
    rewards = np.zeros((2, 6), np.float32)
    rewards[0, 5] = 10.0
    mask = np.array([[True, True, False, True, False, True]] * 2)
    advantages = np.asarray(objectives.reinforce_plus_plus(rewards, mask))
    np.testing.assert_allclose(advantages[0, mask[0]], 1.0, rtol=1e-5)
    np.testing.assert_allclose(advantages[1, mask[1]], -1.0, rtol=1e-5)


@settings(max_examples=25)
@given(REALS, MASKS)
def test_reinforce_plus_plus_whitens_the_returns(rewards, mask):
    advantages = np.asarray(jax.jit(objectives.reinforce_plus_plus)(rewards, mask))
    inside = plain_returns(rewards, mask, 1.0)[mask]
    expected = np.zeros(SHAPE)
    if inside.size:
        expected[mask] = (inside - inside.mean()) / np.sqrt(inside.var() + 1e-8)
    np.testing.assert_allclose(advantages, expected, rtol=1e-3, atol=1e-3)


def test_advantages_are_clipped_after_whitening():
    rewards = np.array([[0.0, 0.0, 0.0, 30.0]], np.float32).T
    mask = np.ones((4, 1), bool)
    advantages = objectives.reinforce_plus_plus(rewards, mask, advantage_clip=0.5)
    np.testing.assert_allclose(advantages[:, 0], [-0.5, -0.5, -0.5, 0.5])


@pytest.mark.parametrize(
    ("estimator", "formula"),
    [
        ("k1", lambda d: d),
        ("abs", abs),
        ("k2", lambda d: d * d / 2),
        ("k3", lambda d: np.exp(-d) - 1 + d),
    ],
)
def test_kl_penalty_follows_its_formula(estimator, formula, get_key):
    log_probs = np.asarray(-jax.random.exponential(get_key(), SHAPE))
    reference = np.asarray(-jax.random.exponential(get_key(), SHAPE))
    mask = np.asarray(jax.random.bernoulli(get_key(), 0.5, SHAPE))
    rewards = np.asarray(jax.random.normal(get_key(), SHAPE))
    penalised = objectives.kl_penalty_rewards(
        rewards, log_probs, reference, mask, coefficient=0.3, estimator=estimator
    )
    difference = log_probs.astype(np.float64) - reference
    expected = np.where(mask, rewards - 0.3 * formula(difference), 0.0)
    np.testing.assert_allclose(penalised, expected, rtol=1e-5, atol=1e-6)


def test_the_kl_penalty_enters_the_advantages():
    rewards = np.zeros((2, 1), np.float32)
    mask = np.ones((2, 1), bool)
    advantages = objectives.reinforce_plus_plus(
        rewards,
        mask,
        log_probs=np.array([[-1.0], [-2.0]], np.float32),
        reference_log_probs=np.array([[-2.0], [-2.0]], np.float32),
        kl_coefficient=0.5,
    )
    np.testing.assert_allclose(advantages[:, 0], [-1.0, 1.0], rtol=1e-5)


def test_nan_outside_the_mask_does_not_leak():
    mask = np.array([[True, False, True]])
    clean = np.array([[1.0, 0.0, 3.0]], np.float32)
    dirty = np.array([[1.0, np.nan, 3.0]], np.float32)

    def advantages(values):
        return objectives.reinforce_plus_plus(
            values, mask, log_probs=values, reference_log_probs=-values, kl_coefficient=0.1
        )

    np.testing.assert_array_equal(advantages(dirty), advantages(clean))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": 1.5}, "gamma must lie in"),
        ({"advantage_clip": 0.0}, "advantage_clip must be positive"),
        ({"kl_coefficient": 0.1}, "needs both log_probs and reference_log_probs"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        objectives.reinforce_plus_plus(
            np.zeros((1, 2), np.float32), np.ones((1, 2), bool), **arguments
        )


def test_bad_penalties_are_named():
    zeros, mask = np.zeros((1, 2), np.float32), np.ones((1, 2), bool)
    with pytest.raises(ValueError, match="estimator must be one of k1, abs, k2, k3, got 'kl'"):
        objectives.kl_penalty_rewards(zeros, zeros, zeros, mask, coefficient=1.0, estimator="kl")
    with pytest.raises(ValueError, match="coefficient must be at least 0"):
        objectives.kl_penalty_rewards(zeros, zeros, zeros, mask, coefficient=-1.0)


def test_wrong_ranks_are_refused():
    with pytest.raises(AssertionError, match="rank"):
        objectives.discounted_returns(np.zeros(3, np.float32), np.ones(3, bool), gamma=1.0)


def test_a_group_baseline_removes_what_a_start_is_worth():
    returns = np.array([10.0, -1.0, -1.0, 4.0, 7.0], np.float32)
    group = np.array([3, 3, 1, 1, 8], np.int32)
    baseline = objectives.group_mean(returns, group)
    np.testing.assert_allclose(baseline, [4.5, 4.5, 1.5, 1.5, 7.0])
    mask = np.zeros((5, 3), bool)
    mask[:, 1:] = True
    rewards = np.zeros((5, 3), np.float32)
    rewards[:, 2] = returns
    advantages = objectives.reinforce_plus_plus(rewards, mask, baseline=baseline)
    centred = np.array([5.5, -5.5, -2.5, 2.5, 0.0])
    expected = np.where(mask, (centred / np.sqrt(np.mean(centred**2)))[:, None], 0.0)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-6)


def test_group_advantages_compare_within_a_group():
    returns = np.array([4.0, 7.0, 0.0, 4.0, 7.0], np.float32)
    group = np.array([2, 0, 2, 2, 0], np.int32)
    mask = np.array([[False, True, True]] * 5)
    mask[4] = [False, False, True]
    plain = objectives.group_advantages(returns, group, mask, scale=False)
    centred = np.array([4 / 3, 0.0, -8 / 3, 4 / 3, 0.0])
    np.testing.assert_allclose(plain, np.where(mask, centred[:, None], 0.0), atol=1e-6)
    scaled = objectives.group_advantages(returns, group, mask)
    spread = np.sqrt((2 * (4 / 3) ** 2 + (8 / 3) ** 2) / 3)
    np.testing.assert_allclose(scaled, np.where(mask, centred[:, None] / spread, 0.0), atol=1e-5)


def test_equal_returns_of_any_size_give_no_advantage():
    returns = np.full(7, 1e6 / 3, np.float32)
    mask = np.ones((7, 2), bool)
    advantages = objectives.group_advantages(returns, np.zeros(7, np.int32), mask)
    np.testing.assert_allclose(advantages, 0.0, atol=1e-6)


def test_a_row_alone_in_its_group_is_not_passed_off_as_average():
    advantages = objectives.group_advantages(
        np.ones(3, np.float32), np.array([0, 1, 0], np.int32), np.array([[False, True]] * 3)
    )
    np.testing.assert_array_equal(advantages, [[0.0, 0.0], [0.0, np.nan], [0.0, 0.0]])
