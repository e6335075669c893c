"""One Sokoban episode behind gymnasium's single-environment interface."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.sokoban.bank import Preset
from envs.sokoban.rules import ACTIONS
from envs.sokoban.vector_env import RENDER_MODES, SokobanVectorEnv, make_sokoban

ACTION_MODES = ("text", "discrete")


class SokobanEnv(gymnasium.Env[str, Any]):
    """A Sokoban environment of one row; see `SokobanVectorEnv` for rules and infos.

    Observations are text. With `action_mode="text"` an action is a reply as a model gives
    it; with `"discrete"` it is a place in `ACTIONS`: up, down, left, right.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - an instance variable to gymnasium
        "render_modes": list(RENDER_MODES),
        "render_fps": 4,
    }

    def __init__(
        self,
        preset: str | Preset = "simple",
        *,
        action_mode: str = "text",
        render_mode: str | None = None,
        prompt: str | None = None,
        split: str = "train",
        cache_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        """Makes an environment that waits for its first reset.

        Args:
            preset: `simple`, `hard`, `long`, or a preset of your own.
            action_mode: `text` or `discrete`.
            render_mode: None, `ansi` or `rgb_array`.
            prompt: the style of observations; by default `default` for text actions and
                `minimal`, the board alone, for discrete ones.
            split: `train` or `held_out`.
            cache_dir: of the level bank; see `load_bank`.
            **options: further arguments of `make_sokoban`.

        Raises:
            ValueError: an argument is out of range.
        """
        if action_mode not in ACTION_MODES:
            raise ValueError(f"action_mode must be one of {ACTION_MODES}, not {action_mode!r}")
        if prompt is None:
            prompt = "default" if action_mode == "text" else "minimal"
        self.rows: SokobanVectorEnv = make_sokoban(
            preset,
            1,
            split=split,
            cache_dir=cache_dir,
            prompt=prompt,
            render_mode=render_mode,
            **options,
        )
        self.render_mode = render_mode
        self.action_mode = action_mode
        self.observation_space = self.rows.single_observation_space
        self.action_space = (
            self.rows.single_action_space
            if action_mode == "text"
            else spaces.Discrete(len(ACTIONS))
        )

    @property
    def system_prompt(self) -> str:
        """The text that opens every conversation."""
        return self.rows.system_prompt

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts a new episode; `options={"level_index": n}` names its level."""
        super().reset(seed=seed)
        options = dict(options or {})
        index = options.pop("level_index", None)
        if options:
            raise ValueError(f"options must be level_index alone, not {sorted(options)}")
        if index is not None:
            texts, infos = self.rows.reset(options={"level_indices": np.array([index])})
        else:
            drawn = int(self.np_random.integers(1 << 63)) if seed is None else seed
            texts, infos = self.rows.reset(seed=[drawn])
        return texts[0], _first(infos)

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes one reply, or one of the four actions.

        Raises:
            ValueError: a discrete action out of range; TypeError: a reply that is no string.
        """
        if self.action_mode == "text":
            result = self.rows.step([action])
        else:
            if not self.action_space.contains(action):
                raise ValueError(f"action must be an integer from 0 to 3, not {action!r}")
            result = self.rows.step_moves(np.array([[action]]))
        texts, rewards, terminations, truncations, infos = result
        return (
            texts[0],
            float(rewards[0]),
            bool(terminations[0]),
            bool(truncations[0]),
            _first(infos),
        )

    def render(self) -> Any:
        """Returns the board as a string or RGB image, as `render_mode` says."""
        frames = self.rows.render()
        return None if frames is None else frames[0]


def _first(infos: dict[str, Any]) -> dict[str, Any]:
    return {name: values[0].item() for name, values in infos.items()}
