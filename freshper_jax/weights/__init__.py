"""Weights in the formats of others."""

from freshper_jax.weights.peft import load_peft, save_peft

__all__ = ["load_peft", "save_peft"]
