import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import objectives

SHAPE = (4, 6)
ONE = np.ones((1, 1), bool)


def token(loss, ratio, advantage, **arguments):
    """Loss, gradient and mark of one token of a given ratio to a behaviour of log-probability 0."""

    def value(x):
        losses, clipped = loss(
            x, jnp.zeros((1, 1)), jnp.full((1, 1), advantage), jnp.asarray(ONE), **arguments
        )
        return losses[0, 0], clipped[0, 0]

    at = jnp.full((1, 1), np.log(ratio), jnp.float32)
    (losses, clipped), slope = jax.value_and_grad(value, has_aux=True)(at)
    return float(losses), float(slope[0, 0]), bool(clipped)


def batch(get_key):
    """Scores of three policies near each other, advantages and a mask with an empty row."""
    log_probs = -jax.random.exponential(get_key(), SHAPE)
    proximal = log_probs + 0.3 * jax.random.normal(get_key(), SHAPE)
    behaviour = log_probs + 0.8 * jax.random.normal(get_key(), SHAPE)
    advantages = jax.random.normal(get_key(), SHAPE)
    mask = jax.random.bernoulli(get_key(), 0.6, SHAPE).at[1].set(False)
    return log_probs, proximal, behaviour, advantages, mask


def as_doubles(*arrays):
    return [np.asarray(array, np.float64) for array in arrays]


@pytest.mark.parametrize(
    ("ratio", "advantage", "cap", "weight"),
    [
        (1.0, 2.0, 2.0, 1.0),  # on policy: REINFORCE
        (0.25, 2.0, 2.0, 0.25),  # no clip: what was likely before counts little, but counts
        (1.9, -3.0, 2.0, 1.9),
        (8.0, -3.0, 2.0, 2.0),
        (8.0, 3.0, 0.5, 0.5),
        (8.0, 3.0, None, 8.0),
    ],
)
def test_a_truncated_ratio_weighs_the_gradient_of_the_log(ratio, advantage, cap, weight):
    loss, slope, truncated = token(
        objectives.truncated_token_losses, ratio, advantage, ratio_cap=cap
    )
    assert loss == pytest.approx(-weight * advantage, rel=1e-5)
    assert slope == pytest.approx(-weight * advantage, rel=1e-5)
    assert truncated == (weight < ratio)


def plain_decoupled(log_prob, proximal, behaviour, advantage, *, cap, low, high, dual):
    """The formula of one token, in float64."""
    weight = min(np.exp(proximal - behaviour), np.inf if cap is None else cap)
    ratio = np.exp(log_prob - proximal)
    objective = min(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)
    if dual is not None and advantage < 0:
        objective = max(objective, dual * advantage)
    return -weight * objective


