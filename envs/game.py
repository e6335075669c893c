"""A task as pure functions over the states of many episodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from gymnasium import spaces

from envs.spaces import FreeText

State = TypeVar("State")


@dataclass(frozen=True)
class Turn:
    """What one turn of B episodes did; of those that had ended nothing is looked at.

    | field     | shape | dtype   | content                                                |
    | --------- | ----- | ------- | ------------------------------------------------------ |
    | reward    | [B]   | float32 | the task's own, without format penalty                 |
    | valid     | [B]   | bool    | the reply could be read                                |
    | effective | [B]   | bool    | the reply changed something                            |
    | used      | [B]   | int32   | actions used up; at least 1, or the episode never ends |
    """

    reward: np.ndarray
    valid: np.ndarray
    effective: np.ndarray
    used: np.ndarray


@dataclass(frozen=True)
class Counters:
    """What is counted of B episodes, whatever the task.

    | field          | shape | dtype   | content                                            |
    | -------------- | ----- | ------- | -------------------------------------------------- |
    | turns          | [B]   | int32   | turns taken                                        |
    | num_actions    | [B]   | int32   | actions used up                                    |
    | score          | [B]   | float32 | sum of the rewards                                 |
    | reward         | [B]   | float32 | of the last turn                                   |
    | format_penalty | [B]   | float32 | of the last turn; part of neither reward nor score |
    | valid          | [B]   | bool    | the last reply could be read                       |
    | effective      | [B]   | bool    | the last reply changed something                   |
    """

    turns: np.ndarray
    num_actions: np.ndarray
    score: np.ndarray
    reward: np.ndarray
    format_penalty: np.ndarray
    valid: np.ndarray
    effective: np.ndarray


@dataclass(frozen=True)
class Game(Generic[State]):
    """A task: its starts, and pure functions over a state of B rows.

    A state is a frozen dataclass of arrays with leading axis B (of objects, where a row holds
    text), and of other such dataclasses. All chance in a row comes from its own seed and turn,
    so that one seed is one episode in every row and every process.

    starts: how many distinct starts there are: levels, questions.
    horizon: actions an episode may take.
    system_prompt: the text that opens every conversation.
    begin: `(start_indices [B] int64, seeds [B] uint64) -> state`.
    play: `(state, replies, active [B] bool, left [B] int32) -> (state, turn)`: one reply a row;
      rows that are not active stay as they are, `left` are the actions until the horizon.
    show: `(state, counters, left [B] int32) -> B observations`.
    terminated, success: `(state) -> [B] bool`.
    infos: `(state) -> further infos`, each [B].
    format_penalty: reported for a reply that is not valid.
    observation_space: of one row.
    action_replies: the reply that stands for each discrete action; empty where there are none.
    render: `(state, mode) -> one frame a row`, for each of `render_modes`.
    """

    starts: int
    horizon: int
    system_prompt: str
    begin: Callable[[np.ndarray, np.ndarray], State]
    play: Callable[[State, Sequence[str], np.ndarray, np.ndarray], tuple[State, Turn]]
    show: Callable[[State, Counters, np.ndarray], Sequence[str]]
    terminated: Callable[[State], np.ndarray]
    success: Callable[[State], np.ndarray]
    infos: Callable[[State], dict[str, np.ndarray]] = lambda _: {}
    format_penalty: float = 0.0
    observation_space: spaces.Text = field(default_factory=FreeText)
    action_replies: tuple[str, ...] = ()
    render: Callable[[State, str], Sequence[Any]] | None = None
    render_modes: tuple[str, ...] = ()


def zero_counters(count: int) -> Counters:
    """Returns the counters of so many episodes that have not begun."""
    return Counters(
        turns=np.zeros(count, np.int32),
        num_actions=np.zeros(count, np.int32),
        score=np.zeros(count, np.float32),
        reward=np.zeros(count, np.float32),
        format_penalty=np.zeros(count, np.float32),
        valid=np.zeros(count, bool),
        effective=np.zeros(count, bool),
    )


def count_turn(counters: Counters, turn: Turn, active: np.ndarray, penalty: float) -> Counters:
    """Adds a turn of the active rows [B]; the last turn of the others becomes one of nothing."""
    reward = np.where(active, turn.reward, np.float32(0)).astype(np.float32)
    invalid = active & ~turn.valid
    return Counters(
        turns=counters.turns + active.astype(np.int32),
        num_actions=counters.num_actions + np.where(active, turn.used, 0).astype(np.int32),
        score=counters.score + reward,
        reward=reward,
        format_penalty=np.where(invalid, np.float32(penalty), np.float32(0)),
        valid=active & turn.valid,
        effective=active & turn.effective,
    )


def select_rows(mask: np.ndarray, new: Any, old: Any) -> Any:
    """Takes the masked rows [B] of one state and the other rows of another, field by field."""
    if isinstance(new, np.ndarray):
        return np.where(mask.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
    return type(new)(
        **{name: select_rows(mask, value, getattr(old, name)) for name, value in vars(new).items()}
    )
