"""Where parameters live on a mesh: one table from parameter path to partition."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tp")


def make_mesh(
    data: int = 1, fsdp: int = 1, tp: int = 1, *, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Makes a mesh with axes ("data", "fsdp", "tp") of Auto type.

    Every axis is always there, of size 1 where it is not used, so that the same code runs on
    one device and on many.

    Args:
      data: ways to split rows, with all parameters kept by each.
      fsdp: ways to split rows and parameters.
      tp: ways to split heads and feed-forward width.
      devices: at least data * fsdp * tp of them, the first are used; by default all there are.

    Raises ValueError on a size below 1 or on too few devices.
    """
    shape = (data, fsdp, tp)
    for name, size in zip(AXES, shape, strict=True):
        if size < 1:
            raise ValueError(f"mesh axis {name} must be at least 1, got {size}")
    devices = jax.devices() if devices is None else list(devices)
    count = data * fsdp * tp
    if count > len(devices):
        raise ValueError(f"a mesh of {shape} needs {count} devices, got {len(devices)}")
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices[:count])


@dataclasses.dataclass(frozen=True)
class PartitionRules:
    """Partition of each parameter by its path; the first pattern that matches decides.

    rules: pairs of a regular expression, searched in the path "layers/attention/output",
        and the PartitionSpec of the array's axes.
    """

    rules: tuple[tuple[str, PartitionSpec], ...]

    def find(self, path: str) -> PartitionSpec:
        """Returns the partition of the parameter at `path`.

        Raises ValueError where no rule matches it.
        """
        for pattern, spec in self.rules:
            if re.search(pattern, path):
                return spec
        raise ValueError(f"no partition rule matches the parameter {path!r}")


_P = PartitionSpec
DEFAULT_RULES = PartitionRules(
    (
        (r"^embedding$", _P("tp", "fsdp")),  # [V, D]
        (r"^unembedding$", _P("fsdp", "tp")),  # [D, V]
        (r"(query|key|value)/kernel$", _P(None, "fsdp", "tp", None)),  # [L, D, N, H]
        (r"(query|key|value)/bias$", _P(None, "tp", None)),  # [L, N, H]
        (r"attention/output$", _P(None, "tp", None, "fsdp")),  # [L, N, H, D]
        (r"feed_forward/(gate|up)$", _P(None, "fsdp", "tp")),  # [L, D, F]
        (r"feed_forward/down$", _P(None, "tp", "fsdp")),  # [L, F, D]
        (r"norm/scale$", _P()),
        (r"^value_head/", _P()),  # [D] and []
        (r"/(a|b)$", _P()),  # adapters: [L, D, R] and [L, R, E], small enough for every device
    )
)


def param_partitions(mesh: Mesh, params: Any, *, rules: PartitionRules = DEFAULT_RULES) -> Any:
    """Returns the PartitionSpec of each parameter, as a tree like `params`.

    An axis of the array that its mesh axis does not divide is replicated instead: so are
    the heads of keys and values where tp is more than there are.

    Raises ValueError where no rule matches a parameter.
    """

    def partition(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
        spec = rules.find(jax.tree_util.keystr(path, simple=True, separator="/"))
        axes = tuple(spec) + (None,) * (np.ndim(leaf) - len(spec))
        fitting = (
            axis if axis is not None and size % mesh.shape[axis] == 0 else None
            for axis, size in zip(axes, np.shape(leaf), strict=True)
        )
        return PartitionSpec(*fitting)

    return jax.tree_util.tree_map_with_path(partition, params)


def param_shardings(mesh: Mesh, params: Any, *, rules: PartitionRules = DEFAULT_RULES) -> Any:
    """Returns the NamedSharding of each parameter, as a tree like `params`.

    Args:
      mesh: made by `make_mesh`.
      params: arrays or their shapes (`jax.eval_shape` of `model.init`).
      rules: the table; the default one covers every model of this package.

    Raises ValueError where no rule matches a parameter.
    """
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        param_partitions(mesh, params, rules=rules),
        is_leaf=lambda node: isinstance(node, PartitionSpec),
    )


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: its leading axis over "data" and "fsdp"."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
