"""Tiny models whose numbers both sides recompute: configs, tensors and tokens, in plain numpy."""

import math
import zlib
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
ROWS, LENGTH = 2, 24

_SHARED = {
    "vocab_size": 37,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Few enough that some frequencies are kept, some divided and some blended.
    "original_max_position_embeddings": 32,
}


def _case(model_type, heads, kv_heads, head_dim, *, tied, theta=10_000.0, **rest):
    architecture = {"qwen2": "Qwen2", "llama": "Llama", "qwen3": "Qwen3"}[model_type]
    shape = {
        "model_type": model_type,
        "architectures": [f"{architecture}ForCausalLM"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "tie_word_embeddings": tied,
        "rope_theta": theta,
    }
    return _SHARED | shape | rest


# Fields of config.json by name of the case.
CASES = {
    "qwen2_group7_tied": _case("qwen2", 14, 2, 4, tied=True, theta=1e6),
    "qwen2_group1_untied": _case("qwen2", 3, 3, 4, tied=False, theta=1e6),
    "qwen2_linear": _case(
        "qwen2", 2, 1, 6, tied=True, rope_scaling={"rope_type": "linear", "factor": 4.0}
    ),
    "llama_group1_tied": _case("llama", 2, 2, 6, tied=True),
    "llama_group2_untied": _case("llama", 4, 2, 8, tied=False, theta=5e5),
    "llama3_group7_tied": _case(
        "llama", 7, 1, 12, tied=True, hidden_size=14, theta=100.0, rope_scaling=_LLAMA3
    ),
    "qwen3_group2_tied": _case("qwen3", 4, 2, 8, tied=True, theta=1e6),
    "qwen3_group1_untied": _case("qwen3", 3, 3, 4, tied=False),
}


def tensor_shapes(fields):
    """The tensors of a checkpoint of such a config, as transformers names and shapes them."""
    width, inner = fields["hidden_size"], fields["intermediate_size"]
    queries = fields["num_attention_heads"] * fields["head_dim"]
    keys = fields["num_key_value_heads"] * fields["head_dim"]
    layer = {
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (width, queries),
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    if fields["model_type"] == "qwen2":
        layer["self_attn.q_proj.bias"] = (queries,)
        layer["self_attn.k_proj.bias"] = layer["self_attn.v_proj.bias"] = (keys,)
    if fields["model_type"] == "qwen3":
        layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = (fields["head_dim"],)
    shapes = {
        "model.embed_tokens.weight": (fields["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    for index in range(fields["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    if not fields["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (fields["vocab_size"], width)
    return shapes


def _noise(name, count):
    """Uniform numbers in [-1, 1) from a name, by integer arithmetic alone: the same anywhere."""
    x = np.arange(count, dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()) << 20)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(40)).astype(np.float64) / 2**23 - 1.0


def tensors(fields):
    """The tensors by name, float32; all of them matter to the logits."""
    made = {}
    for name, shape in tensor_shapes(fields).items():
        noise = _noise(name, math.prod(shape)).reshape(shape)
        if name.endswith("norm.weight"):
            noise = 1.0 + 0.4 * noise
        elif name.endswith("bias"):
            noise = 0.5 * noise
        elif name != "model.embed_tokens.weight":
            noise = noise * 2.0 / math.sqrt(shape[1])
        made[name] = noise.astype(np.float32)
    return made


def tokens(fields):
    """Token ids [B, T] int32."""
    noise = _noise("tokens", ROWS * LENGTH).reshape(ROWS, LENGTH)
    return ((noise + 1.0) / 2.0 * fields["vocab_size"]).astype(np.int32)
