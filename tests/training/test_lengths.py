import dataclasses
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
    halvings,
    in_length_order,
    init_train_state,
    length_order,
    make_optimizer,
    make_update,
)
from tests.training import toy

OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=0.05))


def ragged_rows(key, rows, lengths):
    """Random rows whose last response token is the one before each length; 0 is no response."""
    batch = toy.random_rows(key, rows)
    ends = jnp.asarray(lengths)[:, None]
    places = jnp.arange(toy.TOKENS)[None, :]
    mask = (batch.response_mask & (places < ends)) | ((places == ends - 1) & (places > 0))
    return dataclasses.replace(batch, response_mask=mask)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_what_is_cut_off_changes_nothing(aggregation, get_key):
    loss = LossConfig(aggregation=aggregation, dual_clip=2.0, entropy_coefficient=0.01)
    whole = make_update(toy.token_log_probs, OPTIMIZER, loss=loss, microbatches=4)
    cut = make_update(
        toy.token_log_probs, OPTIMIZER, loss=loss, microbatches=4, widths=(2, 3, 9, 4)
    )
    rows = ragged_rows(get_key(), 8, [2, 6, 3, 0, 5, 4, 2, 2])
    weights = jax.random.uniform(get_key(), (8,))
    state = init_train_state(toy.init_params(get_key()), OPTIMIZER)
    expected = whole(toy.copy(state), rows, weights)
    chex.assert_trees_all_close(cut(toy.copy(state), rows, weights), expected, rtol=1e-5, atol=1e-7)
    ordered = in_length_order(cut, 4, lambda batch: batch)
    chex.assert_trees_all_close(ordered(state, rows, weights), expected, rtol=1e-5, atol=1e-7)


def test_no_more_is_scored_than_the_responses_need(get_key):
    seen = []

    def score(params, tokens, temperature, mask):
        jax.debug.callback(lambda width=tokens.shape[1]: seen.append(width))
        return toy.token_log_probs(params, tokens, temperature, mask)

    update = make_update(score, OPTIMIZER, microbatches=4, widths=(2, 4))
    ordered = in_length_order(update, 4, lambda batch: batch)
    rows = ragged_rows(get_key(), 8, [2, 6, 3, 0, 5, 4, 2, 2])
    state = init_train_state(toy.init_params(get_key()), OPTIMIZER)
    state, *_ = ordered(state, rows, jnp.ones(8))
    jax.effects_barrier()
    # In order: none and 2, 2 and 2, 3 and 4, 5 and 6.
    assert sorted(seen) == [2, 2, 4, 6]


def test_one_compilation_serves_all_lengths(get_key):
    score = chex.assert_max_traces(toy.token_log_probs, n=3)  # once a width
    update = make_update(score, OPTIMIZER, microbatches=2, widths=(2, 4))
    ordered = in_length_order(update, 2, lambda batch: batch)
    state = init_train_state(toy.init_params(get_key()), OPTIMIZER)
    for lengths in ([2, 2, 2, 2], [6, 5, 2, 0], [0, 0, 0, 0], [6, 6, 6, 6]):
        state, metrics, _ = ordered(state, ragged_rows(get_key(), 4, lengths), jnp.ones(4))
        assert np.isfinite(metrics["loss"])


@pytest.mark.parametrize("devices", [2, 8])
def test_a_mesh_gives_the_result_of_one_device(devices, get_key):
    mesh = models.make_mesh(data=devices)
    by_row = jax.NamedSharding(mesh, jax.P("data"))
    state = init_train_state(toy.init_params(get_key()), OPTIMIZER)
    rows = ragged_rows(get_key(), 16, [2, 6, 3, 0, 5, 4, 2, 2] * 2)
    weights = jax.random.uniform(get_key(), (16,))
    update = make_update(toy.token_log_probs, OPTIMIZER, microbatches=2, widths=(2, 4))
    single = in_length_order(update, 2, lambda batch: batch)(toy.copy(state), rows, weights)
    ordered = in_length_order(update, 2, lambda batch: jax.device_put(batch, by_row))
    placed = jax.device_put(toy.copy(state), jax.NamedSharding(mesh, jax.P()))
    sharded = ordered(placed, *jax.device_put((rows, weights), by_row))
    assert len(sharded[0].params["table"].sharding.device_set) == devices
    chex.assert_trees_all_close(single, sharded, rtol=1e-5, atol=1e-6)


def test_parts_are_neighbours_in_length():
    rng = np.random.default_rng(0)
    for parts in (1, 2, 3, 6):
        lengths = rng.integers(0, 9, 12)
        mask = np.zeros((12, 8), bool)
        for row, length in enumerate(lengths):
            mask[row, max(length - 2, 0) : length] = True
        order = np.asarray(length_order(jnp.asarray(mask), parts))
        assert sorted(order) == list(range(12))
        sorted_lengths = np.sort(lengths).reshape(parts, -1)
        for part in range(parts):
            np.testing.assert_array_equal(lengths[order[part::parts]], sorted_lengths[part])


def test_widths_halve_the_length():
    assert halvings(512) == (64, 128, 256)
    assert halvings(208) == (32, 64, 112)  # rounded up to 16
    assert halvings(96) == (32, 48)
    assert halvings(32) == ()
    with pytest.raises(ValueError, match="widths must be at least 1, got"):
        make_update(toy.token_log_probs, OPTIMIZER, widths=(0,))
