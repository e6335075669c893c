"""Walks as games, and their environments."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from envs import checks, prompts
from envs.actions import TAGS, play_moves, read_moves
from envs.boards import boards_to_coordinates, boards_to_rgb, boards_to_text, coordinate_words
from envs.game import Counters, Game, Turn
from envs.grid_walk.bank import Bank, Scatter, build_bank
from envs.grid_walk.maps import MapSet, show_player
from envs.grid_walk.rules import GOAL, PLAIN, Walks, step
from envs.grid_walk.task import Preset, WalkTask, adapt
from envs.single_env import GameEnv
from envs.spaces import PRINTABLE

RENDER_MODES = ("ansi", "rgb_array", "codes")
TILE = 56  # the side of a cell in pixels: a multiple of what vision models make one token of


@dataclass(frozen=True)
class WalkState:
    """The state of B episodes.

    | field          | shape | dtype | content                                        |
    | -------------- | ----- | ----- | ---------------------------------------------- |
    | walks          | [B]   | Walks | the walks as they stand                        |
    | optimal_length | [B]   | int32 | steps of a shortest way, if no step goes wrong |
    """

    walks: Walks
    optimal_length: np.ndarray


def make_game(
    task: WalkTask,
    maps: MapSet,
    preset: Preset,
    *,
    prompt: str = "default",
    spaced: bool = False,
    tag: str = "answer",
    max_actions_per_turn: int = 1,
    tile: int = TILE,
) -> Game[WalkState]:
    """Makes the game of a set of maps.

    A reply is read by `parse_actions`. An invalid one moves nothing, is paid the preset's
    `invalid_reward` and uses up one action; a valid one uses up an action for each that it
    takes, and stops early where the walk or the horizon ends. An episode terminates at the
    goal, which is success, and in a hazard that ends walks.

    Beside those of every game, an info `optimal_length` [B] int32 tells the steps of a
    shortest way to the goal.

    Args:
        task: what is walked.
        maps: the maps to walk over, the game's starts.
        preset: rules, horizon and what an invalid reply costs; its `source` is not looked at.
        prompt: `minimal` (the map alone), `coordinates` (the map as a list of what lies where,
            which small models read more easily), `default` or `reference`.
        spaced: parts the symbols of a map by spaces.
        tag: `answer` or `action`, the tag that holds the actions.
        max_actions_per_turn: actions a reply may hold.
        tile: the side of a cell in rendered images, in pixels.

    Raises:
        ValueError: an argument is out of range; TypeError: a count is not an integer.
    """
    if not len(maps):
        raise ValueError("maps must hold at least one map")
    horizon = checks.positive("horizon", preset.horizon)
    most = checks.positive("max_actions_per_turn", max_actions_per_turn)
    checks.one_of("prompt", prompt, prompts.STYLES)
    checks.one_of("tag", tag, TAGS)
    if checks.integer("tile", tile) < 8:
        raise ValueError(f"tile must be at least 8 pixels, not {tile}")
    rules = preset.rules
    actions = rules.actions
    wording = task.wording(rules)
    ground = maps.ground.reshape(len(maps), -1)

    def begin(start_indices: np.ndarray, seeds: np.ndarray) -> WalkState:
        start = maps.start[start_indices]
        walks = Walks(start_indices, start, seeds, np.zeros(len(seeds), np.int64))
        return WalkState(walks, maps.shortest[start_indices])

    def kind(walks: Walks) -> np.ndarray:
        """Returns the kind of ground on which each walker stands, [B]."""
        return ground[walks.map, walks.cell]

    def ended(walks: Walks) -> np.ndarray:
        return rules.ends[kind(walks)]

    def play(
        state: WalkState, replies: Sequence[str], active: np.ndarray, left: np.ndarray
    ) -> tuple[WalkState, Turn]:
        walks, turn = play_moves(
            state.walks,
            read_moves(replies, actions, tag=tag, max_actions=most),
            active,
            left,
            noop=len(actions),
            step=lambda walks, moves, acting: step(
                rules, maps.ground, maps.start, walks, moves, acting
            ),
            ended=ended,
            invalid_reward=preset.invalid_reward,
        )
        return WalkState(walks, state.optimal_length), turn

    def codes(state: WalkState) -> np.ndarray:
        return show_player(maps.ground[state.walks.map], state.walks.cell)

    def show(state: WalkState, counters: Counters, left: np.ndarray) -> Sequence[str]:
        cells = codes(state)
        return prompts.observation_texts(
            prompt,
            wording,
            boards_to_coordinates(cells, task.symbols, left_out=PLAIN)
            if prompt == "coordinates"
            else boards_to_text(cells, task.symbols, spaced=spaced),
            tag=tag,
            max_actions=most,
            turns=(counters.turns + 1).tolist(),
            actions_left=left.tolist(),
            rewards=counters.reward.tolist(),
            valid=counters.valid.tolist(),
        )

    def render(state: WalkState, mode: str) -> Sequence[Any]:
        cells = codes(state)
        if mode == "ansi":
            return boards_to_text(cells, task.symbols, spaced=spaced)
        return list(cells if mode == "codes" else boards_to_rgb(cells, task.draw_tiles(tile)))

    return Game(
        starts=len(maps),
        horizon=horizon,
        system_prompt=prompts.system_prompt(prompt, wording, tag=tag, max_actions=most),
        begin=begin,
        play=play,
        show=show,
        terminated=lambda state: ended(state.walks),
        success=lambda state: kind(state.walks) == GOAL,
        infos=lambda state: {"optimal_length": state.optimal_length.copy()},
        format_penalty=preset.format_penalty,
        observation_space=_observation_space(task, maps, prompt, spaced),
        action_replies=tuple(f"<{tag}>{name}</{tag}>" for name in actions),
        render=render,
        render_modes=RENDER_MODES,
    )


def load_game(
    task: WalkTask,
    preset: str | Preset,
    *,
    split: str = "train",
    bank_seed: int = 0,
    prompt: str = "default",
    spaced: bool = False,
    tag: str = "answer",
    max_actions_per_turn: int = 1,
    tile: int = TILE,
    **settings: Any,
) -> Game[WalkState]:
    """Makes the game of a preset's maps.

    Args:
        task: what is walked.
        preset: its name, or a preset of your own.
        split: `train` or `held_out`.
        bank_seed: of the maps.
        prompt, spaced, tag, max_actions_per_turn, tile: see `make_game`.
        **settings: what to change of the preset, see `adapt`.

    Raises:
        ValueError: an argument is out of range, or a preset unknown.
    """
    preset = adapt(task.preset(preset), **settings)
    maps = _bank(preset.source, bank_seed).split(split)
    return make_game(
        task,
        maps,
        preset,
        prompt=prompt,
        spaced=spaced,
        tag=tag,
        max_actions_per_turn=max_actions_per_turn,
        tile=tile,
    )


def make_single(
    task: WalkTask,
    preset: str | Preset,
    *,
    action_mode: str = "text",
    render_mode: str | None = None,
    prompt: str | None = None,
    **options: Any,
) -> GameEnv:
    """Makes an environment of one row.

    Args:
        task: what is walked.
        preset: its name, or a preset of your own.
        action_mode: `text` or `discrete`, places in the task's actions.
        render_mode: None, `ansi`, `rgb_array` or `codes`.
        prompt: the style of observations; by default `default` for text actions and
            `minimal`, the map alone, for discrete ones.
        **options: further arguments of `load_game`.
    """
    if prompt is None:
        prompt = "minimal" if action_mode == "discrete" else "default"
    game = load_game(task, preset, prompt=prompt, **options)
    return GameEnv(game, action_mode=action_mode, render_mode=render_mode)


@functools.lru_cache(maxsize=8)
def _bank(source: Scatter | tuple[str, ...], seed: int) -> Bank:
    return build_bank(source, seed=seed)


def _observation_space(task: WalkTask, maps: MapSet, prompt: str, spaced: bool) -> spaces.Text:
    """Returns the space of one row's observations."""
    _, height, width = maps.ground.shape
    symbols = "".join(dict.fromkeys(task.symbols))
    board = height * (2 * width if spaced else width + 1) - 1
    if prompt == "minimal":
        charset = symbols + "\n" + " " * spaced
        return spaces.Text(board, min_length=board, charset=charset)
    if prompt == "coordinates":
        longest = sum(map(len, coordinate_words(height, width, task.symbols)[0]))
        return spaces.Text(longest, charset=symbols + "0123456789,;")
    return spaces.Text(board + 2048, charset=PRINTABLE + "√")
