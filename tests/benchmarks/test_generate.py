"""The decode benchmark runs without torch, and says what it could not compare."""

import dataclasses
import importlib
import json

import numpy as np
import pytest

from benchmarks import generate
from benchmarks.generate import CONFIG, judge, main, tables
from benchmarks.generate_peers import Shape, missing, to_torch
from tests.models.common import small_model

SMALL = dataclasses.replace(
    CONFIG,
    vocab_size=300,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=16,
)
SHAPE = Shape(prompt=5, new=4, rows=2, turns=3, observation=6, reply=3)


def test_ours_alone(monkeypatch, capsys, tmp_path):
    path = tmp_path / "figures.json"
    monkeypatch.setattr(generate, "CONFIG", SMALL)
    monkeypatch.setattr(generate, "Shape", lambda: SHAPE)
    flags = ["--alone", "--rounds", "2", "--episode-rounds", "1", "--json", str(path)]
    monkeypatch.setattr("sys.argv", ["benchmarks.generate", *flags])
    main()
    report = json.loads(path.read_text())
    assert {"jax", "jaxlib", "numpy", "python"} == set(report["versions"])
    assert report["machine"]["threads"] >= 1
    assert report["logits_difference"] is None
    cells = {cell["case"]: cell for cell in report["cells"]}
    assert set(cells) == {"decode, batch 1", "decode, batch 16", "episode"}
    tokens = {"decode, batch 1": 4, "decode, batch 16": 64, "episode": 2 * 3 * 3}
    for case, cell in cells.items():
        assert cell["implementation"] == "freshper"
        assert 0 < cell["minimum_s"] <= cell["median_s"]
        assert cell["tokens_per_s"] == pytest.approx(tokens[case] / cell["minimum_s"])
        assert cell["rate_to_transformers"] is None
    assert [goal["passed"] for goal in report["goals"]] == [None] * 3
    # Embedding, two layers of attention, feed-forward and norms, and the last norm, in float32.
    assert report["bandwidth"]["weights_nbytes"] == 4 * (300 * 48 + 2 * (6144 + 9216 + 96) + 48)
    assert report["bandwidth"]["share"]["freshper"] > 0
    assert "transformers is left out: --alone" in capsys.readouterr().out


def cell(name, minimum, case="episode"):
    return {
        "case": case,
        "implementation": name,
        "rounds": 1,
        "minimum_s": minimum,
        "median_s": minimum,
        "tokens_per_s": 10 / minimum,
        "rate_to_transformers": 2.0 / minimum,
    }


@pytest.mark.parametrize(("minimum", "passed"), [(1.0, True), (1.1, False)])
def test_goals_are_judged_by_the_minimum(minimum, passed):
    cells = [cell("freshper", minimum), cell("transformers", 2.0)]
    goals = judge(cells)
    assert [goal["passed"] for goal in goals] == [None, None, passed]
    limit = {"weights_nbytes": 5e8, "read_gb_per_s": 12.5, "share": {"freshper": 0.5}}
    text = tables({"cells": cells, "goals": goals, "bandwidth": limit, "logits_difference": 1.5e-5})
    assert "| episode | transformers | 2.00 / 2.00 s | 5.0 | 1.00 |" in text
    assert "passed" in text if passed else "MISSED" in text
    assert "A token at batch 1 reaches 50% of that limit (freshper)." in text
    assert "Largest difference of logits: 1.5e-05." in text


def test_says_how_to_get_torch(monkeypatch):
    def refuse(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert missing() == "torch is not installed; pip install torch transformers"


def test_weights_are_named_and_laid_out_as_theirs():
    _, params = small_model()
    state = to_torch(params)
    per_layer = ("input_layernorm", "post_attention_layernorm", "self_attn.o_proj")
    projections = [f"self_attn.{name}_proj" for name in "qkv"]
    matrices = [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    want = {"model.embed_tokens.weight", "model.norm.weight"}
    for index in range(2):
        for name in (*per_layer, *projections, *matrices):
            want.add(f"model.layers.{index}.{name}.weight")
        want |= {f"model.layers.{index}.{name}.bias" for name in projections}
    assert set(state) == want
    # A linear layer of theirs computes x W^T: heads and their elements are one axis.
    kernel = np.asarray(params["layers"]["attention"]["key"]["kernel"])[1]
    for head in range(2):
        for place in range(6):
            np.testing.assert_array_equal(
                state["model.layers.1.self_attn.k_proj.weight"][head * 6 + place],
                kernel[:, head, place],
            )
    output = np.asarray(params["layers"]["attention"]["output"])[0]
    np.testing.assert_array_equal(
        state["model.layers.0.self_attn.o_proj.weight"][:, 3 * 6 + 2], output[3, 2]
    )
    assert state["model.layers.0.mlp.down_proj.weight"].shape == (12, 20)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds", "0"], "--rounds: at least 1"),
        (["--batches", "0"], "--batches: at least 1"),
        (["--json", "no/such/folder/f.json"], "there is no folder"),
    ],
)
def test_bad_options_are_told_before_the_measurement(capsys, monkeypatch, flags, message):
    monkeypatch.setattr("sys.argv", ["benchmarks.generate", *flags])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
