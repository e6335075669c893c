"""Updates by objectives other than PPO, and with a critic."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import models
from freshper_jax.training import (
    CriticConfig,
    LossConfig,
    OptimizerConfig,
    init_train_state,
    make_optimizer,
    make_update,
)
from tests.training import toy

OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=0.05, max_grad_norm=0.1))
GAMMA = 0.9


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ValuedRows(toy.Rows):
    rewards: jax.Array  # [B, T]
    value_targets: jax.Array  # [B, T]
    values: jax.Array  # [B, T]


def random_rows(key, rows=toy.ROWS):
    plain = toy.random_rows(key, rows)
    fields = (0.5 * jax.random.normal(k, plain.tokens.shape) for k in jax.random.split(key, 3))
    return ValuedRows(
        **vars(plain), **dict(zip(("rewards", "value_targets", "values"), fields, strict=True))
    )


def init_params(key):
    worth = jax.random.normal(key, (toy.VOCABULARY,))
    return {**toy.init_params(key), "worth": worth}


def token_scores(params, tokens, temperature, mask=None):
    """The value of the state before a token is what its predecessor is worth."""
    values = jnp.pad(params["worth"][tokens[:, :-1]], ((0, 0), (1, 0)))
    return (*toy.token_log_probs(params, tokens, temperature), values)


@functools.cache
def shared_update(loss, microbatches=1, steps=1):
    score = toy.token_log_probs if loss.critic is None else token_scores
    return make_update(score, OPTIMIZER, loss=loss, microbatches=microbatches, steps=steps)


def start(key):
    return init_train_state(init_params(key), OPTIMIZER)


STORED = LossConfig(critic=CriticConfig(gamma=GAMMA, clip=0.3, coefficient=0.7))
VTRACE = LossConfig(
    objective="tis",
    ratio_cap=1.2,
    critic=CriticConfig(targets="vtrace", gamma=GAMMA, trace=0.8, rho_cap=1.2),
)


def plain_scores(params, rows):
    """Log-probabilities and values in float64, by loops."""
    log_probs, _ = toy.plain_token_log_probs(params, rows.tokens, rows.temperature)
    values = np.zeros(rows.tokens.shape)
    values[:, 1:] = np.asarray(params["worth"], np.float64)[rows.tokens[:, :-1]]
    return log_probs, values


def plain_losses(params, rows, weights, config):
    """Policy loss, value loss and the sums of |TD error|, row by row, token by token."""
    log_probs, values = plain_scores(params, rows)
    policy = value = weighted = 0.0
    td_sums = np.zeros(len(rows.tokens))
    for row in range(len(rows.tokens)):
        places = np.flatnonzero(rows.response_mask[row])
        excess, later = 0.0, 0.0
        for place in places[::-1]:
            ratio = np.exp(log_probs[row, place] - rows.behaviour_log_probs[row, place])
            error = rows.rewards[row, place] + GAMMA * later - values[row, place]
            td_sums[row] += abs(error)
            if config.critic.targets == "vtrace":
                advantage = error + GAMMA * excess
                excess = min(ratio, 1.2) * error + GAMMA * 0.8 * min(ratio, 1.0) * excess
                target = values[row, place] + excess
                policy -= weights[row] * min(ratio, 1.2) * advantage
                squared = (values[row, place] - target) ** 2
            else:
                advantage = rows.advantages[row, place]
                objective = min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
                if advantage < 0:
                    objective = max(objective, 3.0 * advantage)
                policy -= weights[row] * objective
                target, old = rows.value_targets[row, place], rows.values[row, place]
                near = old + np.clip(values[row, place] - old, -0.3, 0.3)
                squared = max((values[row, place] - target) ** 2, (near - target) ** 2)
            value += squared / 2
            weighted += weights[row] * squared / 2
            later = values[row, place]
    count = rows.response_mask.sum()
    return policy / count, value / count, weighted / count, td_sums


@pytest.mark.parametrize("config", [STORED, VTRACE], ids=["stored", "vtrace"])
def test_a_critic_s_losses_match_a_plain_oracle(config, get_key):
    state, rows = start(get_key()), random_rows(get_key())
    plain = jax.tree.map(lambda leaf: np.asarray(leaf), rows)
    weights = np.asarray(jax.random.uniform(get_key(), (toy.ROWS,)))
    params = jax.tree.map(np.asarray, state.params)
    policy, value, weighted, td_sums = plain_losses(params, plain, weights, config)
    for microbatches in (1, 4):
        update = shared_update(config, microbatches)
        _, metrics, found = update(toy.copy(state), rows, weights)
        assert metrics["policy_loss"] == pytest.approx(policy, rel=1e-4)
        assert metrics["value_loss"] == pytest.approx(value, rel=1e-4)
        total = policy + config.critic.coefficient * weighted
        assert metrics["loss"] == pytest.approx(total, rel=1e-4)
        np.testing.assert_allclose(found.td_error, td_sums, rtol=1e-4, atol=1e-5)
        mean = td_sums.sum() / plain.response_mask.sum()
        assert metrics["td_error"] == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("config", [STORED, VTRACE], ids=["stored", "vtrace"])
def test_parts_of_a_batch_take_the_step_of_the_whole(config, get_key):
    state, rows, ones = start(get_key()), random_rows(get_key()), jnp.ones(toy.ROWS)
    whole = shared_update(config)(toy.copy(state), rows, ones)
    parts = shared_update(config, 4)(toy.copy(state), rows, ones)
    chex.assert_trees_all_close(whole, parts, rtol=1e-4, atol=1e-5)


def test_values_learn_what_states_are_worth(get_key):
    # A reward for every token 2, and no look ahead: a state is worth what its next token earns.
    config = LossConfig(critic=CriticConfig(targets="vtrace", gamma=0.0, coefficient=1.0))
    rows = random_rows(get_key())
    rows = dataclasses.replace(rows, rewards=(rows.tokens == 2).astype(jnp.float32))
    update = shared_update(config)
    state, first = start(get_key()), None
    for _ in range(150):
        scores, _ = toy.token_log_probs(state.params, rows.tokens, rows.temperature)
        fresh = dataclasses.replace(rows, behaviour_log_probs=scores)
        state, metrics, _ = update(state, fresh, jnp.zeros(toy.ROWS) + 1.0)
        first = metrics["value_loss"] if first is None else first
    mask, tokens = np.asarray(rows.response_mask), np.asarray(rows.tokens)
    for before in range(toy.VOCABULARY):
        chosen = mask[:, 1:] & (tokens[:, :-1] == before)
        if np.any(chosen):
            earned = np.mean(tokens[:, 1:][chosen] == 2)
            assert state.params["worth"][before] == pytest.approx(earned, abs=0.05)
    assert metrics["value_loss"] < 0.5 * first
    assert metrics["value_explained"] > 0


def test_steps_are_so_many_updates_on_the_batch(get_key):
    config = LossConfig(objective="gspo", entropy_coefficient=0.01)
    state, rows, ones = start(get_key()), toy.random_rows(get_key()), jnp.ones(toy.ROWS)
    several, metrics, found = shared_update(config, steps=3)(toy.copy(state), rows, ones)
    single, first = toy.copy(state), None
    for _ in range(3):
        single, *rest = shared_update(config)(single, rows, ones)
        first = rest if first is None else first
    assert int(several.step) == 3
    chex.assert_trees_all_close(several, single, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close([metrics, found], first, rtol=1e-5, atol=1e-6)


def test_decoupled_steps_are_ppo_steps_from_the_proximal_policy(get_key):
    # A weight above 0 may as well be part of the advantage, dual clip included.
    cap = 1.1
    state, rows, ones = start(get_key()), toy.random_rows(get_key()), jnp.ones(toy.ROWS)
    params = jax.tree.map(np.asarray, state.params)
    proximal, _ = toy.plain_token_log_probs(
        params, np.asarray(rows.tokens), np.asarray(rows.temperature)
    )
    weights = np.minimum(np.exp(proximal - np.asarray(rows.behaviour_log_probs)), cap)
    moved = dataclasses.replace(
        rows,
        behaviour_log_probs=jnp.asarray(proximal, jnp.float32),
        advantages=rows.advantages * jnp.asarray(weights, jnp.float32),
    )
    clips = {"clip_low": 0.05, "clip_high": 0.05, "dual_clip": 1.2}
    want, _, _ = shared_update(LossConfig(**clips), steps=3)(toy.copy(state), moved, ones)
    config = LossConfig(objective="decoupled", ratio_cap=cap, **clips)
    for microbatches in (1, 4):
        got, _, found = shared_update(config, microbatches, 3)(toy.copy(state), rows, ones)
        chex.assert_trees_all_close(got.params, want.params, rtol=1e-4, atol=1e-5)
        # Statistics stay those against the policy that collected the rows.
        gap = np.where(rows.response_mask, proximal - np.asarray(rows.behaviour_log_probs), 0.0)
        np.testing.assert_allclose(found.log_ratio, gap.sum(axis=1), atol=1e-5)


def test_one_decoupled_step_is_a_truncated_one(get_key):
    state, rows, ones = start(get_key()), toy.random_rows(get_key()), jnp.ones(toy.ROWS)
    one, other = (
        shared_update(LossConfig(objective=name, ratio_cap=1.1))(toy.copy(state), rows, ones)
        for name in ("decoupled", "tis")
    )
    chex.assert_trees_all_close(one[0].params, other[0].params, rtol=1e-5, atol=1e-6)


def test_skipped_steps_are_all_counted(get_key):
    state, rows, ones = start(get_key()), toy.random_rows(get_key()), jnp.ones(toy.ROWS)
    state, metrics, _ = shared_update(LossConfig(objective="tis"), steps=3)(
        state, rows, ones.at[0].set(jnp.nan)
    )
    assert (int(state.step), int(state.skipped), float(metrics["skipped"])) == (0, 3, 3.0)


@pytest.mark.parametrize(
    ("config", "steps"),
    [(VTRACE, 1), (LossConfig(objective="decoupled"), 3)],
    ids=["vtrace", "steps"],
)
def test_it_compiles_once_a_shape(config, steps, get_key):
    score = toy.token_log_probs if config.critic is None else token_scores
    update = make_update(chex.assert_max_traces(score, n=1), OPTIMIZER, loss=config, steps=steps)
    state = start(get_key())
    for weight in (1.0, 0.5):
        state, _, _ = update(state, random_rows(get_key()), jnp.full(toy.ROWS, weight))


def test_a_mesh_gives_the_result_of_one_device(get_key):
    config = dataclasses.replace(VTRACE, objective="decoupled")
    state, rows, ones = start(get_key()), random_rows(get_key(), rows=16), jnp.ones(16)
    update = shared_update(config, 2, 2)
    single = update(toy.copy(state), rows, ones)
    mesh = models.make_mesh(data=8)
    placed = jax.device_put(toy.copy(state), jax.NamedSharding(mesh, jax.P()))
    sharded = update(placed, *jax.device_put((rows, ones), jax.NamedSharding(mesh, jax.P("data"))))
    assert len(sharded[0].params["worth"].sharding.device_set) == 8
    chex.assert_trees_all_close(single, sharded, rtol=1e-4, atol=1e-5)


def test_bad_settings_are_named(get_key):
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        shared_update(LossConfig(), steps=0)
    with pytest.raises(ValueError, match=r"objective must be one of ppo, .*, got 'grpo'"):
        LossConfig(objective="grpo")
    with pytest.raises(ValueError, match=r"ratio_cap must be positive or None, got 0\.0"):
        LossConfig(ratio_cap=0.0)
    for fields, message in (
        ({"targets": "gae"}, "targets must be one of stored, vtrace, got 'gae'"),
        ({"coefficient": 0.0}, "coefficient must be positive"),
        ({"clip": 0.0}, "value clip must be positive or None"),
        ({"targets": "vtrace", "clip": 0.2}, "clip must be None with vtrace targets"),
        ({"gamma": 2.0}, "gamma must lie in"),
        ({"c_cap": 2.0}, "rho_cap must be at least c_cap"),
    ):
        with pytest.raises(ValueError, match=message):
            CriticConfig(**fields)
    with pytest.raises(ValueError, match="the batch must have rewards for CriticConfig"):
        shared_update(VTRACE)(start(get_key()), toy.random_rows(get_key()), jnp.ones(toy.ROWS))
    update = make_update(toy.token_log_probs, OPTIMIZER, loss=VTRACE)
    with pytest.raises(ValueError, match="token_log_probs must return values too"):
        update(start(get_key()), random_rows(get_key()), jnp.ones(toy.ROWS))
