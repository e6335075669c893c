"""What a task that is played by walking has of its own, as values."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

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
        if self.horizon < 1:
            raise ValueError(f"horizon must be at least 1, not {self.horizon}")
        for field in ("invalid_reward", "format_penalty"):
            if not math.isfinite(getattr(self, field)):
                raise ValueError(f"{field} must be finite, not {getattr(self, field)}")

    def scaled(self, factor: float) -> "Preset":
        """Returns the preset with all rewards and the penalty times a positive factor."""
        if not 0 < factor < math.inf:
            raise ValueError(f"reward_scale must be positive, not {factor}")
        plain, hazard, goal = (factor * reward for reward in self.rules.rewards)
        return replace(
            self,
            rules=replace(self.rules, rewards=(plain, hazard, goal)),
            invalid_reward=factor * self.invalid_reward,
            format_penalty=factor * self.format_penalty,
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
