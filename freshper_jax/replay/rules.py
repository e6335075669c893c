"""What a buffer was asked to do: one record of options, checked once, static ever after."""

import dataclasses
import functools
import math
import numbers
from typing import Any

import numpy as np

__all__ = [
    "Rules",
    "check_batch_size",
    "check_choice",
    "check_count",
    "check_one_a_handle",
    "check_rules",
    "check_sums",
]

STRATEGIES = (
    "prioritized",
    "prioritized_without_replacement",
    "uniform",
    "newest",
    "oldest",
    "groups",
)
ONCE_EACH = ("prioritized_without_replacement", "newest", "oldest")
INSERTIONS = ("base", "max")
EVICTIONS = ("oldest", "lowest_priority")
STORAGES = ("dense", "packed")
GROUP_PRIORITIES = ("mean", "max")
WEIGHT_NORMALISERS = ("batch_max", "buffer_max", "mean", "none")


@dataclasses.dataclass(frozen=True)
class Rules:
    """The options of a buffer; `make_buffer` documents each.

    `tau` is infinite where rows do not age, and `group_size` is 1 but for `groups`.
    """

    capacity: int
    alpha: float
    tau: float
    strategy: str
    insertion: str
    eviction: str
    weight_normaliser: str
    fallback_priority: float
    group_size: int
    group_priority: str
    storage: str
    token_capacity: int | None
    ragged: Any = dataclasses.field(hash=False)
    checked: bool

    @property
    def leaves(self) -> int:
        """How many things there are to draw: rows, or groups of them."""
        return self.capacity // self.group_size

    @property
    def keeps_tree(self) -> bool:
        """Whether draws descend a tree of stored sums."""
        return self.strategy not in ONCE_EACH

    @functools.cached_property
    def sums(self) -> tuple[float, float] | None:
        """What the stored sums are made for, (alpha, tau); None without any."""
        return (self.tree_alpha, self.tree_tau) if self.keeps_tree else None

    @property
    def tree_alpha(self) -> float:
        """The exponent that the stored sums are made with."""
        return 0.0 if self.strategy == "uniform" else self.alpha

    @property
    def tree_tau(self) -> float:
        """The tau that the stored sums are made with; all the same where alpha is 0."""
        return math.inf if self.tree_alpha == 0 else self.tau


def check_rules(rules: Rules) -> None:
    """Checks a buffer's options, each and together.

    Raises:
      ValueError: one is out of range, or does not go with another.
      TypeError: one is not of the right kind.
    """
    check_count("capacity", rules.capacity)
    check_choice("strategy", rules.strategy, STRATEGIES)
    check_choice("insertion", rules.insertion, INSERTIONS)
    check_choice("eviction", rules.eviction, EVICTIONS)
    check_choice("weight_normaliser", rules.weight_normaliser, WEIGHT_NORMALISERS)
    check_choice("group_priority", rules.group_priority, GROUP_PRIORITIES)
    check_choice("storage", rules.storage, STORAGES)
    if not 0 < rules.fallback_priority < math.inf:
        raise ValueError(
            f"fallback_priority must be finite and greater than 0, got {rules.fallback_priority}"
        )
    if not 1e-37 <= rules.fallback_priority <= 1e37:
        raise ValueError(
            f"fallback_priority must be from 1e-37 to 1e37, got {rules.fallback_priority}"
        )
    check_count("group_size", rules.group_size)
    if rules.strategy == "groups":
        if rules.group_size < 2:
            raise ValueError(
                f"group_size must be at least 2 for strategy 'groups', got {rules.group_size}"
            )
        if rules.capacity % rules.group_size:
            raise ValueError(
                f"capacity must be a multiple of group_size, got {rules.capacity} rows "
                f"and groups of {rules.group_size}"
            )
    elif rules.group_size != 1:
        raise ValueError(
            f"group_size is for strategy 'groups' only, got {rules.group_size} "
            f"for {rules.strategy!r}"
        )
    if rules.storage == "dense":
        for name in ("token_capacity", "ragged"):
            if getattr(rules, name) is not None:
                raise ValueError(
                    f"{name} is for storage 'packed' only, got {getattr(rules, name)!r}"
                )
        return
    if rules.token_capacity is None or rules.ragged is None:
        raise ValueError("storage 'packed' needs token_capacity and ragged")
    check_count("token_capacity", rules.token_capacity)
    if rules.eviction != "oldest" or rules.strategy == "groups":
        raise ValueError(
            "storage 'packed' is a ring of tokens: it goes with eviction 'oldest' and with "
            f"every strategy but 'groups', got {rules.eviction!r} and {rules.strategy!r}"
        )


def check_count(name: str, value: object) -> None:
    """Checks that a value is an integer from 1 to 2^30 - 1, which int32 arithmetic needs."""
    if isinstance(value, bool) or not isinstance(value, int | numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not 1 <= int(value) < 1 << 30:
        raise ValueError(f"{name} must be at least 1 and below 2^30, got {value}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Checks that a value is one of some names."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_batch_size(batch_size: int, capacity: int, rules: Rules) -> None:
    """Checks that so many rows can be drawn at once from a buffer of so many slots.

    Raises:
      ValueError: they cannot.
      TypeError: the number is not an integer.
    """
    check_count("batch_size", batch_size)
    if rules.strategy in ONCE_EACH and batch_size > capacity:
        raise ValueError(
            f"batch_size must be at most the capacity for strategy {rules.strategy!r}, "
            f"which takes no row twice; got {batch_size} for {capacity} rows"
        )
    if batch_size % rules.group_size:
        raise ValueError(
            f"batch_size must be a multiple of group_size {rules.group_size}, got {batch_size}"
        )


def check_sums(tree: Any, rules: Rules) -> None:
    """Checks that stored sums, or their absence, are what draws by these rules descend.

    Raises:
      ValueError: they were made for another alpha or tau.
    """
    theirs = None if tree is None else (tree.alpha, tree.tau)
    if theirs != rules.sums:
        raise ValueError(
            f"state holds sums for (alpha, tau) = {theirs}, this buffer wants {rules.sums}; "
            "call its retune(state) first"
        )


def check_one_a_handle(base_priority: Any, index: Any) -> None:
    """Checks that there is one base priority a handle.

    Raises:
      ValueError: there is not.
    """
    if np.shape(base_priority) != np.shape(index):
        raise ValueError(
            f"base_priority has shape {np.shape(base_priority)}, "
            f"expected one value a handle, {np.shape(index)}"
        )
