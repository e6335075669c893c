import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest

from envs.boards import boards_to_coordinates, boards_to_rgb, boards_to_text, coordinate_words
from envs.cliff_walking import CLIFF_WALKING
from envs.frozen_lake import FROZEN_LAKE

SYMBOLS = "_é√OP#"
BOARDS = hypothesis.extra.numpy.arrays(
    np.uint8,
    st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(1, 12)),
    elements=st.integers(0, 5),
)


@hypothesis.given(BOARDS)
def test_text_matches_a_plain_rendering(boards):
    for spaced, gap in ((False, ""), (True, " ")):
        plain = tuple(
            "\n".join(gap.join(SYMBOLS[code] for code in row) for row in board) for board in boards
        )
        assert boards_to_text(boards, SYMBOLS, spaced=spaced) == plain


@hypothesis.given(BOARDS)
def test_coordinates_list_what_stands_where(boards):
    for board, text in zip(boards, boards_to_coordinates(boards, SYMBOLS, left_out=3), strict=True):
        assert text == "".join(
            f"{SYMBOLS[code]}{row + 1},{column + 1};"
            for (row, column), code in np.ndenumerate(board)
            if code != 3
        )


def test_words_are_those_of_the_lists():
    words = coordinate_words(2, 11, "ab")
    assert words.shape == (2, 22)
    assert words[0, 0] == "a1,1;"
    assert words[1, 21] == "b2,11;"


@pytest.mark.parametrize("size", [28, 56])
@pytest.mark.parametrize("task", [FROZEN_LAKE, CLIFF_WALKING], ids=lambda task: task.name)
def test_every_code_has_its_own_picture(task, size):
    tiles = task.draw_tiles(size)
    assert tiles.shape == (6, size, size, 3)
    assert tiles.dtype == np.uint8
    for first in range(6):
        for second in range(first):
            differs = (tiles[first] != tiles[second]).any(-1).mean()
            assert differs > 0.04, (first, second)


def test_images_are_made_of_the_tiles():
    tiles = FROZEN_LAKE.draw_tiles(28)
    boards = np.arange(24).reshape(2, 3, 4) % 6
    images = boards_to_rgb(boards, tiles)
    assert images.shape == (2, 84, 112, 3)
    assert images.dtype == np.uint8
    for (number, row, column), code in np.ndenumerate(boards):
        part = images[number, 28 * row : 28 * row + 28, 28 * column : 28 * column + 28]
        np.testing.assert_array_equal(part, tiles[code])
