"""What a decoder is made of, read from and written to Hugging Face config fields."""

import dataclasses
from collections.abc import Mapping
from typing import Any

_DTYPES = ("float32", "bfloat16")
_REMAT = ("none", "dots", "full")
_MODEL_TYPES = ("qwen2", "llama")
_POSITIVE_INTEGERS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "attention_block",
)
_POSITIVE_NUMBERS = ("rope_theta", "rms_norm_eps", "initializer_range")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape and numerics of a decoder; the first fields are Hugging Face's, by name.

    vocab_size: rows V of the embedding.
    hidden_size: width D of the residual stream.
    intermediate_size: width of the gated feed-forward layer.
    num_hidden_layers: decoder layers.
    num_attention_heads: query heads N.
    num_key_value_heads: key and value heads K; N must be a multiple of it.
    head_dim: size H of a head, even; it need not be D / N.
    rope_theta: base of the rotary frequencies.
    rms_norm_eps: added to the mean square before its root.
    tie_word_embeddings: whether the unembedding is the embedding, transposed.
    attention_bias: whether query, key and value projections have a bias (Qwen2 has).
    max_position_embeddings: positions the weights were made for; checkpoint metadata only.
    initializer_range: standard deviation of the initial weights.
    compute_dtype: "float32" or "bfloat16", of matrix products; norms, softmax and logits
        are float32 always.
    param_dtype: "float32" or "bfloat16", in which parameters are kept.
    remat: what the backward pass recomputes of a layer, to save memory. "none": nothing; "dots":
        all but products with weights and the result of attention, which are kept; "full": all
        but the layer's input.
    scan_layers: whether the full forward compiles one layer and scans over all, or unrolls
        them, which spares copies where they are few.
    attention_block: queries handled at a time.

    Raises ValueError on a value out of range, TypeError on a value of the wrong type.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    max_position_embeddings: int = 32_768
    initializer_range: float = 0.02
    compute_dtype: str = "float32"
    param_dtype: str = "float32"
    remat: str = "none"
    scan_layers: bool = True
    attention_block: int = 96

    def __post_init__(self):
        for name in _POSITIVE_INTEGERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in _POSITIVE_NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {value}")
        for name in ("tie_word_embeddings", "attention_bias", "scan_layers"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be a bool, got {getattr(self, name)!r}")
        for name, names in (
            ("compute_dtype", _DTYPES),
            ("param_dtype", _DTYPES),
            ("remat", _REMAT),
        ):
            if getattr(self, name) not in names:
                raise ValueError(
                    f"{name} must be one of {', '.join(names)}, got {getattr(self, name)!r}"
                )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary pairs, got {self.head_dim}")

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any], **overrides: Any) -> "ModelConfig":
        """Reads the fields of a Hugging Face config.json of a Qwen2 or Llama model.

        Args:
          fields: the parsed JSON object.
          overrides: fields of ModelConfig to set beside it, such as compute_dtype.

        Raises ValueError where the model needs something this decoder does not have (another
        model_type, scaled rotary frequencies, sliding windows, other biases or activations)
        or where a required field is missing.
        """
        model_type = fields.get("model_type")
        if model_type not in _MODEL_TYPES:
            raise ValueError(
                f"model_type must be one of {', '.join(_MODEL_TYPES)}, got {model_type!r}"
            )
        required = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
        )
        missing = [name for name in required if fields.get(name) is None]
        if missing:
            raise ValueError(f"the config lacks {', '.join(missing)}")
        _refuse_unsupported(fields)

        heads = fields["num_attention_heads"]
        rope = fields.get("rope_parameters") or {}
        values: dict[str, Any] = {name: fields[name] for name in required}
        values["num_key_value_heads"] = fields.get("num_key_value_heads") or heads
        values["head_dim"] = fields.get("head_dim") or fields["hidden_size"] // heads
        values["rope_theta"] = float(rope.get("rope_theta") or fields.get("rope_theta") or 10_000.0)
        # Qwen2 always has these biases, and its config.json does not say so.
        values["attention_bias"] = model_type == "qwen2"
        optional = (
            "rms_norm_eps",
            "tie_word_embeddings",
            "max_position_embeddings",
            "initializer_range",
        )
        values |= {name: fields[name] for name in optional if fields.get(name) is not None}
        return cls(**(values | overrides))

    def to_hf(self) -> dict[str, Any]:
        """Returns the fields of a config.json that `from_hf` and transformers read back.

        A config with query, key and value biases is written as a Qwen2 model, one without
        as a Llama model.
        """
        qwen2 = self.attention_bias
        return {
            "model_type": "qwen2" if qwen2 else "llama",
            "architectures": ["Qwen2ForCausalLM" if qwen2 else "LlamaForCausalLM"],
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "max_position_embeddings": self.max_position_embeddings,
            "initializer_range": self.initializer_range,
            "hidden_act": "silu",
            "torch_dtype": self.param_dtype,
        }


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    """Raises ValueError for what a Qwen2 or Llama config may ask and this decoder lacks."""
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"hidden_act must be 'silu', got {activation!r}")
    for name in ("rope_scaling", "rope_parameters"):
        rope = fields.get(name) or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default":
            raise ValueError(f"{name} of type {rope_type!r} is not supported, only 'default'")
    if fields.get("use_sliding_window") or "sliding_attention" in (fields.get("layer_types") or ()):
        raise ValueError("sliding window attention is not supported, only full attention")
    # Llama's attention_bias puts a bias on the output projection too.
    biases = ("mlp_bias", "attention_bias") if fields["model_type"] == "llama" else ("mlp_bias",)
    for name in biases:
        if fields.get(name):
            raise ValueError(f"{name} is not supported for {fields['model_type']}")


PRESETS: Mapping[str, ModelConfig] = {
    # Trains on two CPU cores: wide enough to read a small board, narrow enough to be quick.
    "tiny": ModelConfig(
        vocab_size=128,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=48,
        tie_word_embeddings=True,
        attention_bias=True,
        max_position_embeddings=1024,
        attention_block=104,
        initializer_range=0.05,
        scan_layers=False,
    ),
    "smollm2-135m": ModelConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        rope_theta=100_000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        remat="dots",
        attention_block=128,
    ),
}


def preset(name: str, *, vocab_size: int | None = None, **overrides: Any) -> ModelConfig:
    """Returns the named config, with the vocabulary of the tokenizer it is used with.

    Args:
      name: a key of PRESETS.
      vocab_size: replaces the preset's.
      overrides: other fields of ModelConfig to replace.

    Raises ValueError on an unknown name.
    """
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    if vocab_size is not None:
        overrides["vocab_size"] = vocab_size
    return dataclasses.replace(PRESETS[name], **overrides)
