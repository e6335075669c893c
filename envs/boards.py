"""Boards of cell codes as text, as lists of what stands where, and as images."""

import functools

import numpy as np

_BEYOND_ASCII = 128  # symbol k outside ASCII is the byte 128 + k until the page is text

_SHIRT_RGB = (58, 104, 180)
_FACE_RGB = (238, 190, 150)
_POLE_RGB = (96, 72, 48)
_FLAG_RGB = (206, 62, 62)


def boards_to_text(cells: np.ndarray, symbols: str, *, spaced: bool = False) -> tuple[str, ...]:
    """Returns one string a board: rows of symbols, parted by newlines.

    Args:
        cells: codes [B, H, W], places in `symbols`.
        symbols: one character a code.
        spaced: parts the symbols of a row by spaces, so that a tokenizer sees them apart.
    """
    count, height, width = cells.shape
    drawn = _bytes_of(symbols)[cells]
    if spaced:
        page = np.full((count, height, 2 * width), ord(" "), np.uint8)
        page[:, :, :-1:2] = drawn
    else:
        page = np.empty((count, height, width + 1), np.uint8)
        page[:, :, :-1] = drawn
    page[:, :, -1] = ord("\n")
    text = page.tobytes().decode("latin-1")
    for code, symbol in enumerate(symbols):
        if not symbol.isascii():
            text = text.replace(chr(_BEYOND_ASCII + code), symbol)
    size = page[0].size if count else 1
    return tuple(text[start : start + size - 1] for start in range(0, count * size, size))


def boards_to_coordinates(cells: np.ndarray, symbols: str, *, left_out: int) -> tuple[str, ...]:
    """Returns one string a board: each thing as its symbol, row and column, in reading order.

    `X2,3;` is an X in the second row and third column.

    Args:
        cells: codes [B, H, W], places in `symbols`.
        symbols: one character a code.
        left_out: the code that is not listed.
    """
    count, height, width = cells.shape
    words = coordinate_words(height, width, symbols)
    words[left_out] = ""
    rows = words[cells.reshape(count, height * width), np.arange(height * width)].tolist()
    return tuple("".join(row) for row in rows)


def coordinate_words(height: int, width: int, symbols: str) -> np.ndarray:
    """Returns what `boards_to_coordinates` writes for each code and place, [K, H * W] strings."""
    places = [f"{row},{column};" for row in range(1, height + 1) for column in range(1, width + 1)]
    return np.array([[symbol + place for place in places] for symbol in symbols], object)


def boards_to_rgb(cells: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    """Returns the images [B, H * S, W * S, 3] uint8 of boards of codes [B, H, W].

    Args:
        cells: codes, places in `tiles`.
        tiles: one picture a code, [K, S, S, 3] uint8.
    """
    count, height, width = cells.shape
    size = tiles.shape[1]
    picture = tiles[cells].transpose(0, 1, 3, 2, 4, 5)
    return np.ascontiguousarray(picture.reshape(count, height * size, width * size, 3))


def pixel_centres(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns how far down and how far right each pixel of a tile is, in 0..1, [S, S] each."""
    down, right = (np.mgrid[:size, :size] + 0.5) / size
    return down, right


def paint(picture: np.ndarray, mask: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Returns the picture [S, S, 3] with the masked pixels [S, S] in one colour."""
    return np.where(mask[:, :, None], np.array(colour, np.uint8), picture)


def paint_player(picture: np.ndarray) -> np.ndarray:
    """Returns the picture [S, S, 3] with a figure in a blue shirt standing on it."""
    y, x = pixel_centres(len(picture))
    head = np.hypot(x - 0.5, y - 0.32) < 0.17
    body = (np.hypot((x - 0.5) / 0.3, (y - 0.9) / 0.42) < 1) & (y < 0.92)
    return paint(paint(picture, body, _SHIRT_RGB), head, _FACE_RGB)


def paint_flag(picture: np.ndarray) -> np.ndarray:
    """Returns the picture [S, S, 3] with a red flag on a pole standing on it."""
    y, x = pixel_centres(len(picture))
    pole = (abs(x - 0.3) < 0.04) & (y > 0.12) & (y < 0.9)
    flag = (x > 0.32) & (x < 0.86) & (abs(y - 0.3) < 0.18 * (0.9 - x) / 0.58)
    return paint(paint(picture, flag, _FLAG_RGB), pole, _POLE_RGB)


@functools.cache
def _bytes_of(symbols: str) -> np.ndarray:
    codes = [
        ord(symbol) if symbol.isascii() else _BEYOND_ASCII + code
        for code, symbol in enumerate(symbols)
    ]
    return np.array(codes, np.uint8)
