"""What a task that is played by walking has of its own, as values."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envs import checks
from envs.grid_walk.bank import Scatter
from envs.grid_walk.rules import Rules
from envs.prompts import Wording


@dataclass(frozen=True)
class Preset:
    """A variant of a task.

    name: what it is called.
    source: how its maps are drawn, or the rows of its only map.
    rules: how it walks.
    horizon: actions an episode may take.
    invalid_reward: of a reply that cannot be parsed; it uses up an action.
    format_penalty: reported for such a reply, apart from the rewards.
    """

    name: str
    source: Scatter | tuple[str, ...]
    rules: Rules
    horizon: int
    invalid_reward: float
    format_penalty: float

    def __post_init__(self) -> None:
        checks.positive("horizon", self.horizon)
        checks.finite("invalid_reward", self.invalid_reward)
        checks.finite("format_penalty", self.format_penalty)


def tell_of_slips(rules: Rules, ground: str) -> str:
    """Returns what is to be said of a slippery ground of a name; nothing where it is firm."""
    if rules.success_rate == 1:
        return ""
    return (
        f" The {ground} is slippery: a step goes where you mean it to go with probability "
        f"{rules.success_rate:.3g}, and otherwise to one of the two sides of that way, each as "
        "likely."
    )


def adapt(
    preset: Preset,
    *,
    horizon: int | None = None,
    success_rate: float | None = None,
    hazard_reward: float | None = None,
    plain: float | None = None,
    min_path: int | None = None,
    reward_scale: float = 1.0,
) -> Preset:
    """Returns a preset with some of its settings changed.

    Args:
        preset: what to change.
        horizon: actions an episode may take.
        success_rate: the probability of going where one means to.
        hazard_reward: of a step onto a hazard.
        plain: the probability that a cell is no hazard; for maps that are drawn.
        min_path: the steps that a shortest way must take; for maps that are drawn.
        reward_scale: what all rewards and the penalty are multiplied by.

    Raises:
        ValueError: a value is out of range, or it is of maps that are drawn and there are none.
    """
    if not 0 < reward_scale < math.inf:
        raise ValueError(f"reward_scale must be positive, not {reward_scale}")
    step, hazard, goal = preset.rules.rewards
    rewards = (step, hazard if hazard_reward is None else hazard_reward, goal)
    step, hazard, goal = (reward_scale * reward for reward in rewards)
    rules = replace(preset.rules, rewards=(step, hazard, goal))
    if success_rate is not None:
        rules = replace(rules, success_rate=success_rate)
    source = preset.source
    drawn: dict[str, Any] = {"plain": plain, "min_path": min_path}
    for field, value in drawn.items():
        if value is None:
            continue
        if not isinstance(source, Scatter):
            raise ValueError(f"{field}: preset {preset.name!r} has one map, none are drawn")
        source = replace(source, **{field: value})
    return replace(
        preset,
        source=source,
        rules=rules,
        horizon=preset.horizon if horizon is None else horizon,
        invalid_reward=reward_scale * preset.invalid_reward,
        format_penalty=reward_scale * preset.format_penalty,
    )


@dataclass(frozen=True)
class WalkTask:
    """A task that is played by walking.

    name: what it is called.
    symbols: of plain ground, hazard and goal, and of the same with the player on them.
    presets: its variants by name.
    wording: what it says of some rules.
    draw_tiles: pictures of the six codes at a size in pixels, [6, S, S, 3] uint8.
    """

    name: str
    symbols: str
    presets: Mapping[str, Preset]
    wording: Callable[[Rules], Wording]
    draw_tiles: Callable[[int], np.ndarray]

    def preset(self, preset: str | Preset) -> Preset:
        """Returns a preset by name, or the one given; ValueError if the name is unknown."""
        if isinstance(preset, Preset):
            return preset
        if preset not in self.presets:
            raise ValueError(f"preset must be one of {tuple(self.presets)}, not {preset!r}")
        return self.presets[preset]
