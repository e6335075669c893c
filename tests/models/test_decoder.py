import functools
import gc
import weakref

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax.models import make_model, preset, scoring
from freshper_jax.models.decoder import unembed
from freshper_jax.models.scoring import score_tokens
from tests.models import oracle
from tests.models.common import small_config, small_model

ROWS, LENGTH = 2, 10
unembed_tied = functools.partial(unembed, tied=True)
SHAPES = {
    "grouped, tied, bias": {},
    "one key head a query head": {"num_key_value_heads": 4},
    "one key head": {"num_attention_heads": 3, "num_key_value_heads": 1},
    "untied, no bias": {"tie_word_embeddings": False, "attention_bias": False},
    "head size is width / heads": {
        "head_dim": 4,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    },
    "unrolled": {"scan_layers": False},
    "one block": {"attention_block": 32},
    "a block a token": {"attention_block": 1},
}


def random_tokens(rows=ROWS, length=LENGTH, vocab_size=13, seed=0):
    return np.random.default_rng(seed).integers(vocab_size, size=(rows, length), dtype=np.int32)


@pytest.mark.parametrize("overrides", SHAPES.values(), ids=SHAPES.keys())
def test_forward_and_scores_equal_a_plain_numpy_decoder(overrides):
    model, params = small_model(**overrides)
    tokens = random_tokens()
    temperature = np.array([0.7, 1.6], np.float32)

    @jax.jit
    def run(params, tokens, temperature):
        hidden = model.hidden_states(params, tokens)
        scores = model.token_log_probs(params, tokens, temperature)
        return hidden, model.logits(params, hidden), *scores

    hidden, logits, log_probs, entropy = run(params, tokens, temperature)
    chex.assert_shape(hidden, (ROWS, LENGTH, 12))
    chex.assert_type([logits, log_probs, entropy], jnp.float32)
    for row in range(ROWS):
        want = oracle.logits(model.config, params, tokens[row])
        np.testing.assert_allclose(logits[row], want, rtol=1e-4, atol=1e-4)
        scores = oracle.token_log_probs(model.config, params, tokens[row], temperature[row])
        np.testing.assert_allclose(log_probs[row], scores[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(entropy[row], scores[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"tie_word_embeddings": False, "num_key_value_heads": 1},
        {"remat": "full"},
        {"remat": "dots"},
        {"remat": "dots", "scan_layers": False},
    ],
    ids=["tied", "untied, one key head", "recomputed", "dots kept", "dots kept, unrolled"],
)
def test_gradient_equals_differences_of_the_numpy_decoder(overrides):
    model, params = small_model(**overrides)
    tokens = random_tokens(seed=1)
    weights = np.random.default_rng(2).normal(size=(2, ROWS, LENGTH))

    def objective(params):
        log_probs, entropy = model.token_log_probs(params, tokens, 0.8)
        return jnp.sum(log_probs * weights[0].astype(np.float32)) + jnp.sum(
            entropy * weights[1].astype(np.float32)
        )

    def reference(params):
        return sum(
            oracle.token_log_probs(model.config, params, tokens[row], 0.8)[part]
            @ weights[part, row]
            for row in range(ROWS)
            for part in range(2)
        )

    gradient = jax.jit(jax.grad(objective))(params)
    generator = np.random.default_rng(3)
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    leaves, structure = jax.tree.flatten(exact)
    # One difference a parameter array, in a random direction, so that none hides behind another.
    for index, slope in enumerate(jax.tree.leaves(gradient)):
        direction = generator.normal(size=leaves[index].shape)
        ends = []
        for step in (1e-5, -1e-5):
            moved = [*leaves[:index], leaves[index] + step * direction, *leaves[index + 1 :]]
            ends.append(reference(jax.tree.unflatten(structure, moved)))
        want = (ends[0] - ends[1]) / 2e-5
        got = float(np.sum(np.asarray(slope, np.float64) * direction))
        assert got == pytest.approx(want, rel=2e-3, abs=2e-3)


def test_states_past_a_length_are_zero_and_the_others_do_not_change():
    model, params = small_model()
    tokens = random_tokens()
    lengths = np.array([3, 10], np.int32)
    run = jax.jit(model.hidden_states)
    hidden = run(params, tokens, lengths)
    other = tokens.copy()
    other[0, 3:] = (other[0, 3:] + 1) % 13
    assert np.all(np.asarray(hidden)[0, 3:] == 0)
    assert np.all(np.asarray(hidden)[0, :3] != 0)
    np.testing.assert_array_equal(hidden, run(params, other, lengths))
    np.testing.assert_array_equal(hidden[1], run(params, tokens, np.array([10, 10], np.int32))[1])


@pytest.mark.parametrize("chunk", [1, 4])
def test_scores_and_gradients_do_not_depend_on_the_chunk(chunk):
    model, params = small_model()
    tokens = random_tokens()
    weights = np.random.default_rng(0).normal(size=(2, ROWS, LENGTH)).astype(np.float32)

    @functools.partial(jax.jit, static_argnames="chunk")
    @functools.partial(jax.value_and_grad, has_aux=True)
    def objective(params, chunk):
        scores = score_tokens(
            unembed_tied,
            params["embedding"],
            model.hidden_states(params, tokens),
            tokens,
            1.0,
            vocab_size=13,
            chunk=chunk,
        )
        return sum(jnp.sum(x * w) for x, w in zip(scores, weights, strict=True)), scores

    whole, parts = objective(params, chunk=None), objective(params, chunk=chunk)
    chex.assert_trees_all_close(whole, parts, rtol=1e-4, atol=1e-4)


def largest_array(jaxpr):
    """Elements of the largest array that a jaxpr or one inside it computes."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [variable.aval.size for variable in equation.outvars]
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    sizes.append(largest_array(inner))
    return max(sizes)


def test_long_rows_never_hold_all_logits_nor_all_scores_of_attention():
    rows, length, vocab_size = 4, 4096, 50_000
    config = small_config(
        vocab_size=vocab_size,
        hidden_size=8,
        num_attention_heads=1,
        num_key_value_heads=1,
        attention_block=512,
    )
    model = make_model(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    objective = jax.grad(lambda params, tokens: model.token_log_probs(params, tokens)[0].sum())
    largest = largest_array(jax.make_jaxpr(objective)(shapes, tokens).jaxpr)
    assert largest < rows * length * vocab_size // 20
    assert largest < rows * length * length // 2


def planned_bytes(function, *shapes):
    return jax.jit(function).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def test_the_compiled_gradient_never_holds_all_logits_of_a_long_row():
    length, vocab_size = 2048, 151_936
    model = make_model(
        small_config(vocab_size=vocab_size, num_hidden_layers=1, attention_block=512)
    )
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def objective(params, tokens):
        log_probs, entropy = model.token_log_probs(params, tokens)
        return jnp.sum(log_probs + entropy)

    # All of them take 1.2 GB; a chunk and what becomes of it, a few times 64 MiB.
    for function in (objective, jax.grad(objective)):
        assert planned_bytes(function, shapes, tokens) < length * vocab_size * 4 // 4


def test_kept_and_recomputed_logits_give_the_same_gradient():
    model, params = small_model()
    tokens = random_tokens()

    def gradient(score):
        return jax.jit(jax.grad(lambda params: sum(jnp.sum(jnp.sin(x)) for x in score(params))))

    def in_parts(params):
        hidden = model.hidden_states(params, tokens)
        kernel = params["embedding"]
        return score_tokens(unembed_tied, kernel, hidden, tokens, 0.7, vocab_size=13, chunk=3)

    whole = gradient(lambda params: model.token_log_probs(params, tokens, 0.7))
    chex.assert_trees_all_close(gradient(in_parts)(params), whole(params), rtol=1e-4, atol=1e-4)


def test_chunks_of_bfloat16_kernels_add_up_in_float32():
    """Products in float32, so that only the sum over chunks could lose anything."""
    generator = np.random.default_rng(0)
    hidden = jnp.asarray(generator.normal(size=(2, 256, 8)), jnp.float32)
    kernel = jnp.asarray(generator.normal(size=(13, 8)), jnp.bfloat16)
    tokens = random_tokens(length=256)

    def slope(chunk):
        def total(kernel):
            scores = score_tokens(
                unembed_tied, kernel, hidden, tokens, 1.0, vocab_size=13, chunk=chunk
            )
            return scores[0].sum()

        return jax.jit(jax.grad(total))(kernel).astype(jnp.float32)

    whole = slope(None)
    # Each chunk's own slope is rounded to 8 bits, and errors of 128 chunks average out.
    error = jnp.linalg.norm(slope(2) - whole) / jnp.linalg.norm(whole)
    assert error < 0.004


def test_a_mask_of_another_shape_is_an_error():
    model, params = small_model()
    with pytest.raises(
        ValueError, match=r"mask must be \[B, T\] = \(2, 10\) like tokens, got \(2, 1"
    ):
        model.token_log_probs(params, random_tokens(), 1.0, np.ones((2, 1), bool))


def test_scored_parameters_are_let_go():
    model, _ = small_model()
    params = jax.jit(model.init)(jax.random.key(1))
    kept = weakref.ref(params["embedding"])
    score_tokens(
        unembed_tied,
        params["embedding"],
        model.hidden_states(params, random_tokens()),
        random_tokens(),
        1.0,
        vocab_size=13,
        chunk=3,
    )
    del params
    gc.collect()
    assert kept() is None


MASKS = {
    "some": np.array([[0, 1, 1, 0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1, 1, 1, 0, 1]], bool),
    "all": np.array([[0] + [1] * 9] * 2, bool),
    "none of one row": np.array([[0] * 10, [0] * 7 + [1] * 3], bool),
    "none": np.zeros((2, 10), bool),
    # Nothing predicts the first token, whatever the mask says.
    "the first": np.array([[1] + [0] * 9, [1, 1] + [0] * 8], bool),
}


@pytest.mark.parametrize("chunk", [3, None])
def test_a_mask_leaves_out_the_others_and_changes_nothing_else(chunk):
    model, params = small_model()
    tokens = random_tokens()
    weights = np.random.default_rng(0).normal(size=(2, ROWS, LENGTH)).astype(np.float32)
    hidden = jax.jit(model.hidden_states)(params, tokens)
    point = (params["embedding"], hidden, np.array([0.7, 1.6], np.float32))

    def gradient(score):
        def total(*point, mask):
            scores = score(*point, mask)
            return sum(jnp.sum(x * w) for x, w in zip(scores, weights, strict=True)), scores

        return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))

    def masked(kernel, hidden, temperature, mask):
        options = {"vocab_size": 13, "mask": mask, "chunk": chunk}
        return score_tokens(unembed_tied, kernel, hidden, tokens, temperature, **options)

    def whole(kernel, hidden, temperature, mask):
        scores = score_tokens(unembed_tied, kernel, hidden, tokens, temperature, vocab_size=13)
        return tuple(jnp.where(mask, x, 0.0) for x in scores)

    got, want = gradient(masked), gradient(whole)
    for mask in MASKS.values():
        chex.assert_trees_all_close(
            got(*point, mask=mask), want(*point, mask=mask), rtol=1e-4, atol=1e-4
        )


def test_chunks_that_no_row_needs_are_not_computed_and_a_mask_compiles_nothing():
    model, params = small_model()
    tokens = random_tokens()
    calls = []

    def unembed(kernel, states):
        jax.debug.callback(lambda: calls.append(len(states)))
        return unembed_tied(kernel, states)

    @chex.assert_max_traces(n=1)
    def slopes(hidden, mask):
        def total(hidden):
            kernel, options = params["embedding"], {"vocab_size": 13, "mask": mask, "chunk": 2}
            return score_tokens(unembed, kernel, hidden, tokens, 1.0, **options)[0].sum()

        return jax.grad(total)(hidden)

    slopes = jax.jit(slopes)
    hidden = jax.jit(model.hidden_states)(params, tokens)
    chunks = []
    for mask in MASKS.values():
        calls.clear()
        slopes(hidden, mask).block_until_ready()
        jax.effects_barrier()
        chunks.append(len(calls))
    # Twice each, as the backward pass computes it again: of 5, 9, 3, 0 and 1 tokens in a row.
    assert chunks == [2 * 3, 2 * 5, 2 * 2, 0, 2 * 1]


@pytest.mark.parametrize("cached", [13, 3 * 13, 7 * 13])
def test_statistics_by_parts_are_those_of_the_whole(monkeypatch, cached):
    logits = np.random.default_rng(0).normal(scale=3, size=(17, 13)).astype(np.float32)
    targets = np.random.default_rng(1).integers(0, 13, 17, np.int32)
    temperature = np.linspace(0.5, 2, 17, dtype=np.float32)
    # Rows a part: 1, 3 and 7; 17 rows do not divide by the last two.
    monkeypatch.setattr(scoring, "_CACHED_ELEMENTS", cached)
    # A function of its own, or jit would find the program of another size.
    got = jax.jit(lambda *args: scoring._statistics_by_parts(*args))(logits, targets, temperature)
    exact = logits.astype(np.float64) / temperature[:, None]
    normaliser = np.log(np.exp(exact).sum(-1))
    log_probs = exact - normaliser[:, None]
    want = (
        log_probs[np.arange(17), targets],
        -(np.exp(log_probs) * log_probs).sum(-1),
        normaliser,
    )
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_scores_have_the_gradient_of_the_temperature_too():
    model, params = small_model()
    tokens = random_tokens()
    step = 1e-5

    def total(temperature):
        return sum(x.sum() for x in model.token_log_probs(params, tokens, temperature))

    def exact(temperature):
        scores = (oracle.token_log_probs(model.config, params, row, temperature) for row in tokens)
        return sum(x.sum() for pair in scores for x in pair)

    got = jax.jit(jax.grad(total))(jnp.float32(0.7))
    want = (exact(0.7 + step) - exact(0.7 - step)) / (2 * step)
    assert float(got) == pytest.approx(want, rel=1e-3)


def test_remat_trades_memory_by_name():
    def needed(remat):
        config = small_config(
            hidden_size=32,
            intermediate_size=128,
            num_hidden_layers=6,
            attention_block=64,
            remat=remat,
        )
        model = make_model(config)
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        tokens = jax.ShapeDtypeStruct((4, 64), jnp.int32)
        gradient = jax.grad(lambda params, tokens: model.token_log_probs(params, tokens)[0].sum())
        return planned_bytes(gradient, shapes, tokens)

    none, dots, full = (needed(remat) for remat in ("none", "dots", "full"))
    assert full < 0.8 * dots
    assert dots < 0.8 * none


def test_bfloat16_compute_stays_near_float32_and_scores_in_float32():
    model, params = small_model()
    half = make_model(small_config(compute_dtype="bfloat16"))
    tokens = random_tokens()
    hidden = jax.jit(half.hidden_states)(params, tokens)
    log_probs, entropy = jax.jit(half.token_log_probs)(params, tokens)
    assert hidden.dtype == jnp.bfloat16
    chex.assert_type([half.logits(params, hidden), log_probs, entropy], jnp.float32)
    for row in range(ROWS):
        want, _ = oracle.token_log_probs(model.config, params, tokens[row])
        np.testing.assert_allclose(log_probs[row], want, atol=0.15)


def test_parameters_are_kept_in_the_param_dtype():
    model = make_model(small_config(param_dtype="bfloat16", compute_dtype="bfloat16"))
    params = jax.eval_shape(model.init, jax.random.key(0))
    chex.assert_type(jax.tree.leaves(params), jnp.bfloat16)
    objective = jax.grad(lambda params: model.token_log_probs(params, random_tokens())[0].sum())
    gradient = jax.eval_shape(objective, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(gradient, params)


def test_init_is_a_function_of_its_key_with_the_stated_spread():
    model = make_model(small_config(hidden_size=64, initializer_range=0.05))
    init = jax.jit(model.init)
    params = init(jax.random.key(1))
    chex.assert_trees_all_equal(params, init(jax.random.key(1)))
    gate = np.asarray(params["layers"]["feed_forward"]["gate"])
    assert gate.shape == (2, 64, 20)
    assert np.std(gate) == pytest.approx(0.05, rel=0.1)
    assert not np.array_equal(gate[0], gate[1])
    assert np.all(np.asarray(params["layers"]["attention"]["query"]["bias"]) == 0)
    assert np.all(np.asarray(params["final_norm"]["scale"]) == 1)


def test_tiny_preset_is_a_few_hundred_thousand_parameters():
    model = make_model(preset("tiny", vocab_size=100))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert shapes["embedding"].shape == (100, 96)
    assert 100_000 < sum(leaf.size for leaf in jax.tree.leaves(shapes)) < 500_000


def test_forward_compiles_once_a_shape():
    model, params = small_model()
    score = jax.jit(chex.assert_max_traces(model.token_log_probs, n=1))
    for seed in range(3):
        score(params, random_tokens(seed=seed), jnp.float32(0.5 + seed))


def test_many_blocks_become_longer_ones():
    model, params = small_model(attention_block=1)
    tokens = random_tokens(rows=1, length=37)
    log_probs, _ = jax.jit(model.token_log_probs)(params, tokens)
    want, _ = oracle.token_log_probs(model.config, params, tokens[0])
    np.testing.assert_allclose(log_probs[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.array([1.0, np.nan], np.float32)])
def test_refuses_to_score_at_a_temperature_that_is_not_positive(temperature):
    model, params = small_model()
    with pytest.raises(ValueError, match="temperature must be positive"):
        model.token_log_probs(params, random_tokens(), temperature)
