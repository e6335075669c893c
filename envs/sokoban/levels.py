"""Sets of levels, and the Boxoban text format."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.sokoban.rules import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
    check_cells,
)
from envs.symmetry import canonical_hashes

UNKNOWN_LENGTH = -1

_BOXOBAN_CODES = {
    "#": WALL,
    " ": FLOOR,
    ".": TARGET,
    "*": BOX_ON_TARGET,
    "$": BOX,
    "@": PLAYER,
    "+": PLAYER_ON_TARGET,
}


@dataclass(frozen=True)
class LevelSet:
    """N levels of one size.

    | field           | shape     | dtype  | content                                     |
    | --------------- | --------- | ------ | ------------------------------------------- |
    | cells           | [N, H, W] | uint8  | codes 0..6                                  |
    | optimal_lengths | [N]       | int16  | actions of a shortest solution, -1: unknown |
    | hashes          | [N]       | uint64 | canonical under the eight symmetries        |
    """

    cells: np.ndarray
    optimal_lengths: np.ndarray
    hashes: np.ndarray

    def __len__(self) -> int:
        return len(self.cells)

    def take(self, indices: np.ndarray) -> "LevelSet":
        """Returns the levels at the given places, in that order."""
        return LevelSet(self.cells[indices], self.optimal_lengths[indices], self.hashes[indices])


def make_level_set(cells: np.ndarray, optimal_lengths: np.ndarray | None = None) -> LevelSet:
    """Makes a set of legal levels from codes [N, H, W] and, if known, their lengths [N].

    Raises:
        ValueError: a level is illegal, or the lengths do not match the levels.
    """
    cells = check_cells(cells)
    if optimal_lengths is None:
        optimal_lengths = np.full(len(cells), UNKNOWN_LENGTH)
    lengths = np.asarray(optimal_lengths, np.int16)
    if lengths.shape != (len(cells),):
        raise ValueError(f"optimal_lengths must have shape ({len(cells)},), not {lengths.shape}")
    return LevelSet(cells, lengths, canonical_hashes(cells))


def read_boxoban(path: str | Path) -> LevelSet:
    """Reads a Boxoban file: levels of equal size, each under a line `; number`.

    Optimal lengths are unknown. The levels: https://github.com/google-deepmind/boxoban-levels

    Raises:
        ValueError: an unknown symbol, ragged or unequal levels, no level, or an illegal one;
            the message names file and line.
    """
    levels: list[list[list[int]]] = []
    width: int | None = None
    rows: list[list[int]] = []
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
        if line.startswith(";") or not line.strip():
            rows = []  # the next line of cells opens a level
            continue
        width = len(line) if width is None else width
        if len(line) != width:
            raise ValueError(f"{path}, line {number}: expected {width} cells, found {len(line)}")
        if unknown := set(line) - set(_BOXOBAN_CODES):
            raise ValueError(f"{path}, line {number}: unknown symbols {sorted(unknown)}")
        if not rows:
            levels.append(rows)
        rows.append([_BOXOBAN_CODES[symbol] for symbol in line])
    heights = {len(level) for level in levels}
    if len(heights) != 1:
        raise ValueError(f"{path}: expected levels of one height, found {sorted(heights)}")
    try:
        return make_level_set(np.array(levels, np.uint8))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
