"""Many Sokoban episodes at once: text in, text out."""

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.sokoban import prompts
from envs.sokoban.bank import Preset, Progress, get_preset, load_bank
from envs.sokoban.levels import LevelSet
from envs.sokoban.parse import TAGS, parse_actions
from envs.sokoban.render import render_rgb, render_text
from envs.sokoban.rules import NOOP, STEP_REWARD, Boards, make_boards, step

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
            prompt: `minimal` (the board alone), `default` or `reference`.
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
        self.num_envs = _positive("num_envs", num_envs)
        self.horizon = _positive("horizon", horizon)
        self.max_actions_per_turn = _positive("max_actions_per_turn", max_actions_per_turn)
        self.prompt = _one_of("prompt", prompt, prompts.STYLES)
        self.tag = _one_of("tag", tag, TAGS)
        self.render_mode = _one_of("render_mode", render_mode, (None, *RENDER_MODES))
        self.levels = levels
        self.spaced = spaced
        self.invalid_reward = _finite("invalid_reward", invalid_reward)
        self.format_penalty = _finite("format_penalty", format_penalty)
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
            super().reset(seed=seed)
        self._boards: Boards | None = None
        self._level_index = np.zeros(self.num_envs, np.int64)
        self._turns = np.zeros(self.num_envs, np.int32)
        self._num_actions = np.zeros(self.num_envs, np.int32)
        self._score = np.zeros(self.num_envs, np.float32)
        self._rewards = np.zeros(self.num_envs, np.float32)
        self._valid = np.zeros(self.num_envs, bool)
        self._effective = np.zeros(self.num_envs, bool)
        self._penalty = np.zeros(self.num_envs, np.float32)

    @property
    def system_prompt(self) -> str:
        """The text that opens every conversation."""
        return prompts.system_prompt(
            self.prompt, tag=self.tag, max_actions=self.max_actions_per_turn
        )

    @property
    def cells(self) -> np.ndarray:
        """The boards as they stand, codes [B, H, W] uint8; a copy."""
        return self._state().cells.copy()

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
        mask = _reset_mask(options.get("reset_mask"), self.num_envs)
        if self._boards is None and not mask.all():
            raise ResetNeeded("reset_mask: the first reset must cover all rows")
        indices = options.get("level_indices")
        if indices is None:
            chosen = _levels_of_seeds(self._seeds(seed), len(self.levels))
        else:
            chosen = _level_indices(indices, self.num_envs, len(self.levels))
        self._level_index = np.where(mask, chosen, self._level_index)
        fresh = make_boards(self.levels.cells[self._level_index])
        self._boards = fresh if self._boards is None else _choose(mask, fresh, self._boards)
        for name in ("_turns", "_num_actions", "_score", "_rewards", "_penalty"):
            value = getattr(self, name)
            setattr(self, name, np.where(mask, value.dtype.type(0), value))
        self._valid = self._valid & ~mask
        self._effective = self._effective & ~mask
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
        active = self._active()
        moves = np.full((self.num_envs, self.max_actions_per_turn), NOOP)
        for row, reply in enumerate(actions):
            if not isinstance(reply, str):
                raise TypeError(f"actions[{row}] must be a string, not {type(reply).__name__}")
            if active[row]:
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
        """
        active = self._active()
        self._valid = active & (moves[:, 0] != NOOP)
        invalid = active & ~self._valid
        self._rewards = np.where(invalid, self.invalid_reward, 0.0).astype(np.float32)
        self._penalty = np.where(invalid, self.format_penalty, 0.0).astype(np.float32)
        self._effective = np.zeros(self.num_envs, bool)
        self._num_actions = self._num_actions + invalid
        self._turns = self._turns + active
        for move in moves.T:
            acting = self._valid & (move != NOOP) & self._active()
            self._boards, rewards, moved = step(self._state(), np.where(acting, move, NOOP))
            self._rewards = self._rewards + np.where(acting, rewards, np.float32(0))
            self._effective = self._effective | moved
            self._num_actions = self._num_actions + acting
        self._score = self._score + self._rewards
        solved = self._solved()
        truncated = ~solved & (self._num_actions >= self.horizon)
        return self._observe(), self._rewards.copy(), solved, truncated, self._infos()

    def render(self) -> tuple[Any, ...] | None:
        """Returns each row's board as a string or RGB image, as `render_mode` says."""
        if self.render_mode is None:
            return None
        cells = self._state().cells
        if self.render_mode == "ansi":
            return render_text(cells, spaced=self.spaced)
        return tuple(render_rgb(board) for board in cells)

    def _state(self) -> Boards:
        if self._boards is None:
            raise ResetNeeded("call reset before anything else")
        return self._boards

    def _solved(self) -> np.ndarray:
        return self._state().off_target == 0

    def _active(self) -> np.ndarray:
        return ~self._solved() & (self._num_actions < self.horizon)

    def _seeds(self, seed: int | Sequence[int] | None) -> np.ndarray:
        """Returns one seed a row, [B] uint64."""
        if seed is None:
            return self.np_random.integers(0, 1 << 63, self.num_envs, np.uint64)
        if isinstance(seed, Sequence | np.ndarray):
            seeds = [operator.index(one) for one in seed]
        else:
            super().reset(seed=operator.index(seed))
            seeds = list(range(operator.index(seed), operator.index(seed) + self.num_envs))
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed must hold {self.num_envs} seeds, not {len(seeds)}")
        if min(seeds) < 0 or max(seeds) >= 1 << 64:
            raise ValueError(f"seed must be in 0 to 2**64 - 1, not {min(seeds)} to {max(seeds)}")
        return np.array(seeds, np.uint64)

    def _observe(self) -> tuple[str, ...]:
        boards = render_text(self._state().cells, spaced=self.spaced)
        if self.prompt == "minimal":
            return boards
        return prompts.observation_texts(
            self.prompt,
            boards,
            tag=self.tag,
            max_actions=self.max_actions_per_turn,
            turns=(self._turns + 1).tolist(),
            actions_left=(self.horizon - self._num_actions).tolist(),
            rewards=self._rewards.tolist(),
            valid=self._valid.tolist(),
        )

    def _infos(self) -> dict[str, Any]:
        return {
            "success": self._solved(),
            "action_is_valid": self._valid.copy(),
            "action_is_effective": self._effective.copy(),
            "num_actions": self._num_actions.copy(),
            "score": self._score.copy(),
            "format_penalty": self._penalty.copy(),
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
    _one_of("split", split, ("train", "held_out"))
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
    return spaces.Text(board + 2048, charset=_PRINTABLE + "√")


def _levels_of_seeds(seeds: np.ndarray, count: int) -> np.ndarray:
    """Maps seeds [B] uint64 to places of levels: scattered, and alike in every process."""
    mixed = seeds + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(count)).astype(np.int64)


