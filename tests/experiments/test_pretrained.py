"""Runs that begin with weights from a folder: a tiny random model that stands in for a real one."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.language import make_language
from experiments.options import OptionsError
from experiments.progress import Console
from experiments.runner import parse_options
from experiments.sokoban import EXPERIMENT, make_task
from freshper_jax.models import make_model, preset
from freshper_jax.rollout import make_word_tokenizer
from freshper_jax.weights import load_pretrained, save_pretrained
from tests.experiments.small import run_small
from tests.experiments.test_run import history, parameters


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRESHPER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model's folder, whose words are those of the task."""
    task = make_task(parse_options(EXPERIMENT, []), Console())
    tokenizer = make_word_tokenizer(task.words)
    # Without biases it is a Llama; of a Qwen2 folder transformers reads the words as Qwen2's.
    shape = {"num_hidden_layers": 1, "scan_layers": True, "attention_bias": False}
    config = preset("tiny", vocab_size=len(tokenizer), **shape)
    path = tmp_path_factory.mktemp("weights") / "model"
    params = jax.jit(make_model(config).init)(jax.random.key(3))
    save_pretrained(path, config, params, tokenizer=tokenizer)
    return path


def flags(folder, *others):
    return (
        "--preset=smollm2-135m",
        f"--model.weights={folder}",
        "--prompt=coordinates",
        "--max-new-tokens=4",
        "--iterations=2",
        *others,
    )


def tensors(path):
    return load_pretrained(path).params


def largest_change(before, after):
    changes = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), before, after)
    return jax.tree.leaves(changes)


def test_a_run_begins_with_the_weights_and_leaves_a_model_behind(folder, tmp_path):
    path, printed = run_small(tmp_path / "run", *flags(folder))
    assert f"the policy is {folder}" in printed
    results = json.loads((path / "results.json").read_text())
    assert {"pretrained, sampled", "freshper, sampled", "freshper, greedy"} <= set(results)
    before, after = tensors(folder), tensors(path / "model")
    # Six updates of Adam at 3e-6, after the warm-up, move a parameter by about their sum at most.
    assert 0 < max(largest_change(before, after)) < 6 * 2 * 3e-6
    jax.tree.map(np.testing.assert_array_equal, parameters(path), jax.device_get(after))


@pytest.mark.slow
def test_adapters_are_trained_in_place_of_the_weights(folder, tmp_path):
    lora = ("--model.lora-rank=2", "--learning.learning-rate=1e-2", "--checkpoint-every=1")
    path, printed = run_small(tmp_path / "run", *flags(folder, *lora))
    assert "adapters of rank 2" in printed
    assert set(parameters(path)) == {"query", "key", "value", "output", "gate", "up", "down"}
    before, after = tensors(folder), tensors(path / "model")
    np.testing.assert_array_equal(before["embedding"], after["embedding"])
    assert max(largest_change(before["layers"], after["layers"])) > 1e-4
    for line in history(path)[1:]:
        assert line["fresh/kl_k3"] < 1e-9  # rollout and update see the same adapters


@pytest.mark.slow
def test_a_value_head_is_trained_beside_adapters_and_not_exported(folder, tmp_path):
    critic = ("--model.lora-rank=2", "--learning.advantage=gae", "--replay.priority=td_error")
    path, _ = run_small(tmp_path / "run", *flags(folder, *critic, "--iterations=1"))
    trained = parameters(path)
    assert set(trained) == {"query", "key", "value", "output", "gate", "up", "down", "value_head"}
    assert np.any(trained["value_head"]["kernel"] != 0)
    jax.tree.map(lambda a, b: None, tensors(folder), tensors(path / "model"))  # the same tree


@pytest.mark.slow
def test_a_pretrained_policy_clones_traces_where_asked_to(folder, tmp_path):
    traces = ("--warm-start.traces=6", "--warm-start.longest=3", "--warm-start.max-updates=2")
    few = ("--warm-start.check-every=2", "--iterations=1")
    path, printed = run_small(tmp_path / "run", *flags(folder, *traces, *few))
    assert "cloning 48 solutions of at most 3 turns" in printed
    assert "warm start, sampled" in json.loads((path / "results.json").read_text())
    assert history(path)[-1]["iteration"] == 1


@pytest.mark.slow
def test_sixteen_bit_parameters_and_moments_are_trained(folder, tmp_path):
    numbers = (
        "--model.param-dtype=bfloat16",
        "--model.compute-dtype=bfloat16",
        "--model.moment-dtype=bfloat16",
    )
    path, _ = run_small(tmp_path / "run", *flags(folder, *numbers))
    kept = load_pretrained(path / "model", param_dtype="bfloat16").params
    assert {leaf.dtype for leaf in jax.tree.leaves(kept)} == {jnp.dtype("bfloat16")}
    assert history(path)[-1]["skipped"] == 0


def test_the_longest_episode_is_measured_in_the_tokens_of_the_model(folder):
    options = parse_options(EXPERIMENT, list(flags(folder)))
    task = make_task(options, Console())
    renderer = make_language(options, task).renderer
    # Ten turns of a board of at most 22 things, with role and end tokens, and replies.
    assert 100 < task.max_tokens(4, renderer) <= 208
    assert task.max_tokens(14, renderer) == task.max_tokens(4, renderer) + 10 * 10


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--model.weights=/no/such/folder"], "--model.weights: source must be a folder"),
        (["--prompt=loud"], "--prompt: got 'loud', expected one of minimal"),
        (
            ["--warm-start.traces=5", "--model.lora-rank=2"],
            "--warm-start.traces: got 5, expected 0 with --model.lora-rank",
        ),
        (["--model.lora-rank=-1"], "--model.lora-rank: got -1, expected an integer of at least 0"),
        (["--preset=tiny"], "--model.weights: got"),
    ],
)
def test_what_cannot_work_is_refused_by_name(folder, wrong, message):
    def begin():
        options = parse_options(EXPERIMENT, [*flags(folder), *wrong])
        make_language(options, make_task(options, Console()))

    with pytest.raises(OptionsError) as raised:
        begin()
    assert message in str(raised.value)
