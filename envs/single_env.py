"""One episode of a game behind gymnasium's single-environment interface."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envs import checks
from envs.game import Game
from envs.vector_env import GameVectorEnv

ACTION_MODES = ("text", "discrete")


class GameEnv(gymnasium.Env[str, Any]):
    """An environment of one row; see `GameVectorEnv` for its infos.

    Observations are text. With `action_mode="text"` an action is a reply as a model gives
    it; with `"discrete"` it is a place in the game's `action_replies`.
    """

    def __init__(
        self, game: Game[Any], *, action_mode: str = "text", render_mode: str | None = None
    ) -> None:
        """Makes an environment that waits for its first reset.

        Raises:
            ValueError: an argument is out of range, or the game has no discrete actions.
        """
        modes = ACTION_MODES if game.action_replies else ACTION_MODES[:1]
        self.action_mode = checks.one_of("action_mode", action_mode, modes)
        self.rows = GameVectorEnv(game, 1, render_mode=render_mode)
        self.render_mode = render_mode
        self.metadata = {"render_modes": list(game.render_modes), "render_fps": 4}
        self.observation_space = self.rows.single_observation_space
        self.action_space = (
            self.rows.single_action_space
            if action_mode == "text"
            else spaces.Discrete(len(game.action_replies))
        )

    @property
    def system_prompt(self) -> str:
        """The text that opens every conversation."""
        return self.rows.system_prompt

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts a new episode; `options={"start_index": n}` names its start."""
        super().reset(seed=seed)
        options = dict(options or {})
        index = options.pop("start_index", None)
        if options:
            raise ValueError(f"options must be start_index alone, not {sorted(options)}")
        drawn = int(self.np_random.integers(1 << 63)) if seed is None else seed
        given = {} if index is None else {"start_indices": np.array([index])}
        texts, infos = self.rows.reset(seed=[drawn], options=given)
        return texts[0], _first(infos)

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes one reply, or the place of an action.

        Raises:
            ValueError: a discrete action out of range; TypeError: a reply that is no string.
        """
        if self.action_mode == "discrete":
            if not self.action_space.contains(action):
                most = len(self.rows.game.action_replies) - 1
                raise ValueError(f"action must be an integer from 0 to {most}, not {action!r}")
            action = self.rows.game.action_replies[action]
        texts, rewards, terminations, truncations, infos = self.rows.step([action])
        return (
            texts[0],
            float(rewards[0]),
            bool(terminations[0]),
            bool(truncations[0]),
            _first(infos),
        )

    def render(self) -> Any:
        """Returns the state as `render_mode` says, or None."""
        frames = self.rows.render()
        return None if frames is None else frames[0]


def _first(infos: dict[str, Any]) -> dict[str, Any]:
    return {name: values.tolist()[0] for name, values in infos.items()}
