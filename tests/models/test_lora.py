import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax.models import (
    LoraConfig,
    adapt_model,
    init_adapters,
    merge_adapters,
    scoring,
)
from tests.models import oracle
from tests.models.common import small_config, small_model

LORA = LoraConfig(rank=3, alpha=6.0)
KERNELS = {
    "query": ("attention", "query", "kernel"),
    "key": ("attention", "key", "kernel"),
    "value": ("attention", "value", "kernel"),
    "output": ("attention", "output"),
    "gate": ("feed_forward", "gate"),
    "up": ("feed_forward", "up"),
    "down": ("feed_forward", "down"),
}


def random_adapters(config, lora=LORA):
    generator = np.random.default_rng(4)
    shapes = jax.eval_shape(lambda: init_adapters(config, lora, jax.random.key(0)))
    return jax.tree.map(lambda x: generator.normal(scale=0.2, size=x.shape).astype("f4"), shapes)


def plain_merge(params, adapters, scale):
    """W + scale a b in float64, layer by layer."""
    merged = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    for target, factors in adapters.items():
        *path, name = KERNELS[target]
        node = merged["layers"]
        for step in path:
            node = node[step]
        for layer, kernel in enumerate(node[name]):
            a, b = (np.asarray(factors[f][layer], np.float64) for f in "ab")
            kernel += scale * (a @ b).reshape(kernel.shape)
    return merged


def random_tokens():
    return np.random.default_rng(0).integers(13, size=(2, 10), dtype=np.int32)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_adapted_and_merged_models_equal_a_numpy_decoder_with_merged_kernels(scan_layers):
    model, params = small_model(scan_layers=scan_layers, remat="dots")
    adapted, adapters = adapt_model(model, LORA), random_adapters(model.config)
    tokens = random_tokens()
    got, _ = jax.jit(adapted.token_log_probs)((params, adapters), tokens)
    merged = merge_adapters(model.config, LORA, params, adapters)
    plain, _ = jax.jit(model.token_log_probs)(merged, tokens)
    want = plain_merge(params, adapters, 2.0)
    chex.assert_trees_all_close(merged, want, rtol=1e-5, atol=1e-6)
    for row in range(2):
        exact, _ = oracle.token_log_probs(model.config, want, tokens[row])
        np.testing.assert_allclose(got[row], exact, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(plain[row], exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_gradient_equals_differences_of_the_numpy_decoder(monkeypatch, masked):
    # With a mask: two positions of the 13 words at a time.
    monkeypatch.setattr(scoring, "_CHUNK_ELEMENTS", 2 * 13)
    model, params = small_model(remat="dots")
    adapted, adapters = adapt_model(model, LORA), random_adapters(model.config)
    tokens = random_tokens()[:1]
    mask = np.isin(np.arange(10), [3, 4, 8]) if masked else np.ones(10, bool)

    def objective(adapters):
        chosen = mask[None] if masked else None
        return adapted.token_log_probs((params, adapters), tokens, 1.0, chosen)[0].sum()

    def reference(adapters):
        merged = plain_merge(params, adapters, 2.0)
        return oracle.token_log_probs(model.config, merged, tokens[0])[0][mask].sum()

    gradient = jax.jit(jax.grad(objective))(adapters)
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), adapters)
    generator = np.random.default_rng(5)
    for target, factors in exact.items():
        for name, leaf in factors.items():
            direction = generator.normal(size=leaf.shape)
            ends = []
            for step in (1e-5, -1e-5):
                moved = {**exact, target: {**factors, name: leaf + step * direction}}
                ends.append(reference(moved))
            want = (ends[0] - ends[1]) / 2e-5
            got = np.sum(np.asarray(gradient[target][name], np.float64) * direction)
            assert got == pytest.approx(want, rel=2e-3, abs=2e-3), (target, name)


def test_new_adapters_change_nothing_and_are_few():
    model, params = small_model()
    lora = LoraConfig(rank=2, alpha=4.0, targets=("query", "value"))
    adapters = init_adapters(model.config, lora, jax.random.key(1))
    chex.assert_trees_all_equal(merge_adapters(model.config, lora, params, adapters), params)
    shapes = jax.tree.map(lambda leaf: leaf.shape, adapters)
    assert shapes == {
        "query": {"a": (2, 12, 2), "b": (2, 2, 24)},
        "value": {"a": (2, 12, 2), "b": (2, 2, 12)},
    }
    wide = init_adapters(small_config(hidden_size=512), lora, jax.random.key(1))
    assert np.std(wide["query"]["a"]) == pytest.approx(512**-0.5, rel=0.1)
    assert not np.array_equal(wide["query"]["a"], wide["value"]["a"])


def test_a_bfloat16_base_is_merged_in_float32_and_stays_bfloat16():
    model, _ = small_model(param_dtype="bfloat16")
    params = jax.tree.map(
        lambda x: jnp.ones(x.shape, x.dtype), small_model(param_dtype="bfloat16")[1]
    )
    lora = LoraConfig(rank=1, alpha=1.0, targets=("gate",))
    adapters = {"gate": {"a": jnp.full((2, 12, 1), 0.5), "b": jnp.full((2, 1, 20), 0.5)}}
    merged = merge_adapters(model.config, lora, params, adapters)
    gate = merged["layers"]["feed_forward"]["gate"]
    assert gate.dtype == jnp.bfloat16
    np.testing.assert_array_equal(gate.astype(jnp.float32), 1.25)
    assert merged["layers"]["feed_forward"]["up"] is params["layers"]["feed_forward"]["up"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rank": 0}, ValueError, "rank must be at least 1, got 0"),
        ({"rank": 2.0}, TypeError, "rank must be an int, got 2.0"),
        ({"alpha": -1.0}, ValueError, "alpha must be positive and finite, got -1.0"),
        ({"alpha": "16"}, TypeError, "alpha must be a number, got '16'"),
        ({"targets": "query"}, TypeError, "targets must be a tuple of names, got 'query'"),
        ({"targets": ()}, ValueError, "one or more different names"),
        ({"targets": ("up", "up")}, ValueError, "one or more different names"),
        ({"targets": ("q_proj",)}, ValueError, "targets must be of query, .*, got 'q_proj'"),
    ],
)
def test_bad_settings_are_named(change, error, message):
    with pytest.raises(error, match=message):
        LoraConfig(**change)


def test_adapters_of_another_config_are_refused():
    model, params = small_model()
    other = random_adapters(model.config, LoraConfig(rank=2, alpha=1.0))
    with pytest.raises(ValueError, match=r"adapter down/a must be \(2, 20, 3\), got \(2, 20, 2\)"):
        merge_adapters(model.config, LORA, params, other)
    few = {"query": random_adapters(model.config)["query"]}
    with pytest.raises(ValueError, match=r"adapters must be of down, .*, got query"):
        adapt_model(model, LORA).bind((params, few))
