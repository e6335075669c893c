import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.flax
from safetensors.numpy import load_file, save_file

from freshper_jax.models import LoraConfig
from freshper_jax.weights import load_peft, save_peft
from tests.models.common import small_config

CONFIG = small_config()
LORA = LoraConfig(rank=3, alpha=6.0, targets=("query", "down"))
PREFIX = "base_model.model.model.layers"


def make_adapters():
    generator = np.random.default_rng(0)
    shapes = {
        "query": {"a": (2, 12, 3), "b": (2, 3, 24)},
        "down": {"a": (2, 20, 3), "b": (2, 3, 12)},
    }
    return {
        target: {
            name: generator.normal(size=shape).astype(np.float32) for name, shape in pair.items()
        }
        for target, pair in shapes.items()
    }


def change(folder, fields=None, tensors=None):
    if fields:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    if tensors:
        path = folder / "adapter_model.safetensors"
        held = load_file(path) | tensors
        save_file({name: value for name, value in held.items() if value is not None}, path)


def test_files_have_the_names_and_the_layout_of_peft(tmp_path):
    adapters = make_adapters()
    save_peft(tmp_path, CONFIG, LORA, adapters, base_model="org/base")
    fields = json.loads((tmp_path / "adapter_config.json").read_text())
    assert fields["peft_type"] == "LORA"
    assert fields["base_model_name_or_path"] == "org/base"
    assert (fields["r"], fields["lora_alpha"]) == (3, 6.0)
    assert fields["target_modules"] == ["q_proj", "down_proj"]
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert len(tensors) == 2 * 2 * 2
    # torch applies x A^T B^T with A [R, in] and B [out, R].
    down = tensors[f"{PREFIX}.1.mlp.down_proj.lora_A.weight"]
    np.testing.assert_array_equal(down, adapters["down"]["a"][1].T)
    query = tensors[f"{PREFIX}.0.self_attn.q_proj.lora_B.weight"]
    np.testing.assert_array_equal(query, adapters["query"]["b"][0].T)


def test_what_is_written_is_read_back(tmp_path):
    adapters = make_adapters()
    save_peft(tmp_path, CONFIG, LORA, adapters)
    lora, again = load_peft(tmp_path, CONFIG)
    assert lora == LORA
    chex.assert_trees_all_equal(again, adapters)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type must be 'LORA' in adapter_config.json, got 'IA3'"),
        ({"bias": "all"}, "bias must be 'none'"),
        ({"use_rslora": True}, "use_rslora must be False"),
        ({"use_dora": True}, "use_dora must be False"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save must be None"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern must be {}"),
    ],
)
def test_refuses_adapters_that_mean_something_else(tmp_path, fields, message):
    save_peft(tmp_path, CONFIG, LORA, make_adapters())
    change(tmp_path, fields)
    with pytest.raises(ValueError, match=message):
        load_peft(tmp_path, CONFIG)


def test_lists_tensors_that_do_not_fit(tmp_path):
    save_peft(tmp_path, CONFIG, LORA, make_adapters())
    missing = f"{PREFIX}.1.mlp.down_proj.lora_B.weight"
    shaped = f"{PREFIX}.0.self_attn.q_proj.lora_A.weight"
    extra = f"{PREFIX}.2.mlp.down_proj.lora_A.weight"
    change(
        tmp_path,
        tensors={
            missing: None,
            shaped: np.zeros((3, 5), np.float32),
            extra: np.zeros((3, 20), np.float32),
        },
    )
    with pytest.raises(ValueError, match="does not fit the model") as caught:
        load_peft(tmp_path, CONFIG)
    for fault in (f"{missing} is missing", f"{extra} is not expected", "(3, 5), expected (3, 12)"):
        assert fault in str(caught.value)


def test_says_which_file_is_missing_or_broken(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no adapter_config.json"):
        load_peft(tmp_path, CONFIG)
    save_peft(tmp_path, CONFIG, LORA, make_adapters())
    (tmp_path / "adapter_model.safetensors").write_bytes(b"no such thing")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load_peft(tmp_path, CONFIG)


def test_reads_bfloat16_factors(tmp_path):
    adapters = make_adapters()
    save_peft(tmp_path, CONFIG, LORA, adapters)
    path = tmp_path / "adapter_model.safetensors"
    tensors = {name: jnp.asarray(value, jnp.bfloat16) for name, value in load_file(path).items()}
    safetensors.flax.save_file(tensors, path)
    _, again = load_peft(tmp_path, CONFIG)
    chex.assert_type(jax.tree.leaves(again), jnp.float32)
    chex.assert_trees_all_close(again, adapters, rtol=2**-8)
