"""The rules of Sokoban on many boards at once, as one table look-up a step."""

import math
from dataclasses import dataclass

import numpy as np

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
SYMBOLS = "#_O√XPS"  # the symbol of each code

ACTIONS = ("Up", "Down", "Left", "Right")
NOOP = len(ACTIONS)

STEP_REWARD = -0.1
BOX_REWARD = 1.0  # for each box that comes onto a target; its negative when one leaves
SOLVED_REWARD = 10.0


@dataclass(frozen=True)
class Boards:
    """The state of B boards of one size.

    | field      | shape     | dtype | content                             |
    | ---------- | --------- | ----- | ----------------------------------- |
    | cells      | [B, H, W] | uint8 | codes 0..6, walls all round         |
    | player     | [B]       | int64 | the player's cell, row * W + column |
    | off_target | [B]       | int64 | boxes that are not on a target      |
    """

    cells: np.ndarray
    player: np.ndarray
    off_target: np.ndarray


def make_boards(cells: np.ndarray) -> Boards:
    """Returns the state of boards given as codes [B, H, W]; the cells are copied."""
    flat = np.array(cells, dtype=np.uint8).reshape(len(cells), math.prod(cells.shape[1:]))
    return Boards(
        cells=flat.reshape(cells.shape),
        player=np.argmax(flat >= PLAYER, axis=1),
        off_target=np.count_nonzero(flat == BOX, axis=1),
    )


def check_cells(cells: np.ndarray, name: str = "cells") -> np.ndarray:
    """Returns codes [B, H, W] as uint8 once they are legal, unsolved boards.

    Raises:
        ValueError: a wrong rank, an unknown code, an open border, not exactly one player,
            or other than as many boxes as targets.
    """
    cells = np.asarray(cells)
    if cells.ndim != 3 or min(cells.shape[1:]) < 3:
        raise ValueError(f"{name} must have shape [B, H, W], H and W at least 3: {cells.shape}")
    if cells.size and not (cells.min() >= 0 and cells.max() < len(SYMBOLS)):
        raise ValueError(f"{name} must hold codes 0 to 6, not {cells.min()} to {cells.max()}")
    border = np.ones(cells.shape[1:], bool)
    border[1:-1, 1:-1] = False
    boxes = np.isin(cells, (BOX, BOX_ON_TARGET)).sum((1, 2))
    targets = np.isin(cells, (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET)).sum((1, 2))
    for problem, bad in (
        ("is not closed by walls", (cells[:, border] != WALL).any(1)),
        ("does not have exactly one player", (cells >= PLAYER).sum((1, 2)) != 1),
        ("does not have as many boxes as targets", boxes != targets),
        ("has no box off its target", ~(cells == BOX).any((1, 2))),
    ):
        if bad.any():
            raise ValueError(f"{name}: level {int(np.argmax(bad))} {problem}")
    return cells.astype(np.uint8)


def step(boards: Boards, actions: np.ndarray) -> tuple[Boards, np.ndarray, np.ndarray]:
    """Moves the player of every board once.

    Args:
        boards: the state of B boards.
        actions: [B] integers, places in `ACTIONS` or `NOOP`.

    Returns:
        The new boards; rewards [B] float32: -0.1, +1 or -1 as a box comes onto or leaves
        a target, +10 with all boxes on targets; and effective [B] bool: the player moved.
    """
    count, _, width = boards.cells.shape
    cells = boards.cells.reshape(-1).copy()
    delta = np.array((-width, width, -1, 1, 0))[actions]
    here = boards.player + np.arange(count) * (cells.size // max(count, 1))
    ahead = here + delta
    # Two cells ahead may lie outside the board, but only behind a border wall, where the
    # table changes nothing; the last board alone must be kept from running off the end.
    beyond = np.minimum(ahead + delta, cells.size - 1)
    case = (cells[here] - PLAYER) * np.uint8(49) + cells[ahead] * np.uint8(7) + cells[beyond]
    cells[here] = _HERE[case]
    cells[ahead] = _AHEAD[case]
    cells[beyond] = _BEYOND[case]
    effective = _MOVED[case]
    change = _BOXES_PLACED[case]
    off_target = boards.off_target - change
    rewards = STEP_REWARD + BOX_REWARD * change + SOLVED_REWARD * (off_target == 0)
    moved = Boards(
        cells=cells.reshape(boards.cells.shape),
        player=boards.player + delta * effective,
        off_target=off_target,
    )
    return moved, rewards.astype(np.float32), effective


def with_box(codes: np.ndarray) -> np.ndarray:
    """Returns the codes of free cells after a box was put on each."""
    return np.where(codes == TARGET, BOX_ON_TARGET, BOX).astype(np.uint8)


def with_player(codes: np.ndarray) -> np.ndarray:
    """Returns the codes of free cells after the player was put on each."""
    return np.where(codes == TARGET, PLAYER_ON_TARGET, PLAYER).astype(np.uint8)


def _transition(here: int, ahead: int, beyond: int) -> tuple[int, int, int, bool, int]:
    """Returns the next codes of three cells in line, whether the player moved, and boxes placed."""
    free = (FLOOR, TARGET)
    left = {PLAYER: FLOOR, PLAYER_ON_TARGET: TARGET}[here]
    entered = {
        FLOOR: PLAYER,
        TARGET: PLAYER_ON_TARGET,
        BOX: PLAYER,
        BOX_ON_TARGET: PLAYER_ON_TARGET,
    }
    if ahead in free:
        return left, entered[ahead], beyond, True, 0
    if ahead in (BOX, BOX_ON_TARGET) and beyond in free:
        pushed = BOX_ON_TARGET if beyond == TARGET else BOX
        return left, entered[ahead], pushed, True, (beyond == TARGET) - (ahead == BOX_ON_TARGET)
    return here, ahead, beyond, False, 0


# A NOOP looks at the player's own cell three times over, a case in which nothing changes.
_TABLE = [
    _transition(here, ahead, beyond)
    for here in (PLAYER, PLAYER_ON_TARGET)
    for ahead in range(7)
    for beyond in range(7)
]
_HERE, _AHEAD, _BEYOND = (np.array([row[place] for row in _TABLE], np.uint8) for place in range(3))
_MOVED = np.array([row[3] for row in _TABLE])
_BOXES_PLACED = np.array([row[4] for row in _TABLE], np.int64)
