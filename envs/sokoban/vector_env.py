"""Many Sokoban episodes at once: text in, text out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs import checks
from envs.sokoban import prompts
from envs.sokoban.bank import Preset, Progress, get_preset, load_bank
from envs.sokoban.episodes import Episodes, restart_episodes, start_episodes, take_turn
from envs.sokoban.levels import LevelSet
from envs.sokoban.parse import TAGS, parse_actions
from envs.sokoban.render import (
    coordinate_words,
    render_coordinates,
    render_rgb,
    render_text,
)
from envs.sokoban.rules import NOOP, STEP_REWARD
from envs.symmetry import scramble

RENDER_MODES = ("ansi", "rgb_array")
FORMAT_PENALTY = -0.15
LONGEST_REPLY = 4096  # of the action space; longer replies are taken all the same

_OPTIONS = {"level_indices", "reset_mask"}
_PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"


class SokobanVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], np.ndarray]):
    """B episodes of Sokoban on levels of a set, advanced together.

    A reply is parsed by `parse_actions`. An invalid one moves nothing, is paid
    `invalid_reward` and uses up one action; a valid one uses up an action for each that it
    executes, and stops early where the level is solved or the horizon reached. An episode
    terminates when all boxes are on targets and is truncated after `horizon` actions. A row
    that has ended is not advanced: its reward is 0 and its flags stay until it is reset.

    Infos of `reset` and `step`, each [B]:

    | name                | dtype   | content                                                 |
    | ------------------- | ------- | ------------------------------------------------------- |
    | success             | bool    | all boxes are on targets                                |
    | action_is_valid     | bool    | the last reply could be parsed                          |
    | action_is_effective | bool    | the last reply moved the player                         |
    | num_actions         | int32   | actions used up in this episode, invalid turns included |
    | score               | float32 | sum of the rewards of this episode                      |
    | format_penalty      | float32 | for the last reply; not part of reward and score        |
    | optimal_length      | int32   | actions of a shortest solution, -1 if unknown           |
    | level_index         | int64   | the level's place in the set                            |
    """

    def __init__(
        self,
        levels: LevelSet,
        num_envs: int,
        *,
        horizon: int,
        seed: int | None = None,
        prompt: str = "default",
        spaced: bool = False,
        tag: str = "answer",
        max_actions_per_turn: int = 1,
        invalid_reward: float = STEP_REWARD,
        format_penalty: float = FORMAT_PENALTY,
        render_mode: str | None = None,
    ) -> None:
        """Makes B = `num_envs` rows that wait for their first reset.

        Args:
            levels: the levels to play.
            num_envs: the number of rows.
            horizon: actions an episode may take.
            seed: of the generator that draws levels where `reset` is given no seed.
            prompt: `minimal` (the board alone), `coordinates` (the board as a list of what
                stands where, which small models read more easily), `default` or `reference`.
            spaced: parts the symbols of a board by spaces.
            tag: `answer` or `action`, the tag that holds the actions.
            max_actions_per_turn: actions a reply may hold.
            invalid_reward: of a reply that cannot be parsed.
            format_penalty: reported in the infos for such a reply.
            render_mode: None, `ansi` or `rgb_array`.

        Raises:
            ValueError: an argument is out of range; TypeError: a count is not an integer.
        """
        if not len(levels):
            raise ValueError("levels must hold at least one level")
        self.num_envs = checks.positive("num_envs", num_envs)
        self.horizon = checks.positive("horizon", horizon)
        self.max_actions_per_turn = checks.positive("max_actions_per_turn", max_actions_per_turn)
        self.prompt = checks.one_of("prompt", prompt, prompts.STYLES)
        self.tag = checks.one_of("tag", tag, TAGS)
        self.render_mode = checks.one_of("render_mode", render_mode, (None, *RENDER_MODES))
        self.levels = levels
        self.spaced = spaced
        self.invalid_reward = checks.finite("invalid_reward", invalid_reward)
        self.format_penalty = checks.finite("format_penalty", format_penalty)
        self.metadata = {
            "autoreset_mode": AutoresetMode.DISABLED,
            "render_modes": list(RENDER_MODES),
            "render_fps": 4,
        }
        self.single_observation_space = observation_space(levels, prompt, spaced)
        self.single_action_space = spaces.Text(LONGEST_REPLY, min_length=0, charset=_PRINTABLE)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        if seed is not None:
            if checks.integer("seed", seed) < 0:
                raise ValueError(f"seed must not be negative: {seed}")
            super().reset(seed=seed)
        self._level_index = np.zeros(self.num_envs, np.int64)
        self._episodes: Episodes | None = None

    @property
    def system_prompt(self) -> str:
        """The text that opens every conversation."""
        return prompts.system_prompt(
            self.prompt, tag=self.tag, max_actions=self.max_actions_per_turn
        )

    @property
    def cells(self) -> np.ndarray:
        """The boards as they stand, codes [B, H, W] uint8; a copy."""
        return self._state().boards.cells.copy()

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Starts new episodes.

        Args:
            seed: decides the levels. With an integer, row i plays the level of seed + i;
                with B integers, each row that of its own. One seed is one level, in every
                row and every process. None draws seeds from the environment's generator.
            options: `level_indices`, [B] places in the level set, decides the levels
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
        if self._episodes is None and not mask.all():
            raise ResetNeeded("reset_mask: the first reset must cover all rows")
        indices = options.get("level_indices")
        if indices is not None:
            indices = checks.level_indices(indices, self.num_envs, len(self.levels))
        if indices is None or seed is not None:
            seeds = self._seeds(seed)
        chosen = _levels_of_seeds(seeds, len(self.levels)) if indices is None else indices
        self._level_index = np.where(mask, chosen, self._level_index)
        cells = self.levels.cells[self._level_index]
        if self._episodes is None:
            self._episodes = start_episodes(cells)
        else:
            self._episodes = restart_episodes(self._episodes, mask, cells)
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
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise ValueError(f"actions must be {self.num_envs} strings, one a row")
        moves = np.full((self.num_envs, self.max_actions_per_turn), NOOP)
        for row, reply in enumerate(actions):
            if not isinstance(reply, str):
                raise TypeError(f"actions[{row}] must be a string, not {type(reply).__name__}")
            parsed = parse_actions(reply, tag=self.tag, max_actions=self.max_actions_per_turn)
            moves[row, : len(parsed)] = parsed
        return self.step_moves(moves)

    def step_moves(
        self, moves: np.ndarray
    ) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Does what `step` does, with the replies already parsed.

        Args:
            moves: [B, M] integers, places in `ACTIONS` and then `NOOP`; a row of `NOOP` is
                an invalid reply.

        Raises:
            ValueError: a wrong shape or an unknown action; ResetNeeded.
        """
        self._episodes = take_turn(
            self._state(),
            checks.moves(moves, self.num_envs, NOOP + 1),
            horizon=self.horizon,
            invalid_reward=self.invalid_reward,
            format_penalty=self.format_penalty,
        )
        solved = self._episodes.solved
        truncated = ~solved & (self._episodes.num_actions >= self.horizon)
        reward = self._episodes.reward.copy()
        return self._observe(), reward, solved, truncated, self._infos()

    def render(self) -> tuple[Any, ...] | None:
        """Returns each row's board as a string or RGB image, as `render_mode` says."""
        if self.render_mode is None:
            return None
        cells = self._state().boards.cells
        if self.render_mode == "ansi":
            return render_text(cells, spaced=self.spaced)
        return tuple(render_rgb(board) for board in cells)

    def _state(self) -> Episodes:
        if self._episodes is None:
            raise ResetNeeded("call reset before anything else")
        return self._episodes

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
        state = self._state()
        cells = state.boards.cells
        return prompts.observation_texts(
            self.prompt,
            render_coordinates(cells)
            if self.prompt == "coordinates"
            else render_text(cells, spaced=self.spaced),
            tag=self.tag,
            max_actions=self.max_actions_per_turn,
            turns=(state.turns + 1).tolist(),
            actions_left=(self.horizon - state.num_actions).tolist(),
            rewards=state.reward.tolist(),
            valid=state.valid.tolist(),
        )

    def _infos(self) -> dict[str, Any]:
        state = self._state()
        return {
            "success": state.solved,
            "action_is_valid": state.valid.copy(),
            "action_is_effective": state.effective.copy(),
            "num_actions": state.num_actions.copy(),
            "score": state.score.copy(),
            "format_penalty": state.format_penalty.copy(),
            "optimal_length": self.levels.optimal_lengths[self._level_index].astype(np.int32),
            "level_index": self._level_index.copy(),
        }


