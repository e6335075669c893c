import dataclasses
import functools
from typing import get_args

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import models
from freshper_jax.objectives import Aggregation
from freshper_jax.training import (
    LossConfig,
    OptimizerConfig,
    init_train_state,
    make_cloning_update,
    make_optimizer,
    make_update,
)
from tests.training import toy

OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=0.05, max_grad_norm=0.1, weight_decay=0.1))
LOSS = LossConfig(clip_low=0.2, clip_high=0.2, dual_clip=2.0, entropy_coefficient=0.01)


@functools.cache
def shared_update(microbatches=1, loss=LOSS):
    return make_update(toy.token_log_probs, OPTIMIZER, loss=loss, microbatches=microbatches)


def start(key):
    return init_train_state(toy.init_params(key), OPTIMIZER)


def plain_loss(params, rows, weights):
    """Token-mean clipped loss with dual clip and entropy bonus, in float64 loops."""
    log_probs, entropy = toy.plain_token_log_probs(params, rows.tokens, rows.temperature)
    mask = np.asarray(rows.response_mask)
    total = 0.0
    for row, token in zip(*np.nonzero(mask), strict=True):
        ratio = np.exp(log_probs[row, token] - float(rows.behaviour_log_probs[row, token]))
        advantage = float(rows.advantages[row, token])
        objective = min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        if advantage < 0:
            objective = max(objective, 2.0 * advantage)
        total -= float(weights[row]) * objective + 0.01 * entropy[row, token]
    return total / mask.sum()


def test_loss_and_gradient_match_a_plain_oracle(get_key):
    state, rows = start(get_key()), toy.random_rows(get_key())
    rows_np = jax.tree.map(np.asarray, rows)
    weights = np.asarray(jax.random.uniform(get_key(), (toy.ROWS,)))
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state.params)
    _, metrics, _ = shared_update()(state, rows, weights)
    assert metrics["loss"] == pytest.approx(plain_loss(params, rows_np, weights), rel=1e-5)

    square, step = 0.0, 1e-6
    for name, leaf in params.items():
        for place in np.ndindex(leaf.shape):
            sides = []
            for sign in (1, -1):
                moved = {**params, name: leaf.copy()}
                moved[name][place] += sign * step
                sides.append(plain_loss(moved, rows_np, weights))
            square += ((sides[0] - sides[1]) / (2 * step)) ** 2
    assert metrics["grad_norm"] == pytest.approx(np.sqrt(square), rel=1e-4)
    assert metrics["grad_norm"] > 0.1  # reported before the clip


def test_the_step_is_the_optimizer_s(get_key):
    state, rows = start(get_key()), toy.random_rows(get_key())
    before = jax.tree.map(np.asarray, state.params)
    after, metrics, _ = shared_update()(state, rows, jnp.ones(toy.ROWS))
    # Adam's first step has the size of the learning rate wherever there is a gradient.
    for name, leaf in before.items():
        moved = np.asarray(after.params[name]) - (1 - 0.05 * 0.1) * leaf
        assert np.all((np.abs(moved) < 1e-6) | (np.abs(np.abs(moved) - 0.05) < 1e-4))
    assert np.any(np.abs(np.asarray(after.params["table"]) - before["table"]) > 0.04)
    assert metrics["learning_rate"] == pytest.approx(0.05)
    assert (int(after.step), int(after.skipped)) == (1, 0)


def test_it_moves_probability_towards_good_tokens(get_key):
    rows = toy.random_rows(get_key())
    rows = dataclasses.replace(rows, response_mask=rows.response_mask.at[:, 1].set(True))
    good = jnp.where(rows.tokens == 2, 1.0, -1.0)
    state = start(get_key())

    def probability(params):
        log_probs, _ = toy.token_log_probs(params, rows.tokens, rows.temperature)
        chosen = rows.response_mask & (rows.tokens == 2)
        return float(jnp.mean(jnp.exp(log_probs), where=chosen))

    before = probability(state.params)
    for _ in range(20):
        scores, _ = toy.token_log_probs(state.params, rows.tokens, rows.temperature)
        fresh = dataclasses.replace(rows, advantages=good, behaviour_log_probs=scores)
        state, _, _ = shared_update()(state, fresh, jnp.ones(toy.ROWS))
    assert probability(state.params) > 2 * before


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_microbatches_accumulate_the_full_gradient(aggregation, get_key):
    loss = dataclasses.replace(LOSS, aggregation=aggregation)
    state, rows = start(get_key()), toy.random_rows(get_key())
    # Rows of very different length, so that a mean of the parts' means would differ.
    mask = rows.response_mask & (jnp.arange(toy.ROWS) % 4 == 0)[:, None]
    rows = dataclasses.replace(rows, response_mask=mask.at[:, 2].set(True))
    weights = jax.random.uniform(get_key(), (toy.ROWS,))
    whole = shared_update(1, loss)(toy.copy(state), rows, weights)
    parts = shared_update(4, loss)(toy.copy(state), rows, weights)
    chex.assert_trees_all_close(whole, parts, rtol=1e-5, atol=1e-6)


