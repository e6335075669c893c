"""GGUF files: their config and tensors under Hugging Face's names."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from freshper_jax.models import ModelConfig, RopeScaling
from freshper_jax.weights.layout import Index
from freshper_jax.weights.tensors import TensorSource

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# What llama.cpp divides Llama 3's frequencies by; it keeps no other trace of their scaling.
_ROPE_FACTORS = "rope_freqs.weight"


def open_gguf(
    path: Path, overrides: Mapping[str, Any]
) -> tuple[ModelConfig, TensorSource, dict[str, Any]]:
    """Opens a GGUF file of a Llama, Qwen2 or Qwen3 model.

    Args:
      path: the file.
      overrides: fields of ModelConfig to set beside its own.

    Returns:
      The config, the tensors, dequantised to float32 as they are read, and all metadata.

    Raises ImportError without the gguf package, ValueError on a file, an architecture, a kind
    of rotary scaling or a tensor type that cannot be read.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ImportError(
            'reading a GGUF file needs the gguf package: pip install "freshper-jax[gguf]"'
        ) from error
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: not a whole GGUF file: {error}") from error
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    if metadata.get("split.count", 1) > 1:
        raise ValueError(f"{path}: one of {metadata['split.count']} parts; merge them first")
    tensors = {_hugging_face_name(tensor.name): tensor for tensor in reader.tensors}
    _check_types(tensors, path)
    factors = tensors.pop(_ROPE_FACTORS, None)
    fields = _hugging_face_fields(metadata, tensors, path)
    if factors is not None:
        fields["rope_scaling"] = _llama3_scaling(np.array(factors.data, np.float32), fields, path)
    try:
        config = ModelConfig.from_hf(fields, **overrides)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return config, _tensor_source(config, fields["model_type"], tensors, path), metadata


def _hugging_face_name(name: str) -> str:
    """Translates a tensor's name; one that is not known stays as it is."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER_NAMES:
        return _NAMES.get(name, name)
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _check_types(tensors: Mapping[str, Any], path: Path) -> None:
    """Tries a row of each type, so that one that cannot be read is known at once."""
    from gguf import dequantize

    unreadable = {}
    for tensor_type in {tensor.tensor_type for tensor in tensors.values()}:
        names = [name for name, tensor in tensors.items() if tensor.tensor_type == tensor_type]
        try:
            dequantize(tensors[names[0]].data[:1], tensor_type)
        except NotImplementedError:
            unreadable[tensor_type.name] = names
    if unreadable:
        listed = "; ".join(f"{kind} of {', '.join(n[:5])}" for kind, n in unreadable.items())
        raise ValueError(
            f"{path}: tensor types that cannot be read: {listed}. Use a file quantised "
            "otherwise, such as Q8_0 or F16"
        )


def _hugging_face_fields(
    metadata: Mapping[str, Any], tensors: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """Translates the metadata to the fields of a config.json."""
    architecture = metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ValueError(
            f"{path}: general.architecture must be one of {', '.join(_ARCHITECTURES)}, "
            f"got {architecture!r}"
        )

    def field(key: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{key}", default)

    embedding = tensors.get("model.embed_tokens.weight")
    fields: dict[str, Any] = {
        "model_type": architecture,
        "vocab_size": None if embedding is None else int(embedding.shape[1]),
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": field("attention.key_length", field("rope.dimension_count")),
        "rope_theta": field("rope.freq_base"),
        "rms_norm_eps": _as_decimal(field("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": field("context_length"),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }
    scaling = field("rope.scaling.type", "none")
    if scaling != "none":
        fields["rope_scaling"] = {"rope_type": scaling, "factor": field("rope.scaling.factor")}
    if fields["head_dim"] != field("rope.dimension_count", fields["head_dim"]):
        raise ValueError(
            f"{path}: only whole heads can be rotated; rope.dimension_count is "
            f"{field('rope.dimension_count')}, heads are of {fields['head_dim']}"
        )
    return fields


def _as_decimal(value: float | None) -> float | None:
    """Gives a number kept as a float32 the digits that it was written with."""
    return None if value is None else float(str(np.float32(value)))


def _llama3_scaling(factors: np.ndarray, fields: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Finds the Llama 3 scaling that gives the divisors [H / 2] of the frequencies."""
    scaling = RopeScaling(rope_type="llama3", factor=float(factors.max()))
    exponents = np.arange(0, 2 * len(factors), 2) / (2 * len(factors))
    plain = (1.0 / float(fields["rope_theta"]) ** exponents).astype(np.float32)
    if not np.allclose(plain / np.asarray(scaling.apply(jnp.asarray(plain))), factors, rtol=1e-4):
        raise ValueError(
            f"{path}: {_ROPE_FACTORS} is not Llama 3's scaling from 8192 positions with factors "
            "1 and 4, the only one that can be read"
        )
    return scaling.to_hf()


def _tensor_source(
    config: ModelConfig, architecture: str, tensors: Mapping[str, Any], path: Path
) -> TensorSource:
    """Reads blocks of tensors: whole rows are dequantised, then cut."""
    from gguf import dequantize

    shapes = {name: tuple(int(n) for n in t.shape[::-1]) for name, t in tensors.items()}

    def read(name: str, index: Index) -> np.ndarray:
        rows = dequantize(tensors[name].data[index[0]], tensors[name].tensor_type)
        if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            rows = _unpermute(rows, config.head_dim)
        return rows[(slice(None), *index[1:])]

    return TensorSource(str(path), shapes, read)


def _unpermute(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Undoes llama.cpp's order of Llama's query and key rows, rotary pairs side by side.

    Rows are of whole heads; ours has the pairs half a head apart.
    """
    pairs = rows.reshape(-1, head_dim // 2, 2, math.prod(rows.shape[1:]))
    return pairs.swapaxes(1, 2).reshape(rows.shape)
