import json

import chex
import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from freshper_jax.models import PRESETS, ModelConfig
from freshper_jax.weights import (
    HUB_NAMES,
    load_pretrained,
    preset_source,
    save_pretrained,
    sources,
)
from tests.golden import cases
from tests.weights.common import load_case, write_folder, write_tokenizer

NAME = "qwen3_group1_untied"
FIELDS = cases.CASES[NAME]


@pytest.fixture
def folder(tmp_path):
    write_tokenizer(write_folder(tmp_path / "model", FIELDS | {"eos_token_id": 5}))
    return tmp_path / "model"


def saved_tensors(folder):
    found, sizes = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            part = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert not found.keys() & part.keys()
        found |= part
        sizes[path.name] = sum(value.nbytes for value in part.values())
    return found, sizes


def test_loads_a_folder_with_all_that_belongs_to_it(folder):
    generation = {"eos_token_id": [7, 5], "temperature": 0.6}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    loaded = load_pretrained(folder, compute_dtype="bfloat16", remat="full")
    assert loaded.config == ModelConfig.from_hf(FIELDS, compute_dtype="bfloat16", remat="full")
    assert loaded.generation_config == generation
    # The tokenizer's end is 0.
    assert loaded.stop_ids == (7, 5, 0)
    assert loaded.tokenizer.convert_ids_to_tokens([1, 2]) == ["a", "b"]
    chex.assert_trees_all_equal(loaded.params, load_case(folder / "again", NAME)[1])


def test_without_a_generation_config_the_config_says_what_ends_a_reply(folder):
    assert load_pretrained(str(folder)).stop_ids == (5, 0)


