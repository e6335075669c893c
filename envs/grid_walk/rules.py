"""Walking over a grid of cells to a goal, many walkers at once.

FrozenLake and CliffWalking are two settings of these rules: what each kind of ground pays,
and whether a hazard ends the walk or sends the walker back to the start.
"""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from envs.seeds import uniform

PLAIN, HAZARD, GOAL = range(3)  # kinds of ground
KINDS = 3
PLAYER = KINDS  # what a cell's code grows by while the player stands on it

_DIRECTIONS = {"Up": (-1, 0), "Right": (0, 1), "Down": (1, 0), "Left": (0, -1)}


@dataclass(frozen=True)
class Rules:
    """How a task walks.

    actions: names of the four directions; each is perpendicular to its neighbours in the list.
    rewards: for a step onto plain ground, onto a hazard, and onto the goal.
    hazard_ends: whether a hazard ends the walk; if not, the walker is put back at the start.
    success_rate: the probability of going where one means to, 1 on firm ground; the rest
        falls to the two perpendicular directions, half each.
    """

    actions: tuple[str, str, str, str]
    rewards: tuple[float, float, float]
    hazard_ends: bool
    success_rate: float = 1.0

    def __post_init__(self) -> None:
        if sorted(self.actions) != sorted(_DIRECTIONS):
            raise ValueError(f"actions must be {tuple(_DIRECTIONS)} in some order: {self.actions}")
        if len(self.rewards) != KINDS or not all(map(math.isfinite, self.rewards)):
            raise ValueError(f"rewards must be {KINDS} finite numbers, not {self.rewards}")
        if not 0 <= self.success_rate <= 1:
            raise ValueError(f"success_rate must be from 0 to 1, not {self.success_rate}")

    @property
    def ends(self) -> np.ndarray:
        """Whether each kind of ground ends the walk, [3] bool."""
        return np.array([False, self.hazard_ends, True])

    @property
    def headings(self) -> tuple[tuple[int, float], ...]:
        """How far the way taken may lie from the action meant, in `actions`, and how likely."""
        if self.success_rate == 1:
            return ((0, 1.0),)
        aside = (1 - self.success_rate) / 2
        return ((-1, aside), (0, self.success_rate), (1, aside))


@dataclass(frozen=True)
class Walks:
    """The state of B walks; the maps they go over are kept apart.

    | field | shape | dtype  | content                                                 |
    | ----- | ----- | ------ | ------------------------------------------------------- |
    | map   | [B]   | int64  | place of the map in its set                             |
    | cell  | [B]   | int64  | where the walker stands, row * W + column               |
    | seed  | [B]   | uint64 | decides where the walker slips                          |
    | steps | [B]   | int64  | steps taken; a step's slip is drawn by seed and number  |
    """

    map: np.ndarray
    cell: np.ndarray
    seed: np.ndarray
    steps: np.ndarray


def step(
    rules: Rules,
    ground: np.ndarray,
    start: np.ndarray,
    walks: Walks,
    actions: np.ndarray,
    active: np.ndarray,
) -> tuple[Walks, np.ndarray, np.ndarray]:
    """Takes one step in every active row.

    Args:
        rules: how the task walks.
        ground: the maps, kinds of ground [N, H, W].
        start: the cells where walks begin, [N].
        walks: the state of B walks.
        actions: [B] places in `rules.actions`; those of other rows are not looked at.
        active: [B] bool, the rows that take a step; the others stay as they are.

    Returns:
        The new walks; rewards [B] float32; and effective [B] bool: the walker moved.
    """
    heading = np.where(active, actions, 0)
    if rules.success_rate < 1:
        heading = heading + _slips(rules.success_rate, uniform(walks.seed, walks.steps))
    lands, kind = enter(rules, ground, start, walks.map, walks.cell, heading)
    cell = np.where(active, lands, walks.cell)
    rewards = np.where(active, np.array(rules.rewards, np.float32)[kind], np.float32(0))
    moved = replace(walks, cell=cell, steps=walks.steps + active)
    return moved, rewards, cell != walks.cell


def enter(
    rules: Rules,
    ground: np.ndarray,
    start: np.ndarray,
    maps: np.ndarray,
    cells: np.ndarray,
    headings: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Goes one cell on, whatever ground one stands on.

    Args:
        rules, ground, start: as for `step`.
        maps: places of the maps.
        cells: where one stands.
        headings: which way one goes, places in `rules.actions`, counted round and round.

    Returns:
        The cells where one then stands, and the kinds of ground that were entered; arrays of
        the shape of the last three arguments, broadcast.
    """
    _, height, width = ground.shape
    ways = neighbours(height, width, rules.actions)
    ahead = ways[cells, headings % len(rules.actions)]
    kind = ground.reshape(len(ground), -1)[maps, ahead]
    if rules.hazard_ends:
        return ahead, kind
    return np.where(kind == HAZARD, start[maps], ahead), kind


@functools.cache
def neighbours(height: int, width: int, actions: tuple[str, ...]) -> np.ndarray:
    """Returns the cell that each action leads to, [H * W, 4]: at an edge, the cell itself."""
    rows, columns = np.divmod(np.arange(height * width), width)
    cells = [
        np.clip(rows + down, 0, height - 1) * width + np.clip(columns + right, 0, width - 1)
        for down, right in (_DIRECTIONS[name] for name in actions)
    ]
    table = np.stack(cells, axis=1)
    table.setflags(write=False)
    return table


def _slips(success_rate: float, draws: np.ndarray) -> np.ndarray:
    """Returns -1, 0 or 1 for each draw: how far off, in `actions`, the way taken is."""
    aside = (1 - success_rate) / 2
    return np.where(draws < aside, -1, np.where(draws < aside + success_rate, 0, 1))
