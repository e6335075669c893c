import numpy as np
import pytest

from envs.sokoban import SYMBOLS, render_coordinates, render_rgb, render_text
from envs.sokoban.render import draw_tiles
from tests.envs.sokoban import oracle


def test_text_matches_a_plain_rendering():
    cells = np.random.default_rng(0).integers(0, 7, (40, 5, 8))
    plain = tuple("\n".join("".join("#_O√XPS"[c] for c in row) for row in board) for board in cells)
    spaced = tuple(
        "\n".join(" ".join("#_O√XPS"[c] for c in row) for row in board) for board in cells
    )
    assert render_text(cells) == plain
    assert render_text(cells, spaced=True) == spaced
    assert render_text(cells[:0]) == ()


def test_image_is_made_of_the_tiles():
    cells = np.array(oracle.codes("####\n#_O#\n#√X#\n#PS#\n####"))
    image = render_rgb(cells, tile=16)
    tiles = draw_tiles(16)
    assert image.shape == (80, 64, 3)
    assert image.dtype == np.uint8
    for row in range(5):
        for column in range(4):
            part = image[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            np.testing.assert_array_equal(part, tiles[cells[row, column]])


@pytest.mark.parametrize("size", [8, 16, 28])
def test_every_symbol_has_its_own_picture(size):
    tiles = draw_tiles(size)
    assert tiles.shape == (len(SYMBOLS), size, size, 3)
    for first in range(7):
        for second in range(first):
            differs = (tiles[first] != tiles[second]).any(-1).mean()
            assert differs > 0.05, (SYMBOLS[first], SYMBOLS[second])


def test_colours_tell_what_a_tile_is():
    wall, floor, target, placed, box, player, _ = (tile.reshape(-1, 3) for tile in draw_tiles(32))
    assert len(np.unique(floor, axis=0)) == 1
    red, green, blue = (np.array(tile, int).mean(0).round() for tile in (target, placed, player))
    assert red[0] > red[1]  # the target's ring is red
    assert green[1] > green[0]  # a box on its target is green
    assert (player == (58, 104, 180)).all(1).any()  # the player wears blue
    assert blue[2] > np.array(box, int).mean(0)[2]
    assert wall.mean() < floor.mean()


def test_tiny_tiles_are_refused():
    with pytest.raises(ValueError, match="tile must be at least 8"):
        render_rgb(np.zeros((3, 3), int), tile=7)


def test_coordinates_list_what_stands_where():
    boards = np.random.default_rng(1).integers(0, 7, (30, 6, 8))
    texts = render_coordinates(boards)
    for board, text in zip(boards, texts, strict=True):
        expected = ""
        for row in range(1, board.shape[0] - 1):
            for column in range(1, board.shape[1] - 1):
                if (symbol := SYMBOLS[board[row, column]]) != "_":
                    expected += f"{symbol}{row},{column};"
        assert text == expected
