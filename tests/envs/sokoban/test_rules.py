import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from envs.sokoban import ACTIONS, NOOP, make_boards, render_text, step
from envs.sokoban.rules import check_cells
from tests.envs.sokoban import oracle

CROWDED = "######\n#OXO_#\n#XPX_#\n#_√O_#\n#____#\n######"


@st.composite
def boards(draw):
    """Boards with walls all round and one player; boxes and targets at will."""
    height, width = draw(st.integers(3, 7)), draw(st.integers(3, 7))
    size = (height - 2) * (width - 2)
    inside = draw(st.lists(st.sampled_from("###____OX√"), min_size=size, max_size=size))
    inside[draw(st.integers(0, size - 1))] = draw(st.sampled_from("PS"))
    rows = ["".join(inside[start : start + width - 2]) for start in range(0, size, width - 2)]
    return "\n".join(["#" * width, *(f"#{row}#" for row in rows), "#" * width])


@hypothesis.given(boards(), st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=12))
@hypothesis.settings(max_examples=150)
@hypothesis.example(CROWDED, ["Up", "Left", "Down", "Right", "Down", "Down"])
def test_step_matches_the_oracle(text, names):
    state = make_boards(np.array([oracle.codes(text)]))
    for name in names:
        state, rewards, effective = step(state, np.array([ACTIONS.index(name)]))
        text, reward, moved, solved = oracle.step(text, name)
        _, targets, boxes, player = oracle.parse(text)
        assert render_text(state.cells) == (text,)
        assert effective.tolist() == [moved]
        assert state.player.tolist() == [player[0] * state.cells.shape[2] + player[1]]
        assert state.off_target.tolist() == [len(boxes - targets)]
        if len(boxes) == len(targets):
            assert rewards.dtype == np.float32
            np.testing.assert_allclose(rewards, [reward], atol=1e-6)
            assert (state.off_target == 0).tolist() == [solved]


def test_rows_do_not_touch_each_other(banks):
    cells = banks["hard"].train.cells[:300]
    state = make_boards(cells)
    texts = list(render_text(cells))
    rng = np.random.default_rng(5)
    for _ in range(20):
        actions = rng.integers(0, 5, len(cells))
        state, _, _ = step(state, actions)
        texts = [
            text if action == NOOP else oracle.step(text, ACTIONS[action])[0]
            for text, action in zip(texts, actions, strict=True)
        ]
        assert render_text(state.cells) == tuple(texts)


def test_step_leaves_its_argument_alone(banks):
    cells = banks["simple"].train.cells[:50]
    state = make_boards(cells)
    before = state.cells.copy(), state.player.copy(), state.off_target.copy()
    for action in range(4):
        step(state, np.full(50, action))
    for old, new in zip(before, (state.cells, state.player, state.off_target), strict=True):
        np.testing.assert_array_equal(old, new)


def test_noop_changes_nothing(banks):
    state = make_boards(banks["simple"].train.cells[:50])
    after, rewards, effective = step(state, np.full(50, NOOP))
    np.testing.assert_array_equal(after.cells, state.cells)
    np.testing.assert_allclose(rewards, -0.1, atol=1e-7)
    assert not effective.any()


def test_the_last_push_pays_10_9():
    state = make_boards(np.array([oracle.codes("#####\n#PXO#\n#####")]))
    state, rewards, _ = step(state, np.array([3]))
    np.testing.assert_allclose(rewards, [10.9], atol=1e-6)
    assert render_text(state.cells) == ("#####\n#_P√#\n#####",)


def test_no_boards_are_no_trouble():
    state = make_boards(np.zeros((0, 5, 5), np.uint8))
    with np.errstate(all="raise"):
        after, rewards, effective = step(state, np.zeros(0, int))
    assert after.cells.shape == (0, 5, 5)
    assert rewards.shape == effective.shape == (0,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#####\n#PXO_\n#####", "not closed by walls"),
        ("#####\n#_XO#\n#####", "exactly one player"),
        ("#####\n#PXS#\n#####", "exactly one player"),
        ("#####\n#PXX#\n#####", "as many boxes as targets"),
        ("#####\n#P√_#\n#####", "no box off its target"),
    ],
)
def test_illegal_levels_are_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        check_cells(np.array([oracle.codes(text)]))


@pytest.mark.parametrize("cells", [np.zeros((5, 5)), np.zeros((1, 2, 5)), np.full((1, 5, 5), 7)])
def test_malformed_arrays_are_refused(cells):
    with pytest.raises(ValueError, match="cells must"):
        check_cells(cells)
