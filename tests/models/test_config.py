import dataclasses

import pytest
import transformers

from freshper_jax.models import PRESETS, ModelConfig, preset
from tests.models.common import small_config

QWEN2 = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "hidden_act": "silu",
}
LLAMA = QWEN2 | {"model_type": "llama", "attention_bias": False, "mlp_bias": False}


def test_reads_a_qwen2_config():
    config = ModelConfig.from_hf(QWEN2, compute_dtype="bfloat16")
    assert config.attention_bias
    assert config.tie_word_embeddings
    assert config.head_dim == 64
    assert config.num_key_value_heads == 2
    assert config.rope_theta == 1e6
    assert config.compute_dtype == "bfloat16"


def test_reads_a_llama_config_and_the_newer_place_of_theta():
    fields = LLAMA | {
        "head_dim": 32,
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    }
    del fields["rope_theta"], fields["num_key_value_heads"]
    config = ModelConfig.from_hf(fields)
    assert not config.attention_bias
    assert config.head_dim == 32
    assert config.num_key_value_heads == 14
    assert config.rope_theta == 5e5


@pytest.mark.parametrize("bias", [False, True])
def test_what_is_written_is_read_back_by_us_and_by_transformers(bias):
    config = small_config(attention_bias=bias, rope_theta=5e5, tie_word_embeddings=False)
    fields = config.to_hf()
    again = ModelConfig.from_hf(fields, attention_block=config.attention_block)
    assert again == config
    theirs = transformers.AutoConfig.for_model(**fields)
    assert theirs.model_type == ("qwen2" if bias else "llama")
    assert theirs.num_key_value_heads == config.num_key_value_heads
    assert ModelConfig.from_hf(theirs.to_dict(), attention_block=4) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type must be one of qwen2, llama, got 'gpt2'"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling of type 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_scaling of type 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters of type 'llama3'"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias"),
    ],
)
def test_refuses_a_config_it_cannot_run(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf(QWEN2 | change)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"vocab_size": 0}, ValueError, "vocab_size must be at least 1, got 0"),
        ({"hidden_size": 12.0}, TypeError, "hidden_size must be an int, got 12.0"),
        ({"num_key_value_heads": 3}, ValueError, "multiple of num_key_value_heads"),
        ({"head_dim": 5}, ValueError, "head_dim must be even"),
        ({"rope_theta": -1.0}, ValueError, "rope_theta must be positive"),
        ({"rms_norm_eps": "small"}, TypeError, "rms_norm_eps must be a number"),
        ({"compute_dtype": "float16"}, ValueError, "compute_dtype must be one of"),
        ({"remat": True}, ValueError, "remat must be one of none, dots, full, got True"),
    ],
)
def test_refuses_a_value_out_of_range(change, error, message):
    with pytest.raises(error, match=message):
        small_config(**change)


def test_presets_by_name():
    assert preset("tiny", vocab_size=77).vocab_size == 77
    assert preset("tiny", remat="full") == dataclasses.replace(PRESETS["tiny"], remat="full")
    with pytest.raises(ValueError, match=r"preset must be one of tiny, .*got 'huge'"):
        preset("huge")
