"""Levels by retrograde search: every solvable start of a room, with its exact optimal length.

A state is one integer, `layout << (n + 6) | boxes << 6 | player`, where the n floor cells of
a layout are numbered in reading order, `boxes` is a bit mask over them and `player` one of
them. The search walks backwards from all solved states, for many layouts at once.
"""

from dataclasses import dataclass

import numpy as np

from envs.sokoban.rules import FLOOR, TARGET, WALL, with_box, with_player

_PLAYER_BITS = 6
_TURN_PROBABILITY = 0.35
_FLOOR_SHARE = (0.45, 0.95)  # of the interior
_MOST_FLOOR = 48  # cells; leaves bits for hundreds of layouts in a state of 63


@dataclass(frozen=True)
class Starts:
    """Solvable starts, sorted by length; K of them.

    | field   | shape | dtype | content                                   |
    | ------- | ----- | ----- | ----------------------------------------- |
    | layout  | [K]   | int64 | the layout's place in its batch           |
    | boxes   | [K]   | int64 | bit mask over the layout's floor cells    |
    | player  | [K]   | int64 | the player's floor cell                   |
    | length  | [K]   | int64 | actions in a shortest solution, 1 or more |
    """

    layout: np.ndarray
    boxes: np.ndarray
    player: np.ndarray
    length: np.ndarray


def carve_layouts(
    rng: np.random.Generator, count: int, height: int, width: int, boxes: int
) -> np.ndarray:
    """Carves connected rooms by random walks and puts targets in them.

    A room's share of the interior is drawn uniformly; no room exceeds 48 cells.

    Returns:
        Codes [count, height, width] uint8 of walls, floor and `boxes` targets.
    """
    interior = (height - 2) * (width - 2)
    floor = np.zeros((count, height, width), bool)
    every = np.arange(count)
    goal = interior * rng.uniform(*_FLOOR_SHARE, count)
    goal = goal.clip(2 * boxes + 1, max(_MOST_FLOOR, 2 * boxes + 1)).astype(int)
    row = rng.integers(1, height - 1, count)
    column = rng.integers(1, width - 1, count)
    direction = rng.integers(0, 4, count)
    carved = np.zeros(count, int)
    while (carved < goal).any():
        fresh = ~floor[every, row, column] & (carved < goal)
        floor[every[fresh], row[fresh], column[fresh]] = True
        carved += fresh
        turned = rng.random(count) < _TURN_PROBABILITY
        direction = np.where(turned, rng.integers(0, 4, count), direction)
        row = np.clip(row + _ROW_STEP[direction], 1, height - 2)
        column = np.clip(column + _COLUMN_STEP[direction], 1, width - 2)
    layouts = np.where(floor, FLOOR, WALL).astype(np.uint8).reshape(count, -1)
    order = np.where(layouts == FLOOR, rng.random(layouts.shape), 2.0).argsort(axis=1)
    np.put_along_axis(layouts, order[:, :boxes], TARGET, axis=1)
    return layouts.reshape(count, height, width)


def solvable_starts(layouts: np.ndarray, max_length: int) -> Starts:
    """Finds every start that can be solved in 1 to `max_length` actions.

    Args:
        layouts: codes [L, H, W] of walls, floor and targets; as many boxes as targets.
        max_length: the longest solution wanted.

    Raises:
        ValueError: the layouts are too many or too large for 63-bit states.
    """
    floor = (layouts != WALL).reshape(len(layouts), -1)
    cells = int(floor.sum(1).max())
    layout_shift = cells + _PLAYER_BITS
    if cells > 1 << _PLAYER_BITS or len(layouts) > 1 << max(63 - layout_shift, 0):
        raise ValueError(
            f"layouts: {len(layouts)} of up to {cells} floor cells do not fit in 63 bits a state"
        )
    number = np.cumsum(floor, axis=1) - 1
    neighbour = _neighbours(layouts, floor, number, cells)
    frontier = _solved_states(layouts, number, floor, layout_shift)
    seen = frontier
    layers = []
    for _ in range(max_length):
        frontier = np.unique(_predecessors(frontier, neighbour, layout_shift))
        place = np.minimum(np.searchsorted(seen, frontier), len(seen) - 1)
        frontier = frontier[seen[place] != frontier]
        if not len(frontier):
            break
        layers.append(frontier)
        seen = np.sort(np.concatenate((seen, frontier)), kind="stable")
    states = np.concatenate([*layers, frontier[:0]])
    length = np.repeat(np.arange(1, len(layers) + 1), [len(layer) for layer in layers])
    return Starts(*_unpack(states, layout_shift), length=length)