@pytest.mark.parametrize(("cap", "dual"), [(1.5, None), (None, 1.2)])
def test_decoupled_losses_and_slopes_match_the_formula(cap, dual, get_key):
    log_probs, proximal, behaviour, advantages, mask = batch(get_key)
    settings = {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": dual, "ratio_cap": cap}

    def total(x):
        losses, clipped = objectives.decoupled_token_losses(
            x, proximal, behaviour, advantages, mask, **settings
        )
        return losses.sum(), (losses, clipped)

    slopes, (losses, clipped) = jax.grad(total, has_aux=True)(log_probs)
    plain = as_doubles(log_probs, proximal, behaviour, advantages)
    step, marks = 1e-6, 0
    for place in np.ndindex(SHAPE):
        if not mask[place]:
            assert losses[place] == slopes[place] == 0
            assert not clipped[place]
            continue
        x, *rest = (array[place] for array in plain)
        knobs = {"cap": cap, "low": 0.2, "high": 0.3, "dual": dual}
        assert losses[place] == pytest.approx(plain_decoupled(x, *rest, **knobs), rel=1e-4)
        slope = plain_decoupled(x + step, *rest, **knobs) - plain_decoupled(
            x - step, *rest, **knobs
        )
        assert slopes[place] == pytest.approx(slope / (2 * step), rel=1e-3, abs=1e-4)
        capped = cap is not None and np.exp(rest[0] - rest[1]) > cap
        assert clipped[place] == (capped or slopes[place] == 0)
        marks += int(clipped[place])
    assert 0 < marks < mask.sum()


def test_decoupled_at_the_proximal_policy_is_truncated_importance_sampling(get_key):
    log_probs, _, behaviour, advantages, mask = batch(get_key)
    weights = np.minimum(np.exp(np.subtract(*as_doubles(log_probs, behaviour))), 1.5)
    want = np.where(mask, -weights * np.asarray(advantages), 0.0)

    def total(x):
        losses, _ = objectives.decoupled_token_losses(
            x, log_probs, behaviour, advantages, mask, ratio_cap=1.5, dual_clip=3.0
        )
        return losses.sum(), losses

    slopes, losses = jax.grad(total, has_aux=True)(log_probs)
    np.testing.assert_allclose(losses, want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(slopes, want, rtol=1e-4, atol=1e-6)


def test_decoupled_from_the_behaviour_policy_is_ppo(get_key):
    log_probs, _, behaviour, advantages, mask = batch(get_key)
    arrays = (behaviour, advantages, mask)
    ours = objectives.decoupled_token_losses(log_probs, behaviour, *arrays, ratio_cap=None)
    ppo = objectives.clipped_token_losses(log_probs, *arrays)
    jax.tree.map(np.testing.assert_array_equal, ours, ppo)


@pytest.mark.parametrize("advantage", [1.0, -2.0])
def test_sequence_slopes_are_those_of_the_sequence_objective(advantage, get_key):
    log_probs, _, behaviour, _, mask = batch(get_key)
    advantages = jnp.full(SHAPE, advantage)

    def total(x):
        losses, clipped = objectives.sequence_token_losses(
            x, behaviour, advantages, mask, clip_low=0.1, clip_high=0.2
        )
        return objectives.aggregate(losses, mask, None, aggregation="seq-mean-token-mean"), clipped

    (loss, clipped), slopes = jax.value_and_grad(total, has_aux=True)(log_probs)
    gaps = np.subtract(*as_doubles(log_probs, behaviour))
    inside = np.asarray(mask)
    rows = np.flatnonzero(inside.any(axis=1))
    want, loss_wanted, cut = np.zeros(SHAPE), 0.0, 0
    for row in rows:
        ratio = np.exp(gaps[row, inside[row]].mean())
        plain, bound = ratio * advantage, np.clip(ratio, 0.9, 1.2) * advantage
        loss_wanted -= min(plain, bound) / len(rows)
        if plain <= bound:  # d s / d log pi_t = s / |y|
            want[row, inside[row]] = -plain / inside[row].sum() / len(rows)
        else:
            cut += 1
            assert np.all(np.asarray(clipped)[row] == inside[row])
    assert loss == pytest.approx(loss_wanted, rel=1e-5)
    assert 0 < cut < len(rows)
    np.testing.assert_allclose(slopes, want, rtol=1e-4, atol=1e-7)


def test_tokens_of_one_row_share_its_ratio_but_not_their_advantage():
    log_probs = jnp.log(jnp.array([[2.0, 3.0, 0.5, 9.0]]))
    behaviour = jnp.zeros((1, 4))
    mask = np.array([[True, True, True, False]])
    advantages = jnp.array([[1.0, 0.5, -2.0, 7.0]])

    def total(x):
        losses, _ = objectives.sequence_token_losses(
            x, behaviour, advantages, mask, clip_low=0.9, clip_high=9.0
        )
        return losses.sum()

    ratio = (2.0 * 3.0 * 0.5) ** (1 / 3)
    want = -ratio * np.array([[1.0, 0.5, -2.0, 0.0]])
    np.testing.assert_allclose(jax.grad(total)(log_probs), want, rtol=1e-5)


LOSSES = {
    "tis": lambda x, b, a, m: objectives.truncated_token_losses(x, b, a, m, ratio_cap=2.0),
    "decoupled": lambda x, b, a, m: objectives.decoupled_token_losses(x, b, b, a, m, ratio_cap=2.0),
    "gspo": objectives.sequence_token_losses,
}


@pytest.mark.parametrize("name", LOSSES)
def test_nan_outside_the_mask_reaches_neither_value_nor_gradient(name, get_key):
    log_probs, _, behaviour, advantages, mask = batch(get_key)

    def total(*arrays):
        losses, _ = LOSSES[name](*arrays, mask)
        return losses.sum(), losses

    clean = jax.value_and_grad(total, has_aux=True)(log_probs, behaviour, advantages)
    dirty = (jnp.where(mask, array, jnp.nan) for array in (log_probs, behaviour, advantages))
    jax.tree.map(
        np.testing.assert_array_equal, clean, jax.value_and_grad(total, has_aux=True)(*dirty)
    )
    assert np.all(np.asarray(clean[1])[~np.asarray(mask)] == 0)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("log_ratio", [-500.0, 500.0])
def test_hopeless_ratios_give_finite_losses_and_slopes(name, log_ratio):
    at = jnp.full((1, 1), log_ratio)
    zeros, ones = jnp.zeros((1, 1)), jnp.ones((1, 1))
    value, slope = jax.value_and_grad(
        lambda x: LOSSES[name](x, zeros, -ones, jnp.asarray(ONE))[0].sum()
    )(at)
    assert np.isfinite(value)
    assert np.isfinite(slope).all()


def test_bad_arguments_are_named():
    zeros, mask = jnp.zeros(SHAPE), jnp.ones(SHAPE, bool)
    with pytest.raises(ValueError, match="ratio_cap must be positive or None, got 0"):
        objectives.truncated_token_losses(zeros, zeros, zeros, mask, ratio_cap=0.0)
    with pytest.raises(ValueError, match="clip_low must lie in"):
        objectives.sequence_token_losses(zeros, zeros, zeros, mask, clip_low=1.0)
    with pytest.raises(ValueError, match=r"objective must be one of ppo, tis, .*, got 'grpo'"):
        objectives.validate_objective("grpo")
    with pytest.raises(AssertionError):
        objectives.sequence_token_losses(zeros, zeros[:2], zeros, mask)
