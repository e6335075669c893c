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
        "auto from 1": ("--replay.tau", "auto", "--replay.tau-prior", "1"),
        "auto from 10": ("--replay.tau", "auto", "--replay.tau-prior", "10"),
        "auto from 100": ("--replay.tau", "auto", "--replay.tau-prior", "100"),
    },
    "updates": _values("--replay.updates", "1", "2", "4", "8"),
    "alpha": _values("--replay.alpha", "0.0", "0.3", "0.6", "1.0"),
    "priority": _values("--replay.priority", "return", "advantage", "length", "constant"),
    "insertion": _values("--replay.insertion", "base", "max"),
    "correction": {
        "off": ("--replay.weights", "off"),
        "batch_max, beta 0.4 to 1": ("--replay.weights", "batch_max"),
        "mean, beta 0.4 to 1": ("--replay.weights", "mean"),
        "batch_max, beta 0.4": ("--replay.weights", "batch_max", "--replay.beta", "0.4", "0.4"),
    },
    "objective": {
        **_values("--learning.objective", "ppo", "tis", "gspo"),
        "ppo, 2 steps": ("--learning.objective", "ppo", "--learning.steps", "2"),
        "decoupled, 2 steps": ("--learning.objective", "decoupled", "--learning.steps", "2"),
    },
    "advantage": {
        "reinforce++": ("--learning.advantage", "reinforce++"),
        "grpo": ("--learning.advantage", "grpo", "--group-size", "4"),
        "gae": ("--learning.advantage", "gae"),
        "gae, td_error": ("--learning.advantage", "gae", "--replay.priority", "td_error"),
        "vtrace": ("--learning.advantage", "vtrace", "--learning.objective", "tis"),
    },
    "capacity": _values("--replay.capacity", "256", "1024", "4096", "16384"),
}


def arms(names: str) -> Variants:
    """Return the variants of arms given by name, parted by commas.

    Raises:
      OptionsError: a name is unknown or given twice.
    """
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in ARMS:
            raise OptionsError(f"--arms: got {name!r}, expected names among {', '.join(ARMS)}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise OptionsError(f"--arms: got {names!r}, expected different names parted by commas")
    return {name: ("--arm", name) for name in chosen}


def study(name: str) -> Variants:
    """Return the variants of a named study.

    Raises:
      OptionsError: there is none of that name.
    """
    if name not in STUDIES:
        raise OptionsError(f"--study: got {name!r}, expected one of {', '.join(STUDIES)}")
    return STUDIES[name]
