"""What a decoder is made of, read from and written to Hugging Face config fields."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from freshper_jax.models.rope import RopeScaling, read_rope

_DTYPES = ("float32", "bfloat16")
_REMAT = ("none", "dots", "full")
_MODEL_TYPES = ("qwen2", "llama", "qwen3")
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
_FLAGS = ("tie_word_embeddings", "attention_bias", "query_key_norm", "scan_layers")


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
    rope_scaling: how the frequencies are stretched, or None.
    rms_norm_eps: added to the mean square before its root.
    tie_word_embeddings: whether the unembedding is the embedding, transposed.
    attention_bias: whether query, key and value projections have a bias (Qwen2 has).
    query_key_norm: whether heads of queries and keys are normalised before they are rotated
        (Qwen3 does).
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
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    query_key_norm: bool = False
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
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be a bool, got {getattr(self, name)!r}")
        if not isinstance(self.rope_scaling, RopeScaling | None):
            raise TypeError(f"rope_scaling must be a RopeScaling, got {self.rope_scaling!r}")
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
        """Reads the fields of a Hugging Face config.json of a Qwen2, Llama or Qwen3 model.

        Args:
          fields: the parsed JSON object.
          overrides: fields of ModelConfig to set beside it, such as compute_dtype.

        Raises ValueError where the model needs something this decoder does not have (another
        model_type, another scaling of rotary frequencies, sliding windows, other biases or
        activations, quantised weights) or where a required field is missing.
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
        values: dict[str, Any] = {name: fields[name] for name in required}
        values["num_key_value_heads"] = fields.get("num_key_value_heads") or heads
        # Qwen3 has heads of 128 where it does not say, whatever its width.
        head_dim = 128 if model_type == "qwen3" else fields["hidden_size"] // heads
        values["head_dim"] = fields.get("head_dim") or head_dim
        values["rope_theta"], values["rope_scaling"] = read_rope(fields)
        # What Qwen2 and Qwen3 always have, and their config.json does not say.
        values["attention_bias"] = model_type == "qwen2"
        values["query_key_norm"] = model_type == "qwen3"
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

        A config with query, key and value biases is written as a Qwen2 model, one that
        normalises queries and keys as a Qwen3 model, another as a Llama model.

        Raises ValueError where it has both, which none of them has.
        """
        if self.attention_bias and self.query_key_norm:
            raise ValueError("no Hugging Face model has attention_bias and query_key_norm both")
        family = "Qwen2" if self.attention_bias else "Qwen3" if self.query_key_norm else "Llama"
        return {
            "model_type": family.lower(),
            "architectures": [f"{family}ForCausalLM"],
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "rope_theta": self.rope_theta,
            "rope_scaling": self.rope_scaling.to_hf() if self.rope_scaling else None,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "max_position_embeddings": self.max_position_embeddings,
            "initializer_range": self.initializer_range,
            "hidden_act": "silu",
            "torch_dtype": self.param_dtype,
        }


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    """Raises ValueError for what a supported model_type may ask and this decoder lacks."""
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"hidden_act must be 'silu', got {activation!r}")
    if fields.get("rope_interleaved"):
        raise ValueError("rope_interleaved is not supported, only half-vectors rotated as pairs")
    if fields.get("quantization_config"):
        raise ValueError(
            "quantization_config: quantised weights are not supported but in a GGUF file; "
            "load the model's unquantised weights"
        )
    if fields.get("use_sliding_window") or "sliding_attention" in (fields.get("layer_types") or ()):
        raise ValueError("sliding window attention is not supported, only full attention")
    # attention_bias of Llama and Qwen3 puts a bias on the output projection too.
    biases = ("mlp_bias",) if fields["model_type"] == "qwen2" else ("mlp_bias", "attention_bias")
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
        initializer_range=1 / 24,
        remat="dots",
        attention_block=128,
    ),
    "qwen2.5-0.5b": ModelConfig(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        head_dim=64,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        attention_bias=True,
    ),
    "qwen2.5-7b": ModelConfig(
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        head_dim=128,
        rope_theta=1_000_000.0,
        attention_bias=True,
    ),
    "qwen3-0.6b": ModelConfig(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        query_key_norm=True,
        max_position_embeddings=40_960,
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
