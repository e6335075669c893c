"""Sokoban as a game, and its environments."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from envs import checks, prompts
from envs.actions import TAGS, play_moves, read_moves
from envs.game import Counters, Game, Turn
from envs.single_env import GameEnv
from envs.sokoban.bank import Preset, Progress, get_preset, load_bank
from envs.sokoban.levels import LevelSet
from envs.sokoban.prompts import WORDING
from envs.sokoban.render import (
    coordinate_words,
    render_coordinates,
    render_rgb,
    render_text,
)
from envs.sokoban.rules import ACTIONS, NOOP, STEP_REWARD, Boards, make_boards, step
from envs.spaces import PRINTABLE
from envs.vector_env import GameVectorEnv

RENDER_MODES = ("ansi", "rgb_array")
FORMAT_PENALTY = -0.15


@dataclass(frozen=True)
class SokobanState:
    """The state of B episodes.

    | field          | shape | dtype  | content                                         |
    | -------------- | ----- | ------ | ----------------------------------------------- |
    | boards         | [B]   | Boards | the boards as they stand                        |
    | optimal_length | [B]   | int32  | actions of a shortest solution, -1 where unknown |
    """

    boards: Boards
    optimal_length: np.ndarray


def make_game(
    levels: LevelSet,
    *,
    horizon: int,
    prompt: str = "default",
    spaced: bool = False,
    tag: str = "answer",
    max_actions_per_turn: int = 1,
    invalid_reward: float = STEP_REWARD,
    format_penalty: float = FORMAT_PENALTY,
) -> Game[SokobanState]:
    """Makes the game of a set of levels.

    A reply is read by `parse_actions`. An invalid one moves nothing, is paid
    `invalid_reward` and uses up one action; a valid one uses up an action for each that it
    executes, and stops early where the level is solved or the horizon reached. An episode
    terminates when all boxes are on targets.

    Beside those of every game, an info `optimal_length` [B] int32 tells the actions of a
    shortest solution, -1 if unknown.

    Args:
        levels: the levels to play, the game's starts.
        horizon: actions an episode may take.
        prompt: `minimal` (the board alone), `coordinates` (the board as a list of what
            stands where, which small models read more easily), `default` or `reference`.
        spaced: parts the symbols of a board by spaces.
        tag: `answer` or `action`, the tag that holds the actions.
        max_actions_per_turn: actions a reply may hold.
        invalid_reward: of a reply that cannot be read.
        format_penalty: reported in the infos for such a reply.

    Raises:
        ValueError: an argument is out of range; TypeError: a count is not an integer.
    """
    if not len(levels):
        raise ValueError("levels must hold at least one level")
    horizon = checks.positive("horizon", horizon)
    most = checks.positive("max_actions_per_turn", max_actions_per_turn)
    checks.one_of("prompt", prompt, prompts.STYLES)
    checks.one_of("tag", tag, TAGS)
    invalid_reward = checks.finite("invalid_reward", invalid_reward)

    def begin(start_indices: np.ndarray, _: np.ndarray) -> SokobanState:
        return SokobanState(
            boards=make_boards(levels.cells[start_indices]),
            optimal_length=levels.optimal_lengths[start_indices].astype(np.int32),
        )

    def play(
        state: SokobanState, replies: Sequence[str], active: np.ndarray, left: np.ndarray
    ) -> tuple[SokobanState, Turn]:
        boards, turn = play_moves(
            state.boards,
            read_moves(replies, ACTIONS, tag=tag, max_actions=most),
            active,
            left,
            noop=NOOP,
            step=lambda boards, moves, acting: step(boards, np.where(acting, moves, NOOP)),
            ended=_solved,
            invalid_reward=invalid_reward,
        )
        return SokobanState(boards, state.optimal_length), turn

    def show(state: SokobanState, counters: Counters, left: np.ndarray) -> Sequence[str]:
        cells = state.boards.cells
        return prompts.observation_texts(
            prompt,
            WORDING,
            render_coordinates(cells)
            if prompt == "coordinates"
            else render_text(cells, spaced=spaced),
            tag=tag,
            max_actions=most,
            turns=(counters.turns + 1).tolist(),
            actions_left=left.tolist(),
            rewards=counters.reward.tolist(),
            valid=counters.valid.tolist(),
        )

    def render(state: SokobanState, mode: str) -> Sequence[Any]:
        if mode == "ansi":
            return render_text(state.boards.cells, spaced=spaced)
        return [render_rgb(board) for board in state.boards.cells]

    return Game(
        starts=len(levels),
        horizon=horizon,
        system_prompt=prompts.system_prompt(prompt, WORDING, tag=tag, max_actions=most),
        begin=begin,
        play=play,
        show=show,
        terminated=lambda state: _solved(state.boards),
        success=lambda state: _solved(state.boards),
        infos=lambda state: {"optimal_length": state.optimal_length.copy()},
        format_penalty=checks.finite("format_penalty", format_penalty),
        observation_space=_observation_space(levels, prompt, spaced),
        action_replies=tuple(f"<{tag}>{name}</{tag}>" for name in ACTIONS),
        render=render,
        render_modes=RENDER_MODES,
    )


def load_game(
    preset: str | Preset = "simple",
    *,
    split: str = "train",
    horizon: int | None = None,
    bank_seed: int = 0,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Game[SokobanState]:
    """Makes the game of a preset's levels.

    Args:
        preset: `simple`, `hard`, `long`, or a preset of your own.
        split: `train` or `held_out`.
        horizon: actions an episode may take, if not the preset's.
        bank_seed: of the level bank.
        cache_dir: of the level bank; see `load_bank`.
        progress: told how the build goes on, if the bank is not cached.
        **options: further arguments of `make_game`.
    """
    preset = get_preset(preset)
    checks.one_of("split", split, ("train", "held_out"))
    bank = load_bank(preset, seed=bank_seed, cache_dir=cache_dir, progress=progress)
    return make_game(
        bank.split(split), horizon=preset.horizon if horizon is None else horizon, **options
    )


def make_sokoban(
    preset: str | Preset = "simple",
    num_envs: int = 1,
    *,
    seed: int | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> GameVectorEnv:
    """Makes the vector environment of a preset; `options` are those of `load_game`."""
    game = load_game(preset, **options)
    return GameVectorEnv(game, num_envs, seed=seed, render_mode=render_mode)


def make_single_sokoban(
    preset: str | Preset = "simple",
    *,
    action_mode: str = "text",
    render_mode: str | None = None,
    prompt: str | None = None,
    **options: Any,
) -> GameEnv:
    """Makes the single environment of a preset.

    Args:
        preset: `simple`, `hard`, `long`, or a preset of your own.
        action_mode: `text` or `discrete`.
        render_mode: None, `ansi` or `rgb_array`.
        prompt: the style of observations; by default `default` for text actions and
            `minimal`, the board alone, for discrete ones.
        **options: further arguments of `load_game`.
    """
    if prompt is None:
        prompt = "minimal" if action_mode == "discrete" else "default"
    game = load_game(preset, prompt=prompt, **options)
    return GameEnv(game, action_mode=action_mode, render_mode=render_mode)


def _solved(boards: Boards) -> np.ndarray:
    """Says whether all boxes are on targets, [B] bool."""
    return boards.off_target == 0


def _observation_space(levels: LevelSet, prompt: str, spaced: bool) -> spaces.Text:
    """Returns the space of one row's observations."""
    height, width = levels.cells.shape[1:]
    board = height * (2 * width if spaced else width + 1) - 1
    if prompt == "minimal":
        return spaces.Text(board, min_length=board, charset="#_O√XPS\n" + " " * spaced)
    if prompt == "coordinates":
        longest = sum(map(len, coordinate_words(height, width)[0]))
        return spaces.Text(longest, charset="#O√XPS0123456789,;")
    return spaces.Text(board + 2048, charset=PRINTABLE + "√")
