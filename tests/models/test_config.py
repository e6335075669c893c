import dataclasses

import jax
import pytest
import transformers

from freshper_jax.models import PRESETS, ModelConfig, RopeScaling, make_model, preset
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
LLAMA3 = RopeScaling(
    rope_type="llama3",
    factor=32.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
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


def test_reads_a_qwen3_config_and_its_own_size_of_heads():
    fields = QWEN2 | {"model_type": "qwen3", "attention_bias": False}
    config = ModelConfig.from_hf(fields)
    assert config.query_key_norm
    assert not config.attention_bias
    assert config.head_dim == 128
    assert ModelConfig.from_hf(fields | {"head_dim": 32}).head_dim == 32


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_reads_the_scaling_of_llama_3_in_both_places(place):
    scaling = LLAMA3.to_hf()
    config = ModelConfig.from_hf(LLAMA | {place: scaling})
    assert config.rope_scaling == LLAMA3
    assert config.rope_theta == 1e6


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("llama", {"attention_bias": False}),
        ("llama", {"attention_bias": False, "rope_scaling": LLAMA3}),
        ("qwen2", {"rope_scaling": RopeScaling(rope_type="linear", factor=2.0)}),
        ("qwen3", {"attention_bias": False, "query_key_norm": True}),
    ],
)
def test_what_is_written_is_read_back_by_us_and_by_transformers(model_type, change):
    config = small_config(**{"rope_theta": 5e5, "tie_word_embeddings": False} | change)
    fields = config.to_hf()
    again = ModelConfig.from_hf(fields, attention_block=config.attention_block)
    assert again == config
    theirs = transformers.AutoConfig.for_model(**fields)
    assert theirs.model_type == model_type
    assert theirs.num_key_value_heads == config.num_key_value_heads
    assert ModelConfig.from_hf(theirs.to_dict(), attention_block=4) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type must be one of qwen2, llama, qwen3, got 'gpt2'"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling of type 'yarn'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling of type 'linear' lacks factor"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
            "lacks high_freq_factor, original_max_position_embeddings",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised weights"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias"),
        ({"model_type": "qwen3", "attention_bias": True}, "attention_bias"),
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
        ({"query_key_norm": 1}, TypeError, "query_key_norm must be a bool, got 1"),
        ({"rope_scaling": 4.0}, TypeError, "rope_scaling must be a RopeScaling, got 4.0"),
    ],
)
def test_refuses_a_value_out_of_range(change, error, message):
    with pytest.raises(error, match=message):
        small_config(**change)


def test_presets_by_name():
    assert preset("tiny", vocab_size=77).vocab_size == 77
    assert preset("tiny", remat="full") == dataclasses.replace(PRESETS["tiny"], remat="full")
    with pytest.raises(ValueError, match=r"preset must be one of tiny, .*, got 'huge'"):
        preset("huge")


def test_no_hugging_face_model_has_both_biases_and_normalised_heads():
    with pytest.raises(ValueError, match="attention_bias and query_key_norm both"):
        small_config(query_key_norm=True).to_hf()


# The sizes that the models' own pages state, counted from every parameter.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-0.6b", 596_049_920),
    ],
)
def test_presets_have_as_many_parameters_as_the_published_models(name, parameters):
    shapes = jax.eval_shape(make_model(preset(name)).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_type": "yarn"}, "rope_type must be one of linear, llama3, got 'yarn'"),
        ({"factor": 0.0}, "rope factor must be positive and finite, got 0.0"),
        ({"factor": "8"}, "rope factor must be positive and finite, got '8'"),
        ({"low_freq_factor": 4.0}, "must be below"),
    ],
)
def test_refuses_a_scaling_out_of_range(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(LLAMA3, **change)
