"""A model written as a folder that transformers loads."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from freshper_jax.models import ModelConfig, Params
from freshper_jax.weights.layout import (
    Entry,
    find,
    layout,
    param_shapes,
    stored_shape,
    tensor_names,
    to_stored,
)
from freshper_jax.weights.tensors import INDEX_FILE, SINGLE_FILE

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# (entry, layer or None, name in the file)
_Stored = tuple[Entry, int | None, str]


def save_pretrained(
    folder: str | Path,
    config: ModelConfig,
    params: Params,
    *,
    tokenizer: Any = None,
    generation_config: Mapping[str, Any] | None = None,
    max_file_bytes: int = 5_000_000_000,
) -> None:
    """Writes config.json, safetensors and what else is given, for transformers to load.

    On the host there is never more at once than one file's tensors.

    Args:
      folder: made where it is not there; it must hold no model yet.
      config: the model's; tensors are written in its param dtype.
      params: the parameters.
      tokenizer: a Hugging Face tokenizer.
      generation_config: the fields of generation_config.json.
      max_file_bytes: tensors of more than this in all are split over files with an index.

    Raises FileExistsError where the folder holds a model already, ValueError where the params
    are not those of the config, or where this process does not hold all of an array.
    """
    if max_file_bytes < 1:
        raise ValueError(f"max_file_bytes must be at least 1, got {max_file_bytes}")
    folder = Path(folder)
    fields = config.to_hf()
    _check_params(config, params)
    if (folder / "config.json").exists() or any(folder.glob("*.safetensors")):
        raise FileExistsError(f"{folder}: it holds a model already; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    _write_tensors(folder, config, params, max_file_bytes)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    if generation_config:
        _write_json(folder / "generation_config.json", dict(generation_config))
        fields |= {n: generation_config[n] for n in _TOKEN_IDS if n in generation_config}
    # Last, for a folder without it is not taken for a model.
    _write_json(folder / "config.json", fields)


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n")


def _check_params(config: ModelConfig, params: Params) -> None:
    """Checks structure, shapes and that all of each array is here."""

    def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
            for path, leaf in leaves
        }

    found, expected = shapes(params), shapes(param_shapes(config))
    faults = [
        f"{path} is {found.get(path, 'missing')}, expected {expected.get(path, 'none')}"
        for path in sorted(found.keys() | expected.keys())
        if found.get(path) != expected.get(path)
    ]
    if faults:
        raise ValueError(f"params do not fit the config: {'; '.join(faults)}")
    if not all(getattr(leaf, "is_fully_addressable", True) for leaf in jax.tree.leaves(params)):
        raise ValueError("params are spread over processes; gather them before they are saved")


def _files(config: ModelConfig, max_file_bytes: int) -> list[list[_Stored]]:
    """Deals the tensors out to files, none fuller than allowed unless by a single tensor."""
    files: list[list[_Stored]] = [[]]
    width, filled = jnp.dtype(config.param_dtype).itemsize, 0
    for entry in layout(config):
        size = width * int(np.prod(stored_shape(entry, config)))
        for layer, name in enumerate(tensor_names(entry, config)):
            if files[-1] and filled + size > max_file_bytes:
                files.append([])
                filled = 0
            files[-1].append((entry, layer if entry.stacked else None, name))
            filled += size
    return files


def _write_tensors(folder: Path, config: ModelConfig, params: Params, max_file_bytes: int) -> None:
    from safetensors.numpy import save_file

    files = _files(config, max_file_bytes)
    weight_map: dict[str, str] = {}
    total = 0
    for number, stored in enumerate(files, start=1):
        several = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        file_name = several if len(files) > 1 else SINGLE_FILE
        tensors = dict(_read_back(config, params, stored))
        save_file(tensors, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file_name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(folder / INDEX_FILE, index)


def _read_back(
    config: ModelConfig, params: Params, stored: list[_Stored]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of one file, each taken from its devices when it is needed."""
    dtype = jnp.dtype(config.param_dtype)
    for entry, layer, name in stored:
        leaf = find(params, entry.path)
        kept = np.asarray(jax.device_get(leaf if layer is None else leaf[layer]))
        yield name, to_stored(entry, config, kept.astype(dtype, copy=False))