def test_row_statistics_keep_the_order_of_the_batch(get_key):
    state, rows = start(get_key()), toy.random_rows(get_key())
    rows_np = jax.tree.map(np.asarray, rows)
    params = jax.tree.map(np.asarray, state.params)
    log_probs, _ = toy.plain_token_log_probs(params, rows_np.tokens, rows_np.temperature)
    log_ratio = np.where(rows_np.response_mask, log_probs - rows_np.behaviour_log_probs, 0.0)
    for microbatches in (1, 4):
        _, metrics, statistics = shared_update(microbatches)(
            toy.copy(state), rows, jnp.ones(toy.ROWS)
        )
        np.testing.assert_allclose(statistics.log_ratio, log_ratio.sum(axis=1), atol=1e-5)
        kl = np.sum(np.exp(log_ratio) - 1 - log_ratio, axis=1)
        kl /= np.maximum(rows_np.response_mask.sum(axis=1), 1)
        np.testing.assert_allclose(statistics.token_kl, kl, rtol=1e-4, atol=1e-6)
        ratios = np.exp(log_ratio.sum(axis=1))[rows_np.response_mask.any(axis=1)]
        ess = ratios.sum() ** 2 / (len(ratios) * np.sum(ratios**2))
        assert metrics["ess_fraction"] == pytest.approx(ess, rel=1e-4)


@pytest.mark.parametrize("poison", ["advantages", "weights", "params"])
def test_a_non_finite_gradient_is_skipped_and_counted(poison, get_key):
    state, rows = start(get_key()), toy.random_rows(get_key())
    rows = dataclasses.replace(rows, response_mask=rows.response_mask.at[:, 1].set(True))
    state, _, _ = shared_update()(state, rows, jnp.ones(toy.ROWS))
    weights, bad = jnp.ones(toy.ROWS), rows
    if poison == "advantages":
        bad = dataclasses.replace(rows, advantages=rows.advantages.at[3, 1].set(jnp.nan))
    elif poison == "weights":
        weights = weights.at[2].set(jnp.inf)
    else:
        table = state.params["table"].at[rows.tokens[0, 0]].set(jnp.inf)
        state = dataclasses.replace(state, params={**state.params, "table": table})
    before = jax.tree.map(np.asarray, state)
    after, metrics, _ = shared_update()(state, bad, weights)
    assert metrics["skipped"] == 1.0
    assert int(after.skipped) == int(before.skipped) + 1
    chex.assert_trees_all_equal(
        dataclasses.replace(after, skipped=0), dataclasses.replace(before, skipped=0)
    )
    if poison != "params":  # and training goes on
        again, metrics, _ = shared_update()(after, rows, jnp.ones(toy.ROWS))
        assert metrics["skipped"] == 0.0
        assert (int(again.step), int(again.skipped)) == (2, 1)


def test_a_finite_loss_with_a_non_finite_gradient_is_skipped(get_key):
    def score(params, tokens, temperature, mask):
        # The root adds 0, but its slope at 0 is infinite.
        log_probs, entropy = toy.token_log_probs(params, tokens, temperature, mask)
        return log_probs + jnp.sqrt(params["bias"][0]), entropy

    state, rows = start(get_key()), toy.random_rows(get_key())
    before = jax.tree.map(np.asarray, state.params)
    update = make_update(score, OPTIMIZER, loss=LOSS)
    after, metrics, _ = update(state, rows, jnp.ones(toy.ROWS))
    assert np.isfinite(metrics["loss"])
    assert not np.isfinite(metrics["grad_norm"])
    assert (metrics["skipped"], int(after.step), int(after.skipped)) == (1.0, 0, 1)
    chex.assert_trees_all_equal(after.params, before)