def _choose(mask: np.ndarray, new: Boards, old: Boards) -> Boards:
    return Boards(
        cells=np.where(mask[:, None, None], new.cells, old.cells),
        player=np.where(mask, new.player, old.player),
        off_target=np.where(mask, new.off_target, old.off_target),
    )


def _reset_mask(mask: Any, count: int) -> np.ndarray:
    mask = np.ones(count, bool) if mask is None else np.asarray(mask)
    if mask.shape != (count,) or mask.dtype != np.bool_:
        raise ValueError(
            f"reset_mask must be bool of shape ({count},), not {mask.dtype} {mask.shape}"
        )
    return mask


def _level_indices(indices: Any, count: int, levels: int) -> np.ndarray:
    indices = np.asarray(indices)
    if indices.shape != (count,) or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(
            f"level_indices must be {count} integers, not {indices.dtype} {indices.shape}"
        )
    if indices.min() < 0 or indices.max() >= levels:
        raise ValueError(
            f"level_indices must be in 0 to {levels - 1}, not {indices.min()} to {indices.max()}"
        )
    return indices.astype(np.int64)


def _positive(field: str, value: int) -> int:
    try:
        count = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{field} must be an integer, not {value!r}") from error
    if count < 1:
        raise ValueError(f"{field} must be at least 1, not {value}")
    return count


def _finite(field: str, value: float) -> float:
    if not np.isfinite(value):
        raise ValueError(f"{field} must be finite, not {value}")
    return float(value)


def _one_of(field: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise ValueError(f"{field} must be one of {allowed}, not {value!r}")
    return value
