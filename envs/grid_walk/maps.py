"""Sets of maps: what lies where, where walks begin, and how far the goal is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs.grid_walk.rules import GOAL, HAZARD, KINDS, PLAIN, PLAYER
from envs.symmetry import canonical_hashes, symmetries

UNREACHABLE = -1

_LETTERS = {"S": PLAIN, "F": PLAIN, "H": HAZARD, "C": HAZARD, "G": GOAL}


@dataclass(frozen=True)
class MapSet:
    """N maps of one size.

    | field    | shape     | dtype  | content                                                    |
    | -------- | --------- | ------ | ---------------------------------------------------------- |
    | ground   | [N, H, W] | uint8  | kinds of ground 0..2                                       |
    | start    | [N]       | int64  | the cell where walks begin, row * W + column               |
    | shortest | [N]       | int32  | steps of a shortest way to the goal, no hazard entered     |
    | hashes   | [N]       | uint64 | of ground and start, canonical under the eight symmetries  |
    """

    ground: np.ndarray
    start: np.ndarray
    shortest: np.ndarray
    hashes: np.ndarray

    def __len__(self) -> int:
        return len(self.ground)

    def take(self, indices: np.ndarray) -> "MapSet":
        """Returns the maps at the given places, in that order."""
        return MapSet(*(values[indices] for values in vars(self).values()))

    @property
    def cells(self) -> np.ndarray:
        """The maps as they are shown when a walk begins, codes [N, H, W] uint8."""
        return show_player(self.ground, self.start)


def make_map_set(ground: np.ndarray, start: np.ndarray) -> MapSet:
    """Makes a set of maps from kinds of ground [N, H, W] and starting cells [N].

    Raises:
        ValueError: a wrong shape or kind, a map without exactly one goal, a start that is not
            on plain ground, or a goal that cannot be reached; the message names the map.
    """
    ground, start = np.asarray(ground), np.asarray(start)
    if ground.ndim != 3 or start.shape != (len(ground),):
        raise ValueError(f"ground must be [N, H, W] and start [N]: {ground.shape}, {start.shape}")
    if not ground.size or ground.min() < 0 or ground.max() >= KINDS:
        raise ValueError(f"ground must hold kinds 0 to {KINDS - 1}, and one map at least")
    flat = ground.reshape(len(ground), -1)
    if start.min() < 0 or start.max() >= flat.shape[1]:
        raise ValueError(f"start must hold cells from 0 to {flat.shape[1] - 1}")
    rows = np.arange(len(ground))
    steps = distances(ground).reshape(flat.shape)[rows, start]
    for problem, bad in (
        ("does not have exactly one goal", (flat == GOAL).sum(axis=1) != 1),
        ("does not begin on plain ground", flat[rows, start] != PLAIN),
        ("has no way to the goal", steps == UNREACHABLE),
    ):
        if bad.any():
            raise ValueError(f"ground: map {int(np.argmax(bad))} {problem}")
    ground, start = ground.astype(np.uint8), start.astype(np.int64)
    return MapSet(ground, start, steps, canonical_hashes(show_player(ground, start)))


def read_map(rows: Sequence[str]) -> tuple[np.ndarray, int]:
    """Reads one map from rows of letters: S start, F or S plain, H or C hazard, G goal.

    Returns:
        Kinds of ground [H, W] uint8, and the starting cell.

    Raises:
        ValueError: rows of unequal length, an unknown letter, or not exactly one S.
    """
    text = "".join(rows)
    if len({len(row) for row in rows}) != 1 or set(text) - set(_LETTERS) or text.count("S") != 1:
        raise ValueError(
            f"rows must be equally long, of letters {', '.join(_LETTERS)}, one S: {list(rows)}"
        )
    kinds = np.array([_LETTERS[letter] for letter in text], np.uint8)
    return kinds.reshape(len(rows), -1), text.index("S")


def turn_maps(maps: MapSet) -> MapSet:
    """Returns the maps with those of their rotations and reflections that are of the same size."""
    boards = [
        turned for turned in symmetries(maps.cells) if turned.shape[1:] == maps.ground.shape[1:]
    ]
    cells = np.concatenate(boards)
    flat = cells.reshape(len(cells), -1)
    return make_map_set(cells % PLAYER, (flat >= PLAYER).argmax(axis=1))


def show_player(ground: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Returns boards [B, H, W] uint8 on which the cell of the player, [B], is marked.

    A code is the kind of ground, and `PLAYER` more where the player stands.
    """
    cells = np.array(ground, np.uint8)
    flat = cells.reshape(len(cells), -1)
    flat[np.arange(len(cells)), cell] += PLAYER
    return cells


def distances(ground: np.ndarray) -> np.ndarray:
    """Returns the steps from each cell to the goal round all hazards, [N, H, W] int32.

    It is a breadth-first search from the goals of all maps at once. Hazards, and cells from
    which there is no way, are `UNREACHABLE`.
    """
    free = ground != HAZARD
    found = ground == GOAL
    steps = np.where(found, 0, UNREACHABLE).astype(np.int32)
    fresh = found
    distance = 0
    while fresh.any():
        distance += 1
        beside = np.zeros_like(fresh)
        beside[:, 1:] |= fresh[:, :-1]
        beside[:, :-1] |= fresh[:, 1:]
        beside[:, :, 1:] |= fresh[:, :, :-1]
        beside[:, :, :-1] |= fresh[:, :, 1:]
        fresh = beside & free & (steps == UNREACHABLE)
        steps[fresh] = distance
    return steps
