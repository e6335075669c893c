"""Tensors by name, from files into arrays on their devices, one parameter at a time."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from freshper_jax.models import ModelConfig, Params
from freshper_jax.weights.layout import (
    Entry,
    Index,
    check_shapes,
    find,
    kept_shape,
    layout,
    nest,
    param_shapes,
    read_kept,
    tensor_names,
)

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
# (shapes of the params) -> a tree like it of shardings
MakeShardings = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class TensorSource:
    """Tensors of a checkpoint under Hugging Face's names, read when asked for.

    where: the file or folder, for messages.
    shapes: the shape of each tensor by name.
    read: (name, a slice for each axis) -> that block, of any float dtype.
    """

    where: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str, Index], np.ndarray]


def open_safetensors(folder: Path) -> TensorSource:
    """Opens the safetensors of a Hugging Face folder, one file or several with an index.

    Raises FileNotFoundError where there are none, ValueError where a file lacks a tensor that
    the index promises or holds numbers that are no floats.
    """
    from safetensors import SafetensorError, safe_open

    if (folder / INDEX_FILE).exists():
        weight_map = json.loads((folder / INDEX_FILE).read_text())["weight_map"]
        names = sorted(set(weight_map.values()))
    elif (folder / SINGLE_FILE).exists():
        names = [SINGLE_FILE]
    else:
        raise FileNotFoundError(
            f"{folder}: it holds neither {SINGLE_FILE} nor {INDEX_FILE}; weights in another "
            "format must be converted to safetensors first"
        )
    files, shapes = {}, {}
    for name in names:
        if Path(name).name != name or not (folder / name).exists():
            raise FileNotFoundError(f"{folder}: {INDEX_FILE} names the file {name!r}, not there")
        try:
            file = safe_open(folder / name, framework="np")
        except SafetensorError as error:
            raise ValueError(f"{folder / name}: not a whole safetensors file: {error}") from error
        for tensor in file.keys():  # noqa: SIM118, the file is no mapping
            part = file.get_slice(tensor)
            if not part.get_dtype().startswith(("F", "BF")):
                raise ValueError(f"{folder / name}: {tensor} is {part.get_dtype()}, not floats")
            files[tensor], shapes[tensor] = file, tuple(part.get_shape())
    return TensorSource(str(folder), shapes, lambda name, index: files[name].get_slice(name)[index])


def load_params(
    config: ModelConfig, source: TensorSource, *, shardings: MakeShardings | None = None
) -> Params:
    """Reads the parameters of a model into arrays in its param dtype.

    On the host there is never more at once than one parameter, stacked over the layers, or
    the largest shard of it on any one device.

    Args:
      config: the model's.
      source: where the tensors are.
      shardings: (shapes) -> shardings, such as `functools.partial(param_shardings, mesh)`; by
        default all is on the default device.

    Raises ValueError where tensors are missing, unexpected or of another shape.
    """
    shapes = _without_spare_tensors(config, source)
    check_shapes(shapes, config, source.where)
    placed = None if shardings is None else shardings(param_shapes(config))
    return nest(
        {
            entry.path: _place(
                config, source, entry, None if placed is None else find(placed, entry.path)
            )
            for entry in layout(config)
        }
    )


def _without_spare_tensors(config: ModelConfig, source: TensorSource) -> dict[str, tuple[int, ...]]:
    """Leaves out what some checkpoints hold twice: rotary tables and a tied unembedding."""
    shapes = {n: s for n, s in source.shapes.items() if not n.endswith("rotary_emb.inv_freq")}
    pair = "lm_head.weight", "model.embed_tokens.weight"
    if not config.tie_word_embeddings or any(name not in shapes for name in pair):
        return shapes
    rows, width = shapes[pair[0]]
    blocks = [(slice(row, min(row + 4096, rows)), slice(0, width)) for row in range(0, rows, 4096)]
    same = shapes[pair[0]] == shapes[pair[1]] and all(
        np.array_equal(source.read(pair[0], block), source.read(pair[1], block)) for block in blocks
    )
    if not same:
        raise ValueError(
            f"{source.where}: tie_word_embeddings is true, yet {pair[0]} differs from {pair[1]}"
        )
    del shapes[pair[0]]
    return shapes


def _place(
    config: ModelConfig, source: TensorSource, entry: Entry, sharding: Sharding | None
) -> jax.Array:
    """Reads one parameter, each distinct shard once, and puts it on its devices."""
    shape, names = kept_shape(entry, config), tensor_names(entry, config)

    def block(bounds: tuple[tuple[int, int], ...]) -> np.ndarray:
        index = tuple(slice(start, stop) for start, stop in bounds)
        out = np.empty([stop - start for start, stop in bounds], jnp.dtype(config.param_dtype))
        layers, within = (index[0], index[1:]) if entry.stacked else (slice(0, 1), index)
        for row, name in zip(out if entry.stacked else out[None], names[layers], strict=True):
            row[...] = read_kept(entry, config, functools.partial(source.read, name), within)
        return out

    if sharding is None:
        return jax.block_until_ready(jax.device_put(block(tuple((0, size) for size in shape))))
    devices: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(
            axis.indices(size)[:2] for axis, size in zip(index or (), shape, strict=True)
        )
        devices.setdefault(bounds, []).append(device)
    shards = []
    for bounds, holders in devices.items():
        host = block(bounds)
        shards += [jax.device_put(host, device) for device in holders]
        # The host's copy lives as long as the transfer; do not read on ahead of it.
        jax.block_until_ready(shards)
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)
