"""One hash for a board and all its rotations and reflections."""

from collections.abc import Iterator

import numpy as np

from envs.seeds import scramble

_OFFSET = np.uint64(0xCBF29CE484222325)  # FNV-1a, 64 bits
_PRIME = np.uint64(0x100000001B3)


def symmetries(cells: np.ndarray) -> Iterator[np.ndarray]:
    """Yields boards [B, H, W] turned by each quarter, and their mirror images turned likewise."""
    for mirrored in (cells, cells[:, :, ::-1]):
        for quarters in range(4):
            yield np.rot90(mirrored, quarters, axes=(1, 2))


def canonical_hashes(cells: np.ndarray) -> np.ndarray:
    """Hashes whole boards, all that stands on them included, so that the eight symmetries agree.

    Args:
        cells: codes [B, H, W].

    Returns:
        [B] uint64, the smallest hash over the symmetries; equal in every process.
    """
    return np.minimum.reduce([_hash(turned) for turned in symmetries(cells)])


def _hash(cells: np.ndarray) -> np.ndarray:
    """FNV-1a over the shape and the codes, scrambled so that all bits are usable."""
    count, height, width = cells.shape
    columns = np.ascontiguousarray(cells.reshape(count, height * width).T, dtype=np.uint64)
    state = np.full(count, _OFFSET)
    for value in (np.uint64(height), np.uint64(width), *columns):
        state = (state ^ value) * _PRIME
    return scramble(state)
