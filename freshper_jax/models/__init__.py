"""Decoder language models."""

from freshper_jax.models.config import PRESETS, ModelConfig, preset
from freshper_jax.models.language_model import LanguageModel, Params, make_model
from freshper_jax.models.rope import RopeScaling
from freshper_jax.models.sharding import (
    DEFAULT_RULES,
    PartitionRules,
    make_mesh,
    param_partitions,
    param_shardings,
    row_sharding,
)

__all__ = [
    "DEFAULT_RULES",
    "PRESETS",
    "LanguageModel",
    "ModelConfig",
    "Params",
    "PartitionRules",
    "RopeScaling",
    "make_mesh",
    "make_model",
    "param_partitions",
    "param_shardings",
    "preset",
    "row_sharding",
]
