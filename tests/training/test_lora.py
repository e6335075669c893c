"""Training adapters through the ordinary update."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from freshper_jax.generate import init_cache, make_generator
from freshper_jax.models import LoraConfig, adapt_model, init_adapters, make_model, merge_adapters
from freshper_jax.training import OptimizerConfig, init_train_state, make_optimizer, make_update
from tests.models.common import small_config, small_model
from tests.training.toy import Rows

LORA = LoraConfig(rank=2, alpha=4.0, targets=("query", "value", "down"))
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=0.03))


def make_rows(rows, length):
    tokens = jax.random.randint(jax.random.key(3), (rows, length), 0, 13)
    ones = jnp.ones((rows, length), jnp.float32)
    return Rows(
        tokens=tokens,
        response_mask=(ones > 0).at[:, 0].set(False),
        behaviour_log_probs=-2.5 * ones,
        advantages=ones,
        temperature=jnp.ones(rows),
        length=jnp.full(rows, length, jnp.int32),
    )


def test_updates_train_the_adapters_and_merge_to_what_was_trained():
    model, base = small_model(remat="dots")
    adapted = adapt_model(model, LORA)
    update = make_update(adapted.token_log_probs, OPTIMIZER, microbatches=2)
    rows = make_rows(4, 10)
    before = jax.tree.map(np.asarray, base)
    score = jax.jit(adapted.token_log_probs)
    state = init_train_state(init_adapters(model.config, LORA, jax.random.key(0)), OPTIMIZER)
    start = np.asarray(score((base, state.params), rows.tokens)[0])
    for _ in range(8):
        fresh, _ = score((base, state.params), rows.tokens)
        rows = dataclasses.replace(rows, behaviour_log_probs=fresh)
        state, _, _ = update(state, rows, jnp.ones(4), base)
    end = np.asarray(score((base, state.params), rows.tokens)[0])
    assert end[:, 1:].mean() > start[:, 1:].mean() + 0.1
    jax.tree.map(np.testing.assert_array_equal, base, before)
    merged = merge_adapters(model.config, LORA, base, state.params)
    plain, _ = jax.jit(model.token_log_probs)(merged, rows.tokens)
    np.testing.assert_allclose(plain, end, rtol=1e-4, atol=1e-4)

    # The pair extends a cache as merged params do.
    logits = []
    for one, params in ((adapted, (base, state.params)), (model, merged)):
        cache = init_cache(model.config, rows=4, slots=16)
        counts = jnp.full(4, 10, jnp.int32)
        logits.append(make_generator(one).extend(params, cache, rows.tokens, counts)[1])
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-4)


def test_the_update_never_copies_or_differentiates_the_base():
    config = small_config(
        hidden_size=128, intermediate_size=2048, num_hidden_layers=6, remat="dots", vocab_size=64
    )
    model = make_model(config)
    adapted, lora = adapt_model(model, LORA), LORA
    base = jax.eval_shape(model.init, jax.random.key(0))
    state = jax.eval_shape(
        lambda key: init_train_state(init_adapters(config, lora, key), OPTIMIZER),
        jax.random.key(0),
    )
    rows = jax.eval_shape(lambda: make_rows(1, 8))
    update = make_update(adapted.token_log_probs, OPTIMIZER)
    plan = update.lower(state, rows, jax.ShapeDtypeStruct((1,), jnp.float32), base).compile()
    size = sum(leaf.size * 4 for leaf in jax.tree.leaves(base))
    assert plan.memory_analysis().temp_size_in_bytes < 0.25 * size
    assert plan.memory_analysis().output_size_in_bytes < 0.25 * size
