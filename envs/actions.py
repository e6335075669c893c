"""From a model's reply to actions that have names, and a turn of several actions."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from envs.game import Turn

TAGS = ("answer", "action")
SEPARATOR = "||"
SPECIAL_TOKENS = (
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<action>",
    "</action>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
)

State = TypeVar("State")


def parse_actions(
    reply: str, actions: Sequence[str], *, tag: str = "answer", max_actions: int = 1
) -> tuple[int, ...]:
    """Reads the actions in the first `<tag>...</tag>` of a reply.

    Special tokens inside the tag are dropped, case and outer white space do not matter, and
    several actions are parted by `||`.

    Returns:
        Places in `actions`; empty if the reply is invalid: no closed tag, an unknown action,
        or more than `max_actions` of them. One wrong action makes the whole reply invalid.
    """
    return _parse(reply, _places(actions), tag, max_actions)


def read_moves(
    replies: Sequence[str], actions: Sequence[str], *, tag: str = "answer", max_actions: int = 1
) -> np.ndarray:
    """Reads the actions of B replies.

    Returns:
        [B, max_actions] int64: places in `actions`, and then `len(actions)`, which is no
        action; a row of nothing else is an invalid reply.
    """
    places = _places(actions)
    moves = np.full((len(replies), max_actions), len(actions))
    for row, reply in enumerate(replies):
        if parsed := _parse(reply, places, tag, max_actions):
            moves[row, : len(parsed)] = parsed
    return moves


def play_moves(
    state: State,
    moves: np.ndarray,
    active: np.ndarray,
    left: np.ndarray,
    *,
    noop: int,
    step: Callable[[State, np.ndarray, np.ndarray], tuple[State, np.ndarray, np.ndarray]],
    ended: Callable[[State], np.ndarray],
    invalid_reward: float,
) -> tuple[State, Turn]:
    """Plays one turn of up to M moves a row.

    A valid row plays its moves until its episode has ended or its actions are used up; an
    invalid one is paid `invalid_reward` and uses up one action.

    Args:
        state: of B rows.
        moves: [B, M] places of actions, and `noop` where there is none.
        active: [B] bool, the rows that play.
        left: [B] actions that each may still use.
        noop: the move that is none.
        step: `(state, moves [B], acting [B]) -> (state, rewards [B], moved [B])`; rows that do
            not act stay as they are.
        ended: `(state) -> [B] bool`.
        invalid_reward: of an invalid reply.
    """
    valid = active & (moves[:, 0] != noop)
    invalid = active & ~valid
    used = invalid.astype(np.int32)
    reward = np.where(invalid, np.float32(invalid_reward), np.float32(0))
    effective = np.zeros_like(valid)
    for move in moves.T:
        acting = valid & (move != noop) & (used < left) & ~ended(state)
        state, gained, moved = step(state, move, acting)
        reward = reward + np.where(acting, gained, np.float32(0))
        effective = effective | (acting & moved)
        used = used + acting
    return state, Turn(reward=reward, valid=valid, effective=effective, used=used)


def _places(actions: Sequence[str]) -> dict[str, int]:
    return {name.lower(): place for place, name in enumerate(actions)}


def _parse(reply: str, places: dict[str, int], tag: str, max_actions: int) -> tuple[int, ...]:
    # str.find does what the pattern `<tag>(.*?)</tag>` with DOTALL would, in linear time
    # even where a reply opens the tag a thousand times and never closes it.
    start = reply.find(f"<{tag}>")
    if start < 0:
        return ()
    start += len(tag) + 2
    end = reply.find(f"</{tag}>", start)
    if end < 0:
        return ()
    answer = reply[start:end]
    if "<" in answer:
        for token in SPECIAL_TOKENS:
            answer = answer.replace(token, "")
    names = answer.split(SEPARATOR, max_actions)
    if len(names) > max_actions:
        return ()
    found = [places.get(name.strip().lower(), -1) for name in names]
    return () if -1 in found else tuple(found)
