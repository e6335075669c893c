"""Low-rank adapters: a few small factors are trained, the base stays as it is.

Reference: Hu et al. 2021, https://arxiv.org/abs/2106.09685.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from freshper_jax.models.config import ModelConfig
from freshper_jax.models.decoder import Adapter, Decoder
from freshper_jax.models.language_model import LanguageModel, Params, model_of_decoder

Adapters = dict[str, dict[str, jax.Array]]

# Where the kernel of each target is in the params of a layer, by field.
_KERNELS = {
    "query": ("attention", "query", "kernel"),
    "key": ("attention", "key", "kernel"),
    "value": ("attention", "value", "kernel"),
    "output": ("attention", "output"),
    "gate": ("feed_forward", "gate"),
    "up": ("feed_forward", "up"),
    "down": ("feed_forward", "down"),
}
# And the attribute of the decoder's layers that holds its adapter.
_ADAPTERS = {
    "query": ("attention", "query", "adapter"),
    "key": ("attention", "key", "adapter"),
    "value": ("attention", "value", "adapter"),
    "output": ("attention", "output_adapter"),
    "gate": ("feed_forward", "gate_adapter"),
    "up": ("feed_forward", "up_adapter"),
    "down": ("feed_forward", "down_adapter"),
}
TARGETS = tuple(_KERNELS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Which kernels are adapted, and by how much.

    rank: inner size R of the factors.
    alpha: the change of a kernel is alpha / rank times the product of its factors.
    targets: names from TARGETS, in any order; by default all of them.

    Raises ValueError on a value out of range, TypeError on a value of the wrong type.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = TARGETS

    def __post_init__(self):
        if isinstance(self.rank, bool) or not isinstance(self.rank, int):
            raise TypeError(f"rank must be an int, got {self.rank!r}")
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float)):
            raise TypeError(f"alpha must be a number, got {self.alpha!r}")
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha must be positive and finite, got {self.alpha}")
        if isinstance(self.targets, str) or not isinstance(self.targets, tuple):
            raise TypeError(f"targets must be a tuple of names, got {self.targets!r}")
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise ValueError(f"targets must be one or more different names, got {self.targets}")
        for name in self.targets:
            if name not in TARGETS:
                raise ValueError(f"targets must be of {', '.join(TARGETS)}, got {name!r}")

    @property
    def scale(self) -> float:
        """What the product of the factors is multiplied by."""
        return self.alpha / self.rank


def kernel_sizes(config: ModelConfig, target: str) -> tuple[int, int]:
    """Returns the input and the output size of a target's kernel, heads flattened."""
    width, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    return {
        "query": (width, queries),
        "key": (width, keys),
        "value": (width, keys),
        "output": (queries, width),
        "gate": (width, inner),
        "up": (width, inner),
        "down": (inner, width),
    }[target]


def init_adapters(config: ModelConfig, lora: LoraConfig, key: jax.Array) -> Adapters:
    """Makes adapters that change nothing yet: `a` is random, `b` is zero.

    Args:
      config: of the base.
      lora: the targets and the rank R.
      key: consumed.

    Returns:
      For each target `{"a": [L, D, R], "b": [L, R, E]}`, float32, for kernels [D, E] of L
      layers; `a` is normal with variance 1 / D.
    """
    layers = config.num_hidden_layers
    adapters = {}
    for target in lora.targets:
        width, out = kernel_sizes(config, target)
        noise = jax.random.normal(
            jax.random.fold_in(key, TARGETS.index(target)), (layers, width, lora.rank), jnp.float32
        )
        adapters[target] = {
            "a": noise * width**-0.5,
            "b": jnp.zeros((layers, lora.rank, out), jnp.float32),
        }
    return adapters


def adapt_model(model: LanguageModel, lora: LoraConfig) -> LanguageModel:
    """Makes the same model with adapters, whose params are the pair `(base, adapters)`.

    Nothing is merged: each adapted product has two thin ones beside it. What scores, samples
    or differentiates the model does so by the pair as it would by any params; to differentiate
    with respect to the second of it never makes a gradient of the base.

    Args:
      model: from `make_model`; its params are the base.
      lora: as the adapters were made by.

    `init` of the result draws both from one key. `bind` raises ValueError where the adapters
    are not those of the config.
    """

    def init(key: jax.Array) -> tuple[Params, Adapters]:
        base, adapters = jax.random.split(key)
        return model.init(base), init_adapters(model.config, lora, adapters)

    def bind(params: tuple[Params, Adapters]) -> Decoder:
        base, adapters = params
        check_adapters(model.config, lora, adapters)
        decoder = model.bind(base)
        for target, factors in adapters.items():
            *path, attribute = _ADAPTERS[target]
            module: Any = decoder.layers
            for name in path:
                module = getattr(module, name)
            adapter = Adapter(factors["a"], factors["b"], lora.scale)
            setattr(module, attribute, nnx.data(adapter))
        return decoder

    return model_of_decoder(model.config, init, bind)


def merge_adapters(
    config: ModelConfig, lora: LoraConfig, base: Params, adapters: Adapters
) -> Params:
    """Adds the adapters to the kernels, giving params of the plain model.

    Args:
      config: of the base.
      lora: as the adapters were made by.
      base: params of the plain model; those that no adapter changes are passed on as they are.
      adapters: as of `init_adapters`.

    Returns:
      Params like `base`, summed in float32 and kept in the base's dtype.

    Raises ValueError where the adapters are not those of the config.
    """
    check_adapters(config, lora, adapters)
    layers = base["layers"]
    for target, factors in adapters.items():
        change = lora.scale * (factors["a"] @ factors["b"])
        layers = _add_at(layers, _KERNELS[target], change)
    return {**base, "layers": layers}


def _add_at(tree: Any, path: tuple[str, ...], change: jax.Array) -> Any:
    """Returns the tree with the array at a path changed."""
    if not path:
        moved = tree.astype(jnp.float32) + change.reshape(tree.shape).astype(jnp.float32)
        return moved.astype(tree.dtype)
    return {**tree, path[0]: _add_at(tree[path[0]], path[1:], change)}


def check_adapters(config: ModelConfig, lora: LoraConfig, adapters: Adapters) -> None:
    """Raises ValueError unless the adapters have the targets and shapes of the config."""
    if set(adapters) != set(lora.targets):
        raise ValueError(
            f"adapters must be of {', '.join(sorted(lora.targets))}, "
            f"got {', '.join(sorted(adapters)) or 'none'}"
        )
    layers = config.num_hidden_layers
    for target, factors in adapters.items():
        width, out = kernel_sizes(config, target)
        wanted = {"a": (layers, width, lora.rank), "b": (layers, lora.rank, out)}
        for name, shape in wanted.items():
            found = factors[name].shape if name in factors else None
            if found != shape:
                raise ValueError(f"adapter {target}/{name} must be {shape}, got {found}")
