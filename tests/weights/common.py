"""Folders of the tiny models of tests/golden, without any tokenizer but a word-level one."""

import json

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from freshper_jax.models import ModelConfig
from freshper_jax.weights import TensorSource, load_params, open_safetensors
from tests.golden import cases


def write_folder(folder, fields, tensors=None):
    """Writes config.json and one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(cases.tensors(fields) if tensors is None else tensors, folder / "model.safetensors")
    return folder


def write_tokenizer(folder):
    words = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "b": 2}, unk_token="<eos>"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>").save_pretrained(folder)


def load_case(folder, name, *, shardings=None, **overrides):
    """Config and params of a case, by way of a folder."""
    fields = cases.CASES[name]
    config = ModelConfig.from_hf(fields, **overrides)
    source = open_safetensors(write_folder(folder, fields))
    return config, load_params(config, source, shardings=shardings)


def counting(source):
    """The source, and a list to which the size of every block read from it is appended."""
    read = []

    def record(name, index):
        block = source.read(name, index)
        read.append(block.size)
        return block

    return TensorSource(source.where, source.shapes, record), read


def stored(config, params, name):
    """The tensor of a name, laid out by hand from the params."""
    plain = {
        "model.embed_tokens.weight": lambda p: p["embedding"],
        "model.norm.weight": lambda p: p["final_norm"]["scale"],
        "lm_head.weight": lambda p: p["unembedding"].T,
    }
    if name in plain:
        return plain[name](params)
    _, _, index, *rest = name.split(".")
    kind = ".".join(rest)
    attention, feed_forward = params["layers"]["attention"], params["layers"]["feed_forward"]
    layer = int(index)

    def heads(leaf):
        width = config.hidden_size
        return np.stack([leaf[layer, d].reshape(-1) for d in range(width)], axis=1)

    by_kind = {
        "input_layernorm.weight": lambda: params["layers"]["attention_norm"]["scale"][layer],
        "post_attention_layernorm.weight": lambda: params["layers"]["feed_forward_norm"]["scale"][
            layer
        ],
        "self_attn.q_proj.weight": lambda: heads(attention["query"]["kernel"]),
        "self_attn.k_proj.weight": lambda: heads(attention["key"]["kernel"]),
        "self_attn.v_proj.weight": lambda: heads(attention["value"]["kernel"]),
        "self_attn.q_proj.bias": lambda: attention["query"]["bias"][layer].reshape(-1),
        "self_attn.k_proj.bias": lambda: attention["key"]["bias"][layer].reshape(-1),
        "self_attn.v_proj.bias": lambda: attention["value"]["bias"][layer].reshape(-1),
        "self_attn.q_norm.weight": lambda: attention["query_norm"]["scale"][layer],
        "self_attn.k_norm.weight": lambda: attention["key_norm"]["scale"][layer],
        "self_attn.o_proj.weight": lambda: (
            attention["output"][layer].reshape(-1, config.hidden_size).T
        ),
        "mlp.gate_proj.weight": lambda: feed_forward["gate"][layer].T,
        "mlp.up_proj.weight": lambda: feed_forward["up"][layer].T,
        "mlp.down_proj.weight": lambda: feed_forward["down"][layer].T,
    }
    return by_kind[kind]()