@pytest.mark.parametrize("name", cases.CASES)
@pytest.mark.parametrize("max_file_bytes", [5_000_000_000, 2_000])
def test_what_is_saved_are_the_tensors_that_were_loaded_bit_for_bit(name, max_file_bytes, tmp_path):
    config, params = load_case(tmp_path / "first", name)
    save_pretrained(tmp_path / "second", config, params, max_file_bytes=max_file_bytes)
    found, sizes = saved_tensors(tmp_path / "second")
    expected = cases.tensors(cases.CASES[name])
    chex.assert_trees_all_equal(found, expected)
    fields = json.loads((tmp_path / "second" / "config.json").read_text())
    assert ModelConfig.from_hf(fields) == config
    assert fields["architectures"] == cases.CASES[name]["architectures"]
    if max_file_bytes > 1e9:
        assert list(sizes) == ["model.safetensors"]
        return
    # Only a file of a single tensor may be larger.
    assert len(sizes) > 3
    largest = max(value.nbytes for value in expected.values())
    assert max(sizes.values()) <= max(max_file_bytes, largest)
    index = json.loads((tmp_path / "second" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert index["weight_map"].keys() == expected.keys()
    assert set(index["weight_map"].values()) == set(sizes)


def test_a_saved_model_loads_again_with_its_tokenizer_and_generation_config(folder, tmp_path):
    loaded = load_pretrained(folder)
    save_pretrained(
        tmp_path / "again",
        loaded.config,
        loaded.params,
        tokenizer=loaded.tokenizer,
        generation_config={"eos_token_id": 5, "pad_token_id": 0, "top_k": 4},
    )
    again = load_pretrained(tmp_path / "again")
    assert again.config == loaded.config
    assert again.stop_ids == loaded.stop_ids
    assert again.generation_config["top_k"] == 4
    assert again.tokenizer.get_vocab() == loaded.tokenizer.get_vocab()
    chex.assert_trees_all_equal(again.params, loaded.params)
    fields = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (fields["eos_token_id"], fields["pad_token_id"]) == (5, 0)


def test_saves_in_the_param_dtype_of_the_config(tmp_path):
    _, params = load_case(tmp_path / "first", NAME)
    config = ModelConfig.from_hf(FIELDS, param_dtype="bfloat16")
    save_pretrained(tmp_path / "second", config, params)
    found, _ = saved_tensors(tmp_path / "second")
    for name, value in cases.tensors(FIELDS).items():
        np.testing.assert_array_equal(found[name], value.astype(jnp.bfloat16))


def test_refuses_to_save_over_a_model_or_params_of_another_config(folder, tmp_path):
    config, params = load_case(tmp_path / "first", NAME)
    with pytest.raises(FileExistsError, match="holds a model already"):
        save_pretrained(folder, config, params)
    other = ModelConfig.from_hf(FIELDS | {"intermediate_size": 24, "tie_word_embeddings": True})
    with pytest.raises(ValueError, match="params do not fit the config") as caught:
        save_pretrained(tmp_path / "second", other, params)
    message = str(caught.value)
    assert "layers/feed_forward/up is (2, 12, 20), expected (2, 12, 24)" in message
    assert "unembedding is (12, 37), expected none" in message
    assert not (tmp_path / "second").exists()
    with pytest.raises(ValueError, match="max_file_bytes must be at least 1, got 0"):
        save_pretrained(tmp_path / "second", config, params, max_file_bytes=0)


@pytest.mark.parametrize("source", ["nowhere", "a/b/c", "./model.gguf", "a/model.gguf", "a b/c"])
def test_refuses_a_source_that_is_neither_here_nor_a_hub_name(source):
    with pytest.raises(FileNotFoundError, match=r"must be a folder, a \.gguf file or"):
        load_pretrained(source)


def test_a_file_of_another_kind_is_no_source(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"model\.bin"):
        load_pretrained(tmp_path / "model.bin")


def test_a_hub_name_is_fetched(folder, monkeypatch):
    asked = []

    def fetched(name, *, revision, allow_patterns):
        asked.append((name, revision))
        assert "*.safetensors" in allow_patterns
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    assert load_pretrained("owner/model", revision="v1").config == ModelConfig.from_hf(FIELDS)
    assert asked == [("owner/model", "v1")]


def test_without_network_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OSError, match=r"owner/model: .*give the path of a folder or of a \.gguf"):
        load_pretrained("owner/model")


def test_a_folder_without_config_or_tokenizer_or_with_another_model_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json: not there"):
        load_pretrained(tmp_path)
    write_folder(tmp_path, FIELDS)
    with pytest.raises(FileNotFoundError, match=r"no tokenizer, none of tokenizer\.json"):
        load_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="its tokenizer cannot be read"):
        load_pretrained(tmp_path)
    write_folder(tmp_path, FIELDS | {"model_type": "mamba"})
    with pytest.raises(ValueError, match=r"config\.json: model_type must be one of"):
        load_pretrained(tmp_path)


def test_the_tokenizer_may_come_from_elsewhere(folder, tmp_path):
    write_folder(tmp_path / "bare", FIELDS)
    loaded = load_pretrained(tmp_path / "bare", tokenizer=folder)
    assert loaded.tokenizer.eos_token == "<eos>"


def test_presets_with_weights_have_a_source(monkeypatch):
    assert set(HUB_NAMES) == set(PRESETS) - {"tiny"}
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    assert preset_source("smollm2-135m") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert preset_source("qwen2.5-7b") == "Qwen/Qwen2.5-7B-Instruct"
    with pytest.raises(ValueError, match="to have weights, got 'tiny'"):
        preset_source("tiny")


def test_params_on_a_mesh_are_saved_whole(tmp_path):
    from freshper_jax.models import make_mesh, param_shardings

    config, params = load_case(
        tmp_path / "first",
        NAME,
        shardings=lambda shapes: param_shardings(make_mesh(fsdp=2, tp=2), shapes),
    )
    assert len(jax.tree.leaves(params)[0].devices()) == 4
    save_pretrained(tmp_path / "second", config, params)
    chex.assert_trees_all_equal(saved_tensors(tmp_path / "second")[0], cases.tensors(FIELDS))
