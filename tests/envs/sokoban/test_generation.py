import numpy as np
import pytest

from envs.sokoban import render_text
from envs.sokoban.generation import carve_layouts, solvable_starts, start_cells
from tests.envs.sokoban import oracle


def connected(text):
    """Whether all free cells of a board hang together."""
    walls, _, _, _ = oracle.parse(text)
    lines = text.split("\n")
    free = {(r, c) for r in range(len(lines)) for c in range(len(lines[0]))} - walls
    reached, queue = set(), [min(free)]
    while queue:
        row, column = queue.pop()
        if (row, column) in free - reached:
            reached.add((row, column))
            queue += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
    return reached == free


@pytest.mark.parametrize(
    ("height", "width", "boxes"), [(6, 6, 1), (8, 8, 2), (5, 9, 3), (10, 10, 2)]
)
def test_layouts_are_closed_connected_and_have_their_targets(height, width, boxes):
    layouts = carve_layouts(np.random.default_rng(0), 40, height, width, boxes)
    assert layouts.shape == (40, height, width)
    assert layouts.dtype == np.uint8
    for text in render_text(layouts):
        assert text.count("O") == boxes
        assert set(text) <= set("#_O\n")
        assert text.startswith("#" * width)
        assert text.endswith("#" * width)
        assert all(line[0] == line[-1] == "#" for line in text.split("\n"))
        assert connected(text)
    assert len(set(render_text(layouts))) > 30


def all_lengths(text):
    """Returns {start: shortest length} over every start of a layout, each by its own search."""
    walls, targets, _, _ = oracle.parse(text)
    lines = text.split("\n")
    free = sorted({(r, c) for r in range(len(lines)) for c in range(len(lines[0]))} - walls)
    assert len(targets) == 1
    found = {}
    for box in free:
        for player in free:
            if box != player and box not in targets:
                start = oracle.show(text, {box}, player)
                found[start] = oracle.shortest(start)
    return {start: length for start, length in found.items() if length is not None}


def test_finds_every_solvable_start_with_its_exact_length():
    layouts = carve_layouts(np.random.default_rng(3), 12, 6, 6, 1)
    starts = solvable_starts(layouts, 40)
    texts = render_text(start_cells(layouts, starts, np.arange(len(starts.length))))
    assert len(set(texts)) == len(texts)
    expected = {}
    for layout in render_text(layouts):
        expected |= all_lengths(layout)
    assert dict(zip(texts, starts.length.tolist(), strict=True)) == expected


def test_two_boxes_have_exact_lengths():
    rng = np.random.default_rng(4)
    layouts = carve_layouts(rng, 16, 7, 7, 2)
    starts = solvable_starts(layouts, 14)
    some = rng.choice(len(starts.length), 100, replace=False)
    texts = render_text(start_cells(layouts, starts, some))
    assert [oracle.shortest(text) for text in texts] == starts.length[some].tolist()


def test_max_length_cuts_the_search_short():
    layouts = carve_layouts(np.random.default_rng(3), 12, 6, 6, 1)
    everything, near = solvable_starts(layouts, 40), solvable_starts(layouts, 3)
    assert near.length.tolist() == everything.length[everything.length <= 3].tolist()


def test_no_start_is_no_trouble():
    layouts = np.array([oracle.codes("####\n#O_#\n####")], np.uint8)
    starts = solvable_starts(layouts, 5)
    assert len(starts.length) == 0
    assert start_cells(layouts, starts, np.arange(0)).shape == (0, 3, 4)


def test_too_much_floor_is_refused():
    layouts = np.ones((1, 12, 12), np.uint8)
    layouts[:, [0, -1]] = layouts[:, :, [0, -1]] = 0
    layouts[0, 1, 1] = 2
    with pytest.raises(ValueError, match="100 floor cells do not fit"):
        solvable_starts(layouts, 5)
