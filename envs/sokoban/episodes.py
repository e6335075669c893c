"""B episodes of Sokoban as one immutable state, and how a turn changes it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envs.sokoban.rules import NOOP, Boards, make_boards, step


@dataclass(frozen=True)
class Episodes:
    """The state of B episodes.

    | field          | shape | dtype   | content                                            |
    | -------------- | ----- | ------- | -------------------------------------------------- |
    | boards         | [B]   | Boards  | the boards as they stand                           |
    | turns          | [B]   | int32   | turns taken                                        |
    | num_actions    | [B]   | int32   | actions used up, one for each invalid turn         |
    | score          | [B]   | float32 | sum of the rewards                                 |
    | reward         | [B]   | float32 | of the last turn                                   |
    | format_penalty | [B]   | float32 | of the last turn; part of neither reward nor score |
    | valid          | [B]   | bool    | the last turn held actions                         |
    | effective      | [B]   | bool    | the last turn moved the player                     |
    """

    boards: Boards
    turns: np.ndarray
    num_actions: np.ndarray
    score: np.ndarray
    reward: np.ndarray
    format_penalty: np.ndarray
    valid: np.ndarray
    effective: np.ndarray

    @property
    def solved(self) -> np.ndarray:
        """Whether all boxes are on targets, [B] bool."""
        return self.boards.off_target == 0


def start_episodes(cells: np.ndarray) -> Episodes:
    """Returns the first state of episodes on levels of codes [B, H, W]."""
    count = len(cells)
    return Episodes(
        boards=make_boards(cells),
        turns=np.zeros(count, np.int32),
        num_actions=np.zeros(count, np.int32),
        score=np.zeros(count, np.float32),
        reward=np.zeros(count, np.float32),
        format_penalty=np.zeros(count, np.float32),
        valid=np.zeros(count, bool),
        effective=np.zeros(count, bool),
    )


def restart_episodes(episodes: Episodes, mask: np.ndarray, cells: np.ndarray) -> Episodes:
    """Starts the masked rows [B] anew on levels of codes [B, H, W]; the others stay."""
    return _select(mask, start_episodes(cells), episodes)


def take_turn(
    episodes: Episodes,
    moves: np.ndarray,
    *,
    horizon: int,
    invalid_reward: float,
    format_penalty: float,
) -> Episodes:
    """Plays one turn of every episode that has not ended.

    The others keep their boards and sums; their reward and penalty of this turn are 0.

    Args:
        episodes: the state of B episodes.
        moves: [B, M] integers, places in `ACTIONS` and then `NOOP`; a row of `NOOP` alone
            is an invalid turn. They are played until the level is solved or the horizon
            reached.
        horizon: actions an episode may take.
        invalid_reward: of an invalid turn, which uses up one action.
        format_penalty: recorded for an invalid turn.
    """
    active = ~episodes.solved & (episodes.num_actions < horizon)
    valid = active & (moves[:, 0] != NOOP)
    invalid = active & ~valid
    boards = episodes.boards
    num_actions = episodes.num_actions + invalid
    reward = np.where(invalid, np.float32(invalid_reward), np.float32(0))
    effective = np.zeros_like(valid)
    for move in moves.T:
        acting = valid & (move != NOOP) & (boards.off_target > 0) & (num_actions < horizon)
        boards, gained, moved = step(boards, np.where(acting, move, NOOP))
        reward = reward + np.where(acting, gained, np.float32(0))
        effective = effective | moved
        num_actions = num_actions + acting
    return replace(
        episodes,
        boards=boards,
        turns=episodes.turns + active,
        num_actions=num_actions,
        score=episodes.score + reward,
        reward=reward,
        format_penalty=np.where(invalid, np.float32(format_penalty), np.float32(0)),
        valid=valid,
        effective=effective,
    )


def _select(mask: np.ndarray, new: Any, old: Any) -> Any:
    """Takes the masked rows of one state and the other rows of another, field by field."""
    if isinstance(new, np.ndarray):
        return np.where(mask.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
    return type(new)(
        **{name: _select(mask, value, getattr(old, name)) for name, value in vars(new).items()}
    )
