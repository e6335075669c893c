import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from freshper_jax.models import (
    LoraConfig,
    adapt_model,
    add_value_head,
    init_adapters,
    init_value_head,
    make_mesh,
    make_model,
    param_partitions,
    param_shardings,
    row_sharding,
    without_value_head,
)
from tests.models.common import small_config, small_model

HEAD = {"kernel": jnp.linspace(-1.0, 1.0, 12), "bias": jnp.float32(0.5)}
TOKENS = np.random.default_rng(0).integers(13, size=(4, 10), dtype=np.int32)


@pytest.fixture(scope="module")
def headed():
    """The small model with a head, and params of it."""
    model, params = small_model()
    return add_value_head(model), {**params, "value_head": HEAD}


def test_scores_are_the_model_s_and_values_are_of_the_state_before_each_token(headed):
    critic, params = headed
    model, plain = small_model()
    log_probs, entropy, values = jax.jit(critic.token_scores)(params, TOKENS)
    want = jax.jit(model.token_log_probs)(plain, TOKENS)
    jax.tree.map(np.testing.assert_array_equal, (log_probs, entropy), want)
    hidden = np.asarray(jax.jit(model.hidden_states)(plain, TOKENS), np.float64)
    states = hidden @ np.asarray(HEAD["kernel"], np.float64) + 0.5
    np.testing.assert_allclose(values[:, 1:], states[:, :-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(values[:, 0], 0.0)
    alone = jax.jit(critic.token_values)(params, TOKENS)
    np.testing.assert_allclose(alone, values, rtol=1e-5, atol=1e-6)


def test_a_mask_leaves_out_scores_and_no_values(headed):
    critic, params = headed
    mask = np.random.default_rng(1).random(TOKENS.shape) < 0.4
    score = jax.jit(critic.token_scores)
    *scores, values = score(params, TOKENS, 1.0, mask)
    *all_scores, all_values = score(params, TOKENS, 1.0)
    for got, want in zip(scores, all_scores, strict=True):
        np.testing.assert_allclose(got, np.where(mask, want, 0.0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values, all_values, rtol=1e-5, atol=1e-6)


def test_a_new_head_values_everything_nothing(headed):
    critic, params = headed
    head = init_value_head(critic.policy.config)
    values = jax.jit(critic.token_values)({**params, "value_head": head}, TOKENS)
    np.testing.assert_array_equal(values, np.zeros(TOKENS.shape, np.float32))


def test_the_policy_takes_params_with_a_head_and_without(headed):
    critic, params = headed
    score = jax.jit(critic.policy.token_log_probs)
    plain = without_value_head(params)
    assert "value_head" not in plain
    jax.tree.map(np.testing.assert_array_equal, score(params, TOKENS), score(plain, TOKENS))
    jax.tree.map(np.testing.assert_array_equal, plain, small_model()[1])


def test_a_head_is_trained_beside_adapters():
    model, base = small_model()
    lora = LoraConfig(rank=2, alpha=4.0, targets=("query",))
    critic = add_value_head(adapt_model(model, lora))
    adapters = init_adapters(model.config, lora, jax.random.key(0))
    trained = {**adapters, "value_head": HEAD}

    @jax.jit
    def slopes(trained):
        def total(trained):
            log_probs, _, values = critic.token_scores((base, trained), TOKENS)
            return log_probs.sum() + values.sum()

        return jax.grad(total)(trained)

    found = slopes(trained)
    assert set(found) == {"query", "value_head"}
    assert found["value_head"]["bias"] == TOKENS.shape[0] * (TOKENS.shape[1] - 1)
    assert np.any(np.asarray(found["query"]["b"]) != 0)
    assert set(without_value_head((base, trained))[1]) == {"query"}


@pytest.mark.parametrize("detached", [False, True])
def test_a_detached_head_leaves_the_policy_alone(detached, headed):
    _, params = headed
    critic = add_value_head(small_model()[0], detached=detached)

    def total(params):
        return jnp.square(critic.token_values(params, TOKENS) - 1.0).sum()

    slopes = jax.jit(jax.grad(total))(params)
    assert np.any(np.asarray(slopes["value_head"]["kernel"]) != 0)
    reached = [np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(slopes["layers"])]
    assert not any(reached) if detached else all(reached)


def test_a_mesh_gives_the_values_of_one_device(headed):
    critic, params = headed
    mesh = make_mesh(data=2, fsdp=2, tp=2)
    assert param_partitions(mesh, params)["value_head"] == {
        "kernel": PartitionSpec(None),
        "bias": PartitionSpec(),
    }
    values = jax.jit(critic.token_values)
    placed = jax.device_put(params, param_shardings(mesh, params))
    sharded = values(placed, jax.device_put(TOKENS, row_sharding(mesh)))
    np.testing.assert_allclose(sharded, values(params, TOKENS), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_values_cost_no_second_pass_and_no_logits():
    model = make_model(small_config(hidden_size=32, vocab_size=512, num_hidden_layers=2))
    critic = add_value_head(model)
    params = jax.eval_shape(model.init, jax.random.key(0))
    headed = {**params, "value_head": jax.eval_shape(lambda: init_value_head(model.config))}
    tokens = jax.ShapeDtypeStruct((4, 128), jnp.int32)

    def plan(score, params):
        def total(params, tokens):
            return sum(x.sum() for x in score(params, tokens))

        return jax.jit(jax.grad(total)).lower(params, tokens).compile()

    plain, valued = plan(model.token_log_probs, params), plan(critic.token_scores, headed)
    flops = [one.cost_analysis()["flops"] for one in (plain, valued)]
    assert flops[1] < 1.02 * flops[0]
    memory = [one.memory_analysis().temp_size_in_bytes for one in (plain, valued)]
    assert memory[1] < 1.1 * memory[0]
    alone = jax.jit(critic.token_values).lower(headed, tokens).compile()
    assert alone.memory_analysis().temp_size_in_bytes < 4 * 4 * 128 * 512
