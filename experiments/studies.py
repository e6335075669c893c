"""What is compared: arms of one loop, each a few flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from experiments.options import Arm, OptionsError

__all__ = ["STUDIES", "Variants", "arms", "study"]

Variants = Mapping[str, tuple[str, ...]]  # the flags of each variant, by its name

ARMS: tuple[str, ...] = get_args(Arm)


def _values(flag: str, *values: str) -> Variants:
    name = flag.removeprefix("--").split(".")[-1]
    return {f"{name} {value}": (flag, value) for value in values}


STUDIES: Mapping[str, Variants] = {
    "arms": {arm: ("--arm", arm) for arm in ARMS},
    "tau": {
        **_values("--replay.tau", "1", "3", "10", "30", "100", "300"),
        "none": ("--arm", "per"),
        "auto from 1": ("--arm", "freshper_auto", "--replay.tau-prior", "1"),
        "auto from 10": ("--arm", "freshper_auto"),
        "auto from 100": ("--arm", "freshper_auto", "--replay.tau-prior", "100"),
        "profile": ("--replay.tau", "profile"),
    },
    "updates": _values("--replay.updates", "1", "2", "4", "8"),
    "alpha": _values("--replay.alpha", "0.0", "0.3", "0.6", "1.0"),
    "priority": _values("--replay.priority", "return", "advantage", "length", "constant"),
    "insertion": _values("--replay.insertion", "base", "max"),
    "correction": {
        "off": ("--replay.weights", "off"),
        "batch_max with beta 0.4 to 1": ("--replay.weights", "batch_max"),
        "mean with beta 0.4 to 1": ("--replay.weights", "mean"),
        "batch_max with beta 0.4": ("--replay.weights", "batch_max", "--replay.beta", "0.4", "0.4"),
    },
    "objective": {
        **_values("--learning.objective", "ppo", "tis", "gspo"),
        "ppo in 2 steps": ("--learning.objective", "ppo", "--learning.steps", "2"),
        "decoupled in 2 steps": ("--learning.objective", "decoupled", "--learning.steps", "2"),
    },
    "advantage": {
        "reinforce++": ("--learning.advantage", "reinforce++"),
        "grpo": ("--learning.advantage", "grpo", "--group-size", "4"),
        "gae": ("--learning.advantage", "gae"),
        "gae with td_error": ("--learning.advantage", "gae", "--replay.priority", "td_error"),
        "vtrace": ("--learning.advantage", "vtrace", "--learning.objective", "tis"),
    },
    "capacity": _values("--replay.capacity", "256", "1024", "4096", "16384"),
}


def arms(names: str) -> Variants:
    """Return the variants of arms given by name, parted by commas.

    Raises:
      OptionsError: a name is unknown or given twice.
    """
    return _chosen("--arms", names, STUDIES["arms"])


def study(name: str, only: str | None = None) -> Variants:
    """Return the variants of a named study, or only those given by name, parted by commas.

    Raises:
      OptionsError: there is no such study or variant.
    """
    if name not in STUDIES:
        raise OptionsError(f"--study: got {name!r}, expected one of {', '.join(STUDIES)}")
    return STUDIES[name] if only is None else _chosen("--only", only, STUDIES[name])


def _chosen(flag: str, names: str, variants: Variants) -> Variants:
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in variants:
            raise OptionsError(f"{flag}: got {name!r}, expected names among {', '.join(variants)}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise OptionsError(f"{flag}: got {names!r}, expected different names parted by commas")
    return {name: variants[name] for name in chosen}
