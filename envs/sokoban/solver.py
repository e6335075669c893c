"""Breadth-first search for a shortest solution of one level."""

import numpy as np

from envs.sokoban.rules import (
    BOX,
    BOX_ON_TARGET,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
    check_cells,
)


def solve(level: np.ndarray, *, max_states: int = 1_000_000) -> tuple[int, ...] | None:
    """Returns a shortest sequence of actions that solves a level of codes [H, W].

    Among equally short solutions it is the first in the order of `ACTIONS`.

    Returns:
        Places in `ACTIONS`, or None if the level has no solution.

    Raises:
        ValueError: the level is illegal, or `max_states` states did not settle it.
    """
    cells = check_cells(np.asarray(level)[None], "level")[0]
    codes = cells.reshape(-1).tolist()
    wall = [code == WALL for code in codes]
    goal = _mask(codes, (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET))
    width = cells.shape[1]
    moves = tuple(enumerate((-width, width, -1, 1)))
    player = next(place for place, code in enumerate(codes) if code >= PLAYER)
    root = (_mask(codes, (BOX, BOX_ON_TARGET)), player)
    parent: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {root: None}
    queue = [root]
    for state in queue:  # grows while it is walked: a first-in first-out queue
        boxes, here = state
        for action, delta in moves:
            ahead = here + delta
            if wall[ahead]:
                continue
            pushed = boxes
            if boxes >> ahead & 1:
                beyond = ahead + delta
                if wall[beyond] or boxes >> beyond & 1:
                    continue
                pushed = boxes ^ (1 << ahead) ^ (1 << beyond)
            following = (pushed, ahead)
            if following in parent:
                continue
            parent[following] = (state, action)
            if pushed == goal:
                return _trace(parent, following)
            queue.append(following)
        if len(parent) > max_states:
            raise ValueError(f"level not settled within max_states = {max_states} states")
    return None


def _mask(codes: list[int], wanted: tuple[int, ...]) -> int:
    return sum(1 << place for place, code in enumerate(codes) if code in wanted)


def _trace(
    parent: dict[tuple[int, int], tuple[tuple[int, int], int] | None], state: tuple[int, int]
) -> tuple[int, ...]:
    """Returns the actions that lead from the root to a state."""
    actions: list[int] = []
    while (step := parent[state]) is not None:
        state, action = step
        actions.append(action)
    return tuple(reversed(actions))
