"""Pretrained weights: Hugging Face folders in and out, GGUF files in, adapters as PEFT has them."""

from freshper_jax.weights.peft import load_peft, save_peft
from freshper_jax.weights.pretrained import Pretrained, fetch, load_pretrained
from freshper_jax.weights.save import save_pretrained
from freshper_jax.weights.sources import HUB_NAMES, preset_source
from freshper_jax.weights.tensors import TensorSource, load_params, open_safetensors

__all__ = [
    "HUB_NAMES",
    "Pretrained",
    "TensorSource",
    "fetch",
    "load_params",
    "load_peft",
    "load_pretrained",
    "open_safetensors",
    "preset_source",
    "save_peft",
    "save_pretrained",
]
