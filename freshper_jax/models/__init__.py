"""Decoder language models."""

from freshper_jax.models.config import PRESETS, ModelConfig, preset
from freshper_jax.models.language_model import LanguageModel, Params, make_model
from freshper_jax.models.lora import (
    Adapters,
    LoraConfig,
    adapt_model,
    init_adapters,
    merge_adapters,
)
from freshper_jax.models.rope import RopeScaling
from freshper_jax.models.sharding import (
    DEFAULT_RULES,
    PartitionRules,
    make_mesh,
    param_partitions,
    param_shardings,
    row_sharding,
)
from freshper_jax.models.value_head import (
    VALUE_HEAD,
    ValueModel,
    add_value_head,
    init_value_head,
    without_value_head,
)

__all__ = [
    "DEFAULT_RULES",
    "PRESETS",
    "VALUE_HEAD",
    "Adapters",
    "LanguageModel",
    "LoraConfig",
    "ModelConfig",
    "Params",
    "PartitionRules",
    "RopeScaling",
    "ValueModel",
    "adapt_model",
    "add_value_head",
    "init_adapters",
    "init_value_head",
    "make_mesh",
    "make_model",
    "merge_adapters",
    "param_partitions",
    "param_shardings",
    "preset",
    "row_sharding",
    "without_value_head",
]
