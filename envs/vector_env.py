"""Many episodes of a game at once: text in, text out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv

from envs import checks
from envs.game import Counters, Game, count_turn, select_rows, zero_counters
from envs.seeds import indices_of_seeds
from envs.spaces import PRINTABLE

LONGEST_REPLY = 4096  # of the action space; longer replies are taken all the same

_OPTIONS = {"start_indices", "reset_mask"}


class GameVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], np.ndarray]):
    """B episodes of a game, advanced together.

    An episode terminates where the game says so and is truncated when its actions are used up.
    A row that has ended is not advanced: its reward is 0 and its flags stay until it is reset.

    Infos of `reset` and `step`, each [B], beside the game's own:

    | name                | dtype   | content                                           |
    | ------------------- | ------- | ------------------------------------------------- |
    | success             | bool    | the episode is won                                |
    | action_is_valid     | bool    | the last reply could be read                      |
    | action_is_effective | bool    | the last reply changed something                  |
    | num_actions         | int32   | actions used up, those of invalid turns included  |
    | score               | float32 | sum of the rewards of this episode                |
    | format_penalty      | float32 | for the last reply; not part of reward and score  |
    | start_index         | int64   | which of the game's starts is played              |
    """

    def __init__(
        self,
        game: Game[Any],
        num_envs: int,
        *,
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Makes B = `num_envs` rows that wait for their first reset.

        Args:
            game: what is played.
            num_envs: the number of rows.
            seed: of the generator that draws starts where `reset` is given no seed.
            render_mode: None or one of the game's.

        Raises:
            ValueError: an argument is out of range; TypeError: a count is not an integer.
        """
        self.game = game
        self.num_envs = checks.positive("num_envs", num_envs)
        self.render_mode = checks.one_of("render_mode", render_mode, (None, *game.render_modes))
        self.metadata = {
            "autoreset_mode": AutoresetMode.DISABLED,
            "render_modes": list(game.render_modes),
            "render_fps": 4,
        }
        self.single_observation_space = game.observation_space
        self.single_action_space = spaces.Text(LONGEST_REPLY, min_length=0, charset=PRINTABLE)
        # One space for all rows: gymnasium's own batching copies it for each of them, which takes
        # seconds where a task measures itself on all of its starts.
        self.observation_space = spaces.Tuple([self.single_observation_space] * self.num_envs)
        self.action_space = spaces.Tuple([self.single_action_space] * self.num_envs)
        if seed is not None:
            if checks.integer("seed", seed) < 0:
                raise ValueError(f"seed must not be negative: {seed}")
            super().reset(seed=seed)
        self._start_index = np.zeros(self.num_envs, np.int64)
        self._counters = zero_counters(self.num_envs)
        self._state: Any = None

    @property
    def system_prompt(self) -> str:
        """The text that opens every conversation."""
        return self.game.system_prompt

    @property
    def state(self) -> Any:
        """The game's state of all rows; not to be written to."""
        if self._state is None:
            raise ResetNeeded("call reset before anything else")
        return self._state

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Starts new episodes.

        Args:
            seed: decides the starts and all chance in the episodes. With an integer, row i has
                seed + i; with B integers, each row its own. One seed is one episode, in every
                row and every process. None draws seeds from the environment's generator.
            options: `start_indices`, [B] places among the game's starts, decides the starts
                instead; `reset_mask`, [B] bool, keeps the other rows as they are.

        Returns:
            B observations and the infos, of all rows.

        Raises:
            ValueError: a bad seed, index, mask or option; ResetNeeded: the first reset
                does not cover all rows.
        """
        options = {} if options is None else options
        if unknown := set(options) - _OPTIONS:
            raise ValueError(f"options must be among {sorted(_OPTIONS)}, not {sorted(unknown)}")
        mask = checks.reset_mask(options.get("reset_mask"), self.num_envs)
        if self._state is None and not mask.all():
            raise ResetNeeded("reset_mask: the first reset must cover all rows")
        indices = options.get("start_indices")
        if indices is not None:
            indices = checks.start_indices(indices, self.num_envs, self.game.starts)
        seeds = self._seeds(seed)
        if indices is None:
            indices = indices_of_seeds(seeds, self.game.starts)
        begun = self.game.begin(indices, seeds)
        blank = zero_counters(self.num_envs)
        if self._state is not None and not mask.all():
            begun = select_rows(mask, begun, self._state)
            blank = select_rows(mask, blank, self._counters)
        self._start_index = np.where(mask, indices, self._start_index)
        self._state, self._counters = begun, blank
        return self._observe(), self._infos()

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Gives each row one reply.

        Args:
            actions: B strings; those of rows that have ended are ignored.

        Returns:
            B observations; rewards [B] float32, without format penalty; terminations [B]
            and truncations [B] bool; infos.

        Raises:
            ValueError: not B replies; TypeError: a reply is not a string; ResetNeeded.
        """
        state = self.state
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise ValueError(f"actions must be {self.num_envs} strings, one a row")
        for row, reply in enumerate(actions):
            if not isinstance(reply, str):
                raise TypeError(f"actions[{row}] must be a string, not {type(reply).__name__}")
        left = self._left(self._counters)
        active = ~self.game.terminated(state) & (left > 0)
        state, turn = self.game.play(state, actions, active, left)
        counters = count_turn(self._counters, turn, active, self.game.format_penalty)
        self._state, self._counters = state, counters
        terminated = np.array(self.game.terminated(state), bool)
        truncated = ~terminated & (self._left(counters) <= 0)
        return self._observe(), counters.reward.copy(), terminated, truncated, self._infos()

    def render(self) -> tuple[Any, ...] | None:
        """Returns one frame a row, as `render_mode` says."""
        if self.render_mode is None or self.game.render is None:
            return None
        return tuple(self.game.render(self.state, self.render_mode))

    def _left(self, counters: Counters) -> np.ndarray:
        return np.int32(self.game.horizon) - counters.num_actions

    def _seeds(self, seed: int | Sequence[int] | None) -> np.ndarray:
        """Returns one seed a row, [B] uint64."""
        if seed is None:
            return self.np_random.integers(0, 1 << 63, self.num_envs, np.uint64)
        if isinstance(seed, Sequence | np.ndarray):
            seeds = [checks.integer("seed", one) for one in seed]
        else:
            first = checks.integer("seed", seed)
            seeds = list(range(first, first + self.num_envs))
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed must hold {self.num_envs} seeds, not {len(seeds)}")
        if min(seeds) < 0 or max(seeds) >= 1 << 64:
            raise ValueError(f"seed must be in 0 to 2**64 - 1, not {min(seeds)} to {max(seeds)}")
        if not isinstance(seed, Sequence | np.ndarray):
            super().reset(seed=seeds[0])
        return np.array(seeds, np.uint64)

    def _observe(self) -> tuple[str, ...]:
        return tuple(self.game.show(self._state, self._counters, self._left(self._counters)))

    def _infos(self) -> dict[str, Any]:
        counters = self._counters
        return {
            "success": np.array(self.game.success(self._state), bool),
            "action_is_valid": counters.valid.copy(),
            "action_is_effective": counters.effective.copy(),
            "num_actions": counters.num_actions.copy(),
            "score": counters.score.copy(),
            "format_penalty": counters.format_penalty.copy(),
            "start_index": self._start_index.copy(),
            **self.game.infos(self._state),
        }
