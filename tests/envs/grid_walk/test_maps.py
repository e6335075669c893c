import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest

from envs.grid_walk import distances, make_map_set, read_map, show_player, turn_maps
from tests.envs.grid_walk.dynamics import letters, search

HAZARDS = hypothesis.extra.numpy.arrays(
    np.uint8, st.tuples(st.integers(1, 6), st.integers(2, 6)), elements=st.integers(0, 1)
)


@hypothesis.given(HAZARDS, st.integers(0, 35))
def test_distances_are_those_of_a_plain_search(ground, goal):
    ground.flat[goal % ground.size] = 2
    found = distances(ground[None])[0]
    for (row, column), kind in np.ndenumerate(ground):
        plain = None if kind == 1 else search(letters(ground), (row, column))
        assert found[row, column] == (-1 if plain is None else plain)


def test_a_map_is_read_from_letters():
    ground, start = read_map(["HSF", "CFG"])
    assert ground.tolist() == [[1, 0, 0], [1, 0, 2]]
    assert start == 1
    assert ground.dtype == np.uint8


@pytest.mark.parametrize("rows", [["SF", "G"], ["SX", "FG"], ["FF", "FG"], ["SS", "FG"], []])
def test_bad_rows_are_refused(rows):
    with pytest.raises(ValueError, match="rows must be equally long"):
        read_map(rows)


def test_a_set_knows_shortest_ways_and_shows_the_player():
    maps = make_map_set(
        np.array([[[0, 1, 2], [0, 0, 0]], [[0, 0, 2], [1, 1, 0]]]), np.array([0, 1])
    )
    assert len(maps) == 2
    assert maps.shortest.tolist() == [4, 1]
    assert maps.cells.tolist() == [[[3, 1, 2], [0, 0, 0]], [[0, 3, 2], [1, 1, 0]]]
    assert maps.take(np.array([1])).shortest.tolist() == [1]
    np.testing.assert_array_equal(show_player(maps.ground, maps.start), maps.cells)
    assert maps.ground.max() == 2  # what is shown is a copy


def test_equal_maps_turned_share_a_hash():
    ground = np.array([[0, 1, 2], [0, 0, 0], [1, 0, 0]])
    start = np.zeros((3, 3), int)
    start[0, 0] = 1
    turned = [np.rot90(m, q) for m in (ground, ground[:, ::-1]) for q in range(4)]
    starts = [np.rot90(m, q).argmax() for m in (start, start[:, ::-1]) for q in range(4)]
    hashes = make_map_set(np.array(turned), np.array(starts)).hashes
    assert len(set(hashes.tolist())) == 1
    elsewhere = make_map_set(ground[None], np.array([3])).hashes
    assert elsewhere[0] != hashes[0]


def test_turned_maps_are_as_long_to_walk():
    square = make_map_set(np.array([[[0, 1, 2], [0, 0, 0], [1, 0, 0]]]), np.array([0]))
    oblong = make_map_set(np.array([[[0, 1, 2], [0, 0, 0]]]), np.array([0]))
    for maps, count in ((square, 8), (oblong, 4)):
        turned = turn_maps(maps)
        assert len(turned) == count
        assert len({cells.tobytes() for cells in turned.cells}) == count
        assert set(turned.shortest.tolist()) == {4}
        assert set(turned.hashes.tolist()) == set(maps.hashes.tolist())
        assert turned.cells[0].tolist() == maps.cells[0].tolist()


@pytest.mark.parametrize(
    ("ground", "start", "message"),
    [
        ([[0, 2]], [0], r"ground must be \[N, H, W\]"),
        ([[[0, 2]]], [0, 0], r"start \[N\]"),
        ([[[0, 3]]], [0], "kinds 0 to 2"),
        ([[[0, 2]]], [2], "start must hold cells from 0 to 1"),
        ([[[0, 2]], [[0, 0]]], [0, 0], "map 1 does not have exactly one goal"),
        ([[[2, 2]]], [0], "map 0 does not have exactly one goal"),
        ([[[1, 2]]], [0], "map 0 does not begin on plain ground"),
        ([[[0, 1, 2]]], [0], "map 0 has no way to the goal"),
    ],
)
def test_bad_maps_are_refused(ground, start, message):
    with pytest.raises(ValueError, match=message):
        make_map_set(np.array(ground), np.array(start))