def make_sokoban(
    preset: str | Preset = "simple",
    num_envs: int = 1,
    *,
    split: str = "train",
    seed: int | None = None,
    horizon: int | None = None,
    bank_seed: int = 0,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> SokobanVectorEnv:
    """Makes the vector environment of a preset.

    Args:
        preset: `simple`, `hard`, `long`, or a preset of your own.
        num_envs: the number of rows.
        split: `train` or `held_out`.
        seed: of the generator that draws levels where `reset` is given no seed.
        horizon: actions an episode may take, if not the preset's.
        bank_seed: of the level bank.
        cache_dir: of the level bank; see `load_bank`.
        progress: told how the build goes on, if the bank is not cached.
        **options: further arguments of `SokobanVectorEnv`.
    """
    preset = get_preset(preset)
    checks.one_of("split", split, ("train", "held_out"))
    bank = load_bank(preset, seed=bank_seed, cache_dir=cache_dir, progress=progress)
    return SokobanVectorEnv(
        bank.split(split),
        num_envs,
        horizon=preset.horizon if horizon is None else horizon,
        seed=seed,
        **options,
    )


def observation_space(levels: LevelSet, prompt: str, spaced: bool) -> spaces.Text:
    """Returns the space of one row's observations."""
    height, width = levels.cells.shape[1:]
    board = height * (2 * width if spaced else width + 1) - 1
    if prompt == "minimal":
        return spaces.Text(board, min_length=board, charset="#_O√XPS\n" + " " * spaced)
    if prompt == "coordinates":
        longest = sum(map(len, coordinate_words(height, width)[0]))
        return spaces.Text(longest, charset="#O√XPS0123456789,;")
    return spaces.Text(board + 2048, charset=_PRINTABLE + "√")


def _levels_of_seeds(seeds: np.ndarray, count: int) -> np.ndarray:
    """Maps seeds [B] uint64 to places of levels: scattered, and alike in every process."""
    return (scramble(seeds) % np.uint64(count)).astype(np.int64)
