"""Which number of a Hugging Face checkpoint is which number of ours: one table."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from freshper_jax.models import ModelConfig

Index = tuple[slice, ...]
_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Entry:
    """One parameter, and the tensors of a checkpoint that hold it.

    In the axes, D denotes the width, F the feed-forward width, N query heads, K key and value
    heads, H the head size and V the vocabulary.

    path: its keys in the params, "layers/attention/output".
    name: the tensor's name, with {layer} where there is one a layer; ours are then stacked
        on a leading axis.
    kept: the axes of ours, a letter each, without that of the layers.
    stored: the axes of theirs; letters of one word are one axis, the last fastest.
    """

    path: str
    name: str
    kept: str
    stored: str

    @property
    def stacked(self) -> bool:
        """Whether there is one tensor a layer."""
        return "{layer}" in self.name


_EMBEDDING = Entry("embedding", "model.embed_tokens.weight", "VD", "V D")
_FINAL_NORM = Entry("final_norm/scale", "model.norm.weight", "D", "D")
_UNEMBEDDING = Entry("unembedding", "lm_head.weight", "DV", "V D")
# Paths below "layers/", names below "model.layers.{layer}.".
_LAYER = (
    ("attention_norm/scale", "input_layernorm.weight", "D", "D"),
    ("attention/query/kernel", "self_attn.q_proj.weight", "DNH", "NH D"),
    ("attention/key/kernel", "self_attn.k_proj.weight", "DKH", "KH D"),
    ("attention/value/kernel", "self_attn.v_proj.weight", "DKH", "KH D"),
    ("attention/output", "self_attn.o_proj.weight", "NHD", "D NH"),
    ("feed_forward_norm/scale", "post_attention_layernorm.weight", "D", "D"),
    ("feed_forward/gate", "mlp.gate_proj.weight", "DF", "F D"),
    ("feed_forward/up", "mlp.up_proj.weight", "DF", "F D"),
    ("feed_forward/down", "mlp.down_proj.weight", "FD", "D F"),
)
_BIASES = (
    ("attention/query/bias", "self_attn.q_proj.bias", "NH", "NH"),
    ("attention/key/bias", "self_attn.k_proj.bias", "KH", "KH"),
    ("attention/value/bias", "self_attn.v_proj.bias", "KH", "KH"),
)
_HEAD_NORMS = (
    ("attention/query_norm/scale", "self_attn.q_norm.weight", "H", "H"),
    ("attention/key_norm/scale", "self_attn.k_norm.weight", "H", "H"),
)


def layout(config: ModelConfig) -> tuple[Entry, ...]:
    """Returns the entry of each parameter of a model."""
    rows = (
        *_LAYER,
        *(_BIASES if config.attention_bias else ()),
        *(_HEAD_NORMS if config.query_key_norm else ()),
    )
    layers = (
        Entry(f"layers/{path}", f"model.layers.{{layer}}.{name}", kept, stored)
        for path, name, kept, stored in rows
    )
    last = () if config.tie_word_embeddings else (_UNEMBEDDING,)
    return (_EMBEDDING, *layers, _FINAL_NORM, *last)


def axis_sizes(config: ModelConfig) -> dict[str, int]:
    """Returns the size of each letter."""
    return {
        "V": config.vocab_size,
        "D": config.hidden_size,
        "F": config.intermediate_size,
        "N": config.num_attention_heads,
        "K": config.num_key_value_heads,
        "H": config.head_dim,
    }


def kept_shape(entry: Entry, config: ModelConfig) -> tuple[int, ...]:
    """Returns the shape of a parameter, layers in front where it is stacked."""
    sizes = axis_sizes(config)
    layers = (config.num_hidden_layers,) if entry.stacked else ()
    return (*layers, *(sizes[letter] for letter in entry.kept))


def stored_shape(entry: Entry, config: ModelConfig) -> tuple[int, ...]:
    """Returns the shape of each of its tensors in a checkpoint."""
    sizes = axis_sizes(config)
    return tuple(math.prod(sizes[letter] for letter in word) for word in entry.stored.split())


def tensor_names(entry: Entry, config: ModelConfig) -> list[str]:
    """Returns the names of its tensors, in the order of the layers."""
    if not entry.stacked:
        return [entry.name]
    return [entry.name.format(layer=layer) for layer in range(config.num_hidden_layers)]


def param_shapes(config: ModelConfig) -> dict[str, Any]:
    """Returns the params as a nested dict of `jax.ShapeDtypeStruct`, in the param dtype."""
    dtype = jax.numpy.dtype(config.param_dtype)
    return nest(
        {
            entry.path: jax.ShapeDtypeStruct(kept_shape(entry, config), dtype)
            for entry in layout(config)
        }
    )


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Turns {"a/b": leaf} into {"a": {"b": leaf}}."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def find(tree: Mapping[str, Any], path: str) -> Any:
    """Returns the leaf at a path of a nested dict."""
    for key in path.split("/"):
        tree = tree[key]
    return tree


def read_kept(
    entry: Entry, config: ModelConfig, read: Callable[[Index], np.ndarray], index: Index
) -> np.ndarray:
    """Reads a block of one layer's parameter from the tensor that holds it.

    Args:
      entry: which parameter.
      config: the model's.
      read: gives the block of the stored tensor at an index.
      index: a slice with start and stop for each letter kept.

    Returns:
      The block, its axes as kept.
    """
    sizes, wanted = axis_sizes(config), dict(zip(entry.kept, index, strict=True))
    stored, split, inside = [], [], []
    for word in entry.stored.split():
        first, rest = word[0], word[1:]
        # Of letters that share an axis, whole rows of the first are read.
        step = math.prod(sizes[letter] for letter in rest)
        start, stop = wanted[first].start, wanted[first].stop
        stored.append(slice(start * step, stop * step))
        split += [stop - start, *(sizes[letter] for letter in rest)]
        inside += [slice(None), *(wanted[letter] for letter in rest)]
    letters = entry.stored.replace(" ", "")
    block = read(tuple(stored)).reshape(split)[tuple(inside)]
    return block.transpose([letters.index(letter) for letter in entry.kept])


def to_stored(entry: Entry, config: ModelConfig, kept: np.ndarray) -> np.ndarray:
    """Returns one layer's parameter as the tensor of a checkpoint, contiguous."""
    letters = entry.stored.replace(" ", "")
    axes = [entry.kept.index(letter) for letter in letters]
    return np.ascontiguousarray(kept.transpose(axes)).reshape(stored_shape(entry, config))


def check_shapes(found: Mapping[str, tuple[int, ...]], config: ModelConfig, where: str) -> None:
    """Checks that a checkpoint holds the tensors of a model, all of them and no others.

    Raises ValueError naming those missing, unexpected and of the wrong shape, with shapes.
    """
    expected = {
        name: stored_shape(entry, config)
        for entry in layout(config)
        for name in tensor_names(entry, config)
    }
    faults = {
        "missing": [f"{n} {shape}" for n, shape in expected.items() if n not in found],
        "unexpected": [f"{n} {shape}" for n, shape in found.items() if n not in expected],
        "wrong shape": [
            f"{n} is {found[n]}, expected {shape}"
            for n, shape in expected.items()
            if n in found and found[n] != shape
        ],
    }
    lines = []
    for fault, names in faults.items():
        if names:
            lines.append(f"  {len(names)} {fault}: {'; '.join(names[:_SHOWN])}")
            lines[-1] += f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    if lines:
        raise ValueError(f"{where}: its tensors do not fit its config\n" + "\n".join(lines))
