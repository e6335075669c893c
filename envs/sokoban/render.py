"""Boards as text and as RGB images."""

import numpy as np

from envs import boards
from envs.boards import (
    boards_to_coordinates,
    boards_to_rgb,
    boards_to_text,
    paint,
    paint_player,
    pixel_centres,
)
from envs.sokoban.rules import FLOOR, SYMBOLS

_FLOOR_RGB = (222, 214, 200)
_MORTAR_RGB = (92, 84, 78)
_BRICK_RGB = (140, 98, 80)
_TARGET_RGB = (206, 62, 62)
_WOOD_RGB = (178, 124, 62)
_WOOD_EDGE_RGB = (112, 74, 34)
_PLACED_RGB = (98, 160, 84)
_PLACED_EDGE_RGB = (50, 98, 44)


def render_text(cells: np.ndarray, *, spaced: bool = False) -> tuple[str, ...]:
    """Returns one string a board: rows of symbols, parted by newlines.

    Args:
        cells: codes [B, H, W].
        spaced: parts the symbols of a row by spaces, so that a tokenizer sees them apart.
    """
    return boards_to_text(cells, SYMBOLS, spaced=spaced)


def render_coordinates(cells: np.ndarray) -> tuple[str, ...]:
    """Returns one string a board: each thing inside the frame as its symbol, row and column.

    `X2,3;` is a box in the second row and third column inside the frame, which is all wall
    and left out, as is the floor. Things come in reading order.

    Args:
        cells: codes [B, H, W].
    """
    return boards_to_coordinates(cells[:, 1:-1, 1:-1], SYMBOLS, left_out=FLOOR)


def coordinate_words(height: int, width: int) -> np.ndarray:
    """Returns what `render_coordinates` writes for each code and place, strings [7, places]."""
    return boards.coordinate_words(height - 2, width - 2, SYMBOLS)


def render_rgb(cells: np.ndarray, *, tile: int = 16) -> np.ndarray:
    """Returns the image [H * tile, W * tile, 3] uint8 of one board of codes [H, W].

    Raises:
        ValueError: `tile`, the side of a cell in pixels, is less than 8.
    """
    if tile < 8:
        raise ValueError(f"tile must be at least 8 pixels, not {tile}")
    return boards_to_rgb(cells[None], draw_tiles(tile))[0]


def draw_tiles(size: int) -> np.ndarray:
    """Draws one tile a code: [7, size, size, 3] uint8."""
    y, x = pixel_centres(size)
    radius = np.hypot(x - 0.5, y - 0.5)
    floor = np.full((size, size, 3), _FLOOR_RGB, np.uint8)

    wall = np.full_like(floor, _BRICK_RGB)
    course = (y * 4).astype(int)
    mortar = ((y * 4) % 1 < 0.2) | ((x * 2 + course % 2 * 0.5) % 1 < 0.12)
    wall[mortar] = _MORTAR_RGB

    rings = ((radius > 0.34) & (radius < 0.46)) | (radius < 0.14)
    target = paint(floor, rings, _TARGET_RGB)

    inside = np.maximum(abs(x - 0.5), abs(y - 0.5))
    frame = ((inside > 0.3) | (abs(abs(x - 0.5) - abs(y - 0.5)) < 0.06)) & (inside < 0.42)
    box = paint(paint(floor, inside < 0.42, _WOOD_RGB), frame, _WOOD_EDGE_RGB)
    placed = paint(paint(target, inside < 0.42, _PLACED_RGB), frame, _PLACED_EDGE_RGB)

    player, player_on_target = paint_player(floor), paint_player(target)
    return np.stack([wall, floor, target, placed, box, player, player_on_target])
