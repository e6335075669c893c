from pathlib import Path

import numpy as np
import pytest

from envs.sokoban import make_level_set, read_boxoban, render_text, step
from envs.sokoban.rules import make_boards
from tests.envs.sokoban import oracle

SHARED = Path(__file__).parents[4] / "shared" / "data" / "boxoban" / "unfiltered_valid_000.txt"
TWO = """; 0
######
#@ $.#
#  * #
######

; 1
######
#$ +##
#    #
######
"""


def test_all_symbols_are_read(tmp_path):
    path = tmp_path / "levels.txt"
    path.write_text(TWO)
    levels = read_boxoban(path)
    assert render_text(levels.cells) == (
        "######\n#P_XO#\n#__√_#\n######",
        "######\n#X_S##\n#____#\n######",
    )
    assert levels.optimal_lengths.tolist() == [-1, -1]


@pytest.mark.skipif(not SHARED.exists(), reason=f"no Boxoban levels at {SHARED}")
def test_the_published_file_is_read():
    levels = read_boxoban(SHARED)
    assert levels.cells.shape == (1000, 10, 10)
    table = str.maketrans("# .$@", "#_OXP")
    blocks = SHARED.read_text().strip().split("\n\n")
    expected = tuple(block.split("\n", 1)[1].translate(table) for block in blocks)
    assert render_text(levels.cells) == expected
    rng = np.random.default_rng(0)
    boards, texts = make_boards(levels.cells[:100]), list(expected[:100])
    for _ in range(10):
        actions = rng.integers(0, 4, 100)
        boards, _, _ = step(boards, actions)
        names = ("Up", "Down", "Left", "Right")
        texts = [oracle.step(t, names[a])[0] for t, a in zip(texts, actions, strict=True)]
    assert render_text(boards.cells) == tuple(texts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TWO.replace("#@ $.#", "#@ $.#?"), r"line 3: expected 6 cells, found 7"),
        (TWO.replace("#@ $.#", "#@x$.#"), r"line 3: unknown symbols \['x'\]"),
        (TWO.replace("#    #\n", ""), r"one height, found \[3, 4\]"),
        (TWO.replace("@", " "), "level 0 does not have exactly one player"),
        ("", r"one height, found \[\]"),
        ("; 0\n", r"one height, found \[\]"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    path = tmp_path / "levels.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read_boxoban(path)
    assert "levels.txt" in str(raised.value)


def test_level_sets_are_checked_and_can_be_cut():
    cells = np.array([oracle.codes("#####\n#PXO#\n#####"), oracle.codes("#####\n#OXP#\n#####")])
    levels = make_level_set(cells, np.array([1, 1]))
    assert len(levels) == 2
    assert levels.hashes[0] == levels.hashes[1]
    assert render_text(levels.take(np.array([1])).cells) == ("#####\n#OXP#\n#####",)
    with pytest.raises(ValueError, match=r"optimal_lengths must have shape \(2,\), not \(3,\)"):
        make_level_set(cells, np.array([1, 1, 1]))
