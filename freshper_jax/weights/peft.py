"""Adapters in the format of the PEFT library, to and from a folder."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.flax import load_file
from safetensors.numpy import save_file

from freshper_jax.models import Adapters, LoraConfig, ModelConfig
from freshper_jax.models.lora import TARGETS, check_adapters, kernel_sizes

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# The modules of Hugging Face's Qwen2 and Llama layers.
_MODULES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_FACTORS = {"a": "lora_A", "b": "lora_B"}
# Options that change what the factors mean, and the only values that mean the same here.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_rslora": (False, None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "trainable_token_indices": (None,),
}


def _tensor_name(layer: int, target: str, factor: str) -> str:
    return f"base_model.model.model.layers.{layer}.{_MODULES[target]}.{_FACTORS[factor]}.weight"


def save_peft(
    folder: str | os.PathLike,
    config: ModelConfig,
    lora: LoraConfig,
    adapters: Adapters,
    *,
    base_model: str | None = None,
) -> None:
    """Writes adapters so that PEFT puts them on the Hugging Face model of the same base.

    Args:
      folder: made if absent; gets adapter_config.json and adapter_model.safetensors.
      config: of the base.
      lora: as the adapters were made by.
      adapters: as of `init_adapters`; written in float32.
      base_model: name or folder of the base, for PEFT to find it by.

    Raises ValueError where the adapters are not those of the config.
    """
    check_adapters(config, lora, adapters)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for target, factors in adapters.items():
        for factor, stacked in factors.items():
            for layer, matrix in enumerate(np.asarray(jax.device_get(stacked), np.float32)):
                # PEFT keeps the factors transposed, as torch keeps kernels.
                tensors[_tensor_name(layer, target, factor)] = np.ascontiguousarray(matrix.T)
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": [_MODULES[target].split(".")[1] for target in lora.targets],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    (folder / _CONFIG).write_text(json.dumps(fields, indent=2) + "\n", "utf-8")


def load_peft(folder: str | os.PathLike, config: ModelConfig) -> tuple[LoraConfig, Adapters]:
    """Reads adapters that PEFT or `save_peft` wrote.

    Args:
      folder: with adapter_config.json and adapter_model.safetensors.
      config: of the base that they are for.

    Returns:
      The LoraConfig, whose targets are those that have tensors, and the adapters, float32.

    Raises FileNotFoundError where a file is missing, ValueError where the adapters are of a
    kind that is not supported, or a tensor is missing, unknown or of another shape; the
    message lists them.
    """
    folder = Path(folder)
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} has no {name}; a PEFT adapter is a folder with both")
    fields = json.loads((folder / _CONFIG).read_text("utf-8"))
    for name, values in _PLAIN.items():
        if name in fields and fields[name] not in values:
            raise ValueError(f"{name} must be {values[0]!r} in {_CONFIG}, got {fields[name]!r}")
    try:
        tensors = load_file(folder / _WEIGHTS)
    except SafetensorError as error:
        raise ValueError(f"{folder / _WEIGHTS} is not a safetensors file: {error}") from error
    targets = tuple(
        target
        for target in TARGETS
        if any(re.search(rf"\.{re.escape(_MODULES[target])}\.lora_", name) for name in tensors)
    )
    if not targets:
        raise ValueError(f"{folder / _WEIGHTS} holds no adapter of {', '.join(_MODULES.values())}")
    lora = LoraConfig(rank=fields["r"], alpha=fields["lora_alpha"], targets=targets)
    wanted = _shapes(config, lora)
    faults = [f"{name} is missing" for name in wanted if name not in tensors]
    faults += [f"{name} is not expected" for name in tensors if name not in wanted]
    faults += [
        f"{name} is {tensors[name].shape}, expected {shape}"
        for name, shape in wanted.items()
        if name in tensors and tensors[name].shape != shape
    ]
    if faults:
        raise ValueError(f"{folder / _WEIGHTS} does not fit the model: " + "; ".join(faults))

    def stack(target: str, factor: str) -> jax.Array:
        names = [_tensor_name(n, target, factor) for n in range(config.num_hidden_layers)]
        return jax.numpy.stack([tensors[name].astype("float32").T for name in names])

    return lora, {
        target: {factor: stack(target, factor) for factor in _FACTORS} for target in targets
    }


def _shapes(config: ModelConfig, lora: LoraConfig) -> dict[str, tuple[int, int]]:
    """Returns the shape of each tensor of the file, by name."""
    shapes = {}
    for target in lora.targets:
        width, out = kernel_sizes(config, target)
        for layer in range(config.num_hidden_layers):
            shapes[_tensor_name(layer, target, "a")] = (lora.rank, width)
            shapes[_tensor_name(layer, target, "b")] = (out, lora.rank)
    return shapes
