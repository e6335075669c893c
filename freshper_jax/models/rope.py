"""Scaled rotary frequencies: how a model trained on short texts is stretched to long ones."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

_KINDS = ("linear", "llama3")
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are scaled; the fields are Hugging Face's, by name.

    rope_type: "linear" divides every frequency by the factor. "llama3" divides those whose
        wavelength is long, keeps those whose wavelength is short, and blends between.
    factor: by how much the frequencies are divided.
    low_freq_factor, high_freq_factor: how often a frequency must turn within the original
        positions to be blended, and to be kept; of "llama3" only.
    original_max_position_embeddings: positions before stretching; of "llama3" only.

    Raises ValueError on an unknown type or a value out of range.

    Reference: Llama Team 2024, https://arxiv.org/abs/2407.21783, section 3.4 and its code.
    """

    rope_type: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self):
        if self.rope_type not in _KINDS:
            raise ValueError(
                f"rope_type must be one of {', '.join(_KINDS)}, got {self.rope_type!r}"
            )
        for name in _LLAMA3:
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and 0 < value < float("inf")):
                raise ValueError(f"rope {name} must be positive and finite, got {value!r}")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"rope low_freq_factor ({self.low_freq_factor}) must be below "
                f"high_freq_factor ({self.high_freq_factor})"
            )

    def apply(self, frequencies: jax.Array) -> jax.Array:
        """Scales frequencies [H / 2], float32 in radians a position."""
        if self.rope_type == "linear":
            return frequencies / self.factor
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        width = self.high_freq_factor - self.low_freq_factor
        kept = jnp.clip((turns - self.low_freq_factor) / width, 0.0, 1.0)
        return frequencies * ((1 - kept) / self.factor + kept)

    def to_hf(self) -> dict[str, Any]:
        """Returns the fields of a config.json's rope_scaling."""
        names = ("factor",) if self.rope_type == "linear" else _LLAMA3
        return {"rope_type": self.rope_type, **{name: getattr(self, name) for name in names}}


def read_rope(fields: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Reads the base of the frequencies and their scaling from the fields of a config.json.

    Both places are read, the older rope_theta with rope_scaling and the newer rope_parameters.

    Raises ValueError where the scaling is of another type than "default", "linear" or "llama3",
    or lacks a number that its type needs.
    """
    theta = fields.get("rope_theta")
    scaling = None
    for place in ("rope_scaling", "rope_parameters"):
        rope = fields.get(place) or {}
        theta = rope.get("rope_theta") or theta
        partial = rope.get("partial_rotary_factor", 1.0)
        if partial != 1.0:
            raise ValueError(f"{place} has partial_rotary_factor {partial}, only 1 is supported")
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type == "default":
            continue
        if rope_type not in _KINDS:
            raise ValueError(
                f"{place} of type {rope_type!r} is not supported, only default, {', '.join(_KINDS)}"
            )
        names = ("factor",) if rope_type == "linear" else _LLAMA3
        missing = [name for name in names if rope.get(name) is None]
        if missing:
            raise ValueError(f"{place} of type {rope_type!r} lacks {', '.join(missing)}")
        scaling = RopeScaling(rope_type=rope_type, **{name: rope[name] for name in names})
    return float(theta or 10_000.0), scaling