def start_cells(layouts: np.ndarray, starts: Starts, chosen: np.ndarray) -> np.ndarray:
    """Returns the codes [C, H, W] of the chosen starts (indices [C] into `starts`)."""
    layout = starts.layout[chosen]
    floor = (layouts != WALL).reshape(len(layouts), -1)
    # Floor cells sort first, in reading order: column n is the cell numbered n.
    position = np.argsort(~floor, axis=1, kind="stable")[layout]
    cells = layouts.reshape(len(layouts), -1)[layout]
    bits = np.arange(position.shape[1]).clip(max=62)  # bit 62 is never set
    row, number = np.nonzero(starts.boxes[chosen][:, None] >> bits & 1)
    box = position[row, number]
    cells[row, box] = with_box(cells[row, box])
    every = np.arange(len(chosen))
    player = position[every, starts.player[chosen]]
    cells[every, player] = with_player(cells[every, player])
    return cells.reshape(len(chosen), *layouts.shape[1:])


def _neighbours(
    layouts: np.ndarray, floor: np.ndarray, number: np.ndarray, cells: int
) -> np.ndarray:
    """Returns [L, cells, 4]: the floor cell one action away, or -1 where there is a wall."""
    width = layouts.shape[2]
    layout, position = np.nonzero(floor)
    here = number[layout, position]
    neighbour = np.full((len(layouts), cells, 4), -1, np.int64)
    for action, delta in enumerate((-width, width, -1, 1)):
        there = position + delta
        reached = np.where(floor[layout, there], number[layout, there], -1)
        neighbour[layout, here, action] = reached
    return neighbour


def _solved_states(
    layouts: np.ndarray, number: np.ndarray, floor: np.ndarray, layout_shift: int
) -> np.ndarray:
    """Returns the sorted states with every box on a target and the player anywhere else."""
    is_target = layouts.reshape(len(layouts), -1) == TARGET
    boxes = np.where(is_target, np.int64(1) << number.clip(min=0), 0).sum(1)
    layout, position = np.nonzero(floor & ~is_target)
    player = number[layout, position]
    return layout << layout_shift | boxes[layout] << _PLAYER_BITS | player


def _predecessors(states: np.ndarray, neighbour: np.ndarray, layout_shift: int) -> np.ndarray:
    """Returns the states from which one action leads to the given ones, repeats included."""
    layout, boxes, player = _unpack(states, layout_shift)
    found = []
    for action in range(4):
        back = neighbour[layout, player, action ^ 1]  # 0 and 1, 2 and 3 are opposites
        ahead = neighbour[layout, player, action]
        free = (back >= 0) & (boxes >> back.clip(min=0) & 1 == 0)
        walked = states - player + back
        found.append(walked[free])
        pushed = free & (ahead >= 0) & (boxes >> ahead.clip(min=0) & 1 == 1)
        moved = np.int64(1) << ahead[pushed] | np.int64(1) << player[pushed]
        found.append(walked[pushed] ^ moved << _PLAYER_BITS)
    return np.concatenate(found)


def _unpack(states: np.ndarray, layout_shift: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    layout = states >> layout_shift
    boxes = (states >> _PLAYER_BITS) & ((1 << (layout_shift - _PLAYER_BITS)) - 1)
    return layout, boxes, states & ((1 << _PLAYER_BITS) - 1)


_ROW_STEP = np.array((-1, 1, 0, 0))
_COLUMN_STEP = np.array((0, 0, -1, 1))
