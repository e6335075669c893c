"""Boards as text and as RGB images."""

import numpy as np

from envs.sokoban.rules import SYMBOLS

_PLACEHOLDER = "v"  # one byte that stands for the one symbol outside ASCII
_BYTES = np.frombuffer(SYMBOLS.replace("√", _PLACEHOLDER).encode("ascii"), np.uint8)

_FLOOR_RGB = (222, 214, 200)
_MORTAR_RGB = (92, 84, 78)
_BRICK_RGB = (140, 98, 80)
_TARGET_RGB = (206, 62, 62)
_WOOD_RGB = (178, 124, 62)
_WOOD_EDGE_RGB = (112, 74, 34)
_PLACED_RGB = (98, 160, 84)
_PLACED_EDGE_RGB = (50, 98, 44)
_SHIRT_RGB = (58, 104, 180)
_FACE_RGB = (238, 190, 150)


def render_text(cells: np.ndarray, *, spaced: bool = False) -> tuple[str, ...]:
    """Returns one string a board: rows of symbols, parted by newlines.

    Args:
        cells: codes [B, H, W].
        spaced: parts the symbols of a row by spaces, so that a tokenizer sees them apart.
    """
    count, height, width = cells.shape
    if spaced:
        page = np.full((count, height, 2 * width), ord(" "), np.uint8)
        page[:, :, :-1:2] = _BYTES[cells]
    else:
        page = np.empty((count, height, width + 1), np.uint8)
        page[:, :, :-1] = _BYTES[cells]
    page[:, :, -1] = ord("\n")
    text = page.tobytes().decode("ascii").replace(_PLACEHOLDER, "√")
    size = page[0].size if count else 1
    return tuple(text[start : start + size - 1] for start in range(0, count * size, size))


def render_coordinates(cells: np.ndarray) -> tuple[str, ...]:
    """Returns one string a board: each thing inside the frame as its symbol, row and column.

    `X2,3;` is a box in the second row and third column inside the frame, which is all wall
    and left out, as is the floor. Things come in reading order.

    Args:
        cells: codes [B, H, W].
    """
    inside = cells[:, 1:-1, 1:-1].reshape(len(cells), -1)
    words = coordinate_words(*cells.shape[1:])
    words[SYMBOLS.index("_")] = ""
    rows = words[inside, np.arange(inside.shape[1])].tolist()
    return tuple("".join(row) for row in rows)


def coordinate_words(height: int, width: int) -> np.ndarray:
    """Returns what `render_coordinates` writes for each code and place, strings [7, places]."""
    places = [f"{row},{column};" for row in range(1, height - 1) for column in range(1, width - 1)]
    return np.array([[symbol + place for place in places] for symbol in SYMBOLS], object)


def render_rgb(cells: np.ndarray, *, tile: int = 16) -> np.ndarray:
    """Returns the image [H * tile, W * tile, 3] uint8 of one board of codes [H, W].

    Raises:
        ValueError: `tile`, the side of a cell in pixels, is less than 8.
    """
    if tile < 8:
        raise ValueError(f"tile must be at least 8 pixels, not {tile}")
    height, width = cells.shape
    picture = draw_tiles(tile)[cells].transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(picture.reshape(height * tile, width * tile, 3))


def draw_tiles(size: int) -> np.ndarray:
    """Draws one tile a code: [7, size, size, 3] uint8."""
    y, x = (np.mgrid[:size, :size] + 0.5) / size  # the centres of the pixels, in 0..1
    radius = np.hypot(x - 0.5, y - 0.5)
    floor = np.full((size, size, 3), _FLOOR_RGB, np.uint8)

    wall = np.full_like(floor, _BRICK_RGB)
    course = (y * 4).astype(int)
    mortar = ((y * 4) % 1 < 0.2) | ((x * 2 + course % 2 * 0.5) % 1 < 0.12)
    wall[mortar] = _MORTAR_RGB

    rings = ((radius > 0.34) & (radius < 0.46)) | (radius < 0.14)
    target = _paint(floor, rings, _TARGET_RGB)

    inside = np.maximum(abs(x - 0.5), abs(y - 0.5))
    frame = ((inside > 0.3) | (abs(abs(x - 0.5) - abs(y - 0.5)) < 0.06)) & (inside < 0.42)
    box = _paint(_paint(floor, inside < 0.42, _WOOD_RGB), frame, _WOOD_EDGE_RGB)
    placed = _paint(_paint(target, inside < 0.42, _PLACED_RGB), frame, _PLACED_EDGE_RGB)

    head = np.hypot(x - 0.5, y - 0.32) < 0.17
    body = (np.hypot((x - 0.5) / 0.3, (y - 0.9) / 0.42) < 1) & (y < 0.92)
    player, player_on_target = (
        _paint(_paint(ground, body, _SHIRT_RGB), head, _FACE_RGB) for ground in (floor, target)
    )
    return np.stack([wall, floor, target, placed, box, player, player_on_target])


def _paint(picture: np.ndarray, mask: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Returns the picture with the masked pixels in one colour."""
    return np.where(mask[:, :, None], np.array(colour, np.uint8), picture)