def test_the_schedule_counts_applied_updates(get_key):
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1.0, schedule="linear", total_steps=4))
    update = make_update(toy.token_log_probs, optimizer)
    state, rows = (
        init_train_state(toy.init_params(get_key()), optimizer),
        toy.random_rows(get_key()),
    )
    rows = dataclasses.replace(rows, response_mask=rows.response_mask.at[0, 1].set(True))
    rates = []
    for weight in (1.0, 1.0, jnp.nan, 1.0, 1.0, 1.0, 1.0):
        state, metrics, _ = update(state, rows, jnp.full(toy.ROWS, weight))
        rates.append(float(metrics["learning_rate"]))
    np.testing.assert_allclose(rates, [1.0, 0.75, 0.5, 0.5, 0.25, 0.0, 0.0], atol=1e-6)


def test_nan_outside_the_response_does_not_matter(get_key):
    state, rows = start(get_key()), toy.random_rows(get_key())
    dirty = dataclasses.replace(
        rows,
        advantages=jnp.where(rows.response_mask, rows.advantages, jnp.nan),
        behaviour_log_probs=jnp.where(rows.response_mask, rows.behaviour_log_probs, jnp.nan),
    )
    clean = shared_update()(toy.copy(state), rows, jnp.ones(toy.ROWS))
    soiled = shared_update()(toy.copy(state), dirty, jnp.ones(toy.ROWS))
    chex.assert_trees_all_equal(clean, soiled)


def test_the_state_is_donated_and_the_batch_is_not(get_key):
    state, rows, weights = start(get_key()), toy.random_rows(get_key()), jnp.ones(toy.ROWS)
    shared_update()(state, rows, weights)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((rows, weights)))


def test_it_compiles_once_a_shape(get_key):
    traces = chex.assert_max_traces(toy.token_log_probs, n=1)
    update = make_update(traces, OPTIMIZER, loss=LOSS)
    state = start(get_key())
    for weight in (1.0, 0.5):
        rows = toy.random_rows(get_key())
        state, _, _ = update(state, rows, jnp.full(toy.ROWS, weight))


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_mesh_gives_the_result_of_one_device(replayed, microbatches, get_key):
    mesh = models.make_mesh(data=8)
    state, rows = start(get_key()), toy.random_rows(get_key(), rows=16)
    weights = jax.random.uniform(get_key(), (16,)) if replayed else jnp.ones(16)
    if not replayed:
        scores, _ = toy.token_log_probs(state.params, rows.tokens, rows.temperature)
        rows = dataclasses.replace(rows, behaviour_log_probs=scores)
    update = shared_update(microbatches)
    single = update(toy.copy(state), rows, weights)
    by_row = jax.NamedSharding(mesh, jax.P("data"))
    everywhere = jax.NamedSharding(mesh, jax.P())
    sharded_state = jax.device_put(toy.copy(state), everywhere)
    sharded = update(sharded_state, *jax.device_put((rows, weights), by_row))
    assert len(sharded[0].params["table"].sharding.device_set) == 8
    assert sharded[0].params["table"].sharding.is_fully_replicated
    chex.assert_trees_all_close(single, sharded, rtol=1e-5, atol=1e-6)


def test_only_the_scores_of_responses_matter(get_key):
    def score(params, tokens, temperature, mask):
        scores = toy.token_log_probs(params, tokens, temperature)
        wrong = 100.0 * params["bias"][0] - 7.0
        return tuple(jnp.where(mask, values, wrong) for values in scores)

    state, rows = start(get_key()), toy.random_rows(get_key())
    weights = jax.random.uniform(get_key(), (toy.ROWS,))
    want = shared_update()(toy.copy(state), rows, weights)
    got = make_update(score, OPTIMIZER, loss=LOSS)(state, rows, weights)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-6)


def test_low_precision_parameters_keep_their_dtype(get_key):
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), toy.init_params(get_key()))
    state, rows = init_train_state(params, OPTIMIZER), toy.random_rows(get_key())

    def score(params, tokens, temperature, mask):
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
        return toy.token_log_probs(wide, tokens, temperature, mask)

    update = make_update(score, OPTIMIZER, loss=LOSS, microbatches=2)
    before = jax.tree.map(np.asarray, state.params)
    state, metrics, _ = update(state, rows, jnp.ones(toy.ROWS))
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(state.params))
    assert not np.array_equal(before["table"], state.params["table"])
    assert all(value.dtype == jnp.float32 for value in metrics.values())


@pytest.mark.parametrize("microbatches", [1, 4])
def test_cloning_descends_the_cross_entropy(microbatches, get_key):
    update = make_cloning_update(toy.token_log_probs, OPTIMIZER, microbatches=microbatches)
    state, mask = start(get_key()), toy.random_rows(get_key()).response_mask
    # Each token tells the next, so that the best loss is 0.
    places = jnp.arange(toy.ROWS)[:, None] + jnp.arange(toy.TOKENS)[None, :]
    tokens = places % toy.VOCABULARY
    params = jax.tree.map(np.asarray, state.params)
    log_probs, entropy = toy.plain_token_log_probs(params, np.asarray(tokens), np.ones(toy.ROWS))
    inside = np.asarray(mask)
    for step in range(60):
        state, metrics = update(state, tokens, mask)
        if step == 0:
            assert metrics["loss"] == pytest.approx(-log_probs[inside].mean(), rel=1e-5)
            assert metrics["entropy"] == pytest.approx(entropy[inside].mean(), rel=1e-5)
    assert metrics["loss"] < 0.2
    assert int(state.step) == 60


def test_bad_settings_are_named(get_key):
    with pytest.raises(ValueError, match="microbatches must be at least 1, got 0"):
        shared_update(0)
    with pytest.raises(ValueError, match=r"microbatches \(3\) must divide the batch of 8 rows"):
        shared_update(3)(start(get_key()), toy.random_rows(get_key()), jnp.ones(toy.ROWS))
    with pytest.raises(ValueError, match="clip_low"):
        LossConfig(clip_low=2.0)
    with pytest.raises(ValueError, match="aggregation"):
        LossConfig(aggregation="sum")
    with pytest.raises(ValueError, match="entropy_coefficient must be at least 0, got -1"):
        LossConfig(entropy_coefficient=-1.0)


def test_microbatches_hold_the_activations_of_one_part_only(get_key):
    config = models.ModelConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    model = models.make_model(config)
    rows = jax.eval_shape(toy.random_rows, jax.random.key(0))
    wide = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((8, *[256] * (leaf.ndim - 1)), leaf.dtype), rows
    )
    state = jax.eval_shape(
        lambda key: init_train_state(model.init(key), OPTIMIZER), jax.random.key(0)
    )

    def temporaries(microbatches):
        update = make_update(model.token_log_probs, OPTIMIZER, microbatches=microbatches)
        plan = update.lower(state, wide, jax.ShapeDtypeStruct((8,), jnp.float32)).compile()
        return plan.memory_analysis().temp_size_in_bytes

    assert temporaries(4) < 0.5 * temporaries(1)


def test_what_is_frozen_is_scored_with_and_stays_as_it_is(get_key):
    def score(params, tokens, temperature, mask):
        frozen, trained = params
        return toy.token_log_probs({**frozen, **trained}, tokens, temperature, mask)

    params = toy.init_params(get_key())
    frozen, trained = {"table": params["table"]}, {"bias": params["bias"]}
    update = make_update(score, OPTIMIZER, loss=LOSS)
    rows, ones = toy.random_rows(get_key()), jnp.ones(toy.ROWS)
    whole = init_train_state(toy.copy(params), OPTIMIZER)
    _, want, _ = make_update(toy.token_log_probs, OPTIMIZER, loss=LOSS)(whole, rows, ones)
    state = init_train_state(toy.copy(trained), OPTIMIZER)
    before = np.asarray(frozen["table"])
    for _ in range(2):
        state, metrics, _ = update(state, rows, ones, frozen)
        if state.step == 1:
            np.testing.assert_allclose(metrics["loss"], want["loss"], rtol=1e-6)
            assert metrics["grad_norm"] < want["grad_norm"]
    np.testing.assert_array_equal(frozen["table"], before)  # neither changed nor given away
    assert set(state.params) == {"bias"}
    assert np.any(np.asarray(state.params["bias"]) != 0)
    sizes = [leaf.size for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    assert sizes == [toy.VOCABULARY] * 2
