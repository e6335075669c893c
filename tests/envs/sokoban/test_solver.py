import numpy as np
import pytest

from envs.sokoban import ACTIONS, render_text, solve
from tests.envs.sokoban import oracle


@pytest.mark.parametrize(("name", "count"), [("simple", 150), ("hard", 60), ("long", 12)])
def test_solutions_solve_and_are_shortest(banks, name, count):
    for cells in banks[name].train.cells[:count]:
        text = render_text(cells[None])[0]
        solution = solve(cells)
        assert len(solution) == oracle.shortest(text)
        solved = False
        for action in solution:
            assert not solved
            text, _, _, solved = oracle.step(text, ACTIONS[action])
        assert solved


def test_ties_go_to_the_first_action():
    two_ways = oracle.codes("######\n##__##\n#P__O#\n##X_##\n######")
    assert solve(np.array(two_ways)) is None
    around = oracle.codes("#####\n#P__#\n#_X_#\n#_O_#\n#####")
    assert [ACTIONS[action] for action in solve(np.array(around))] == ["Right", "Down"]


def test_unsolvable_is_none():
    assert solve(np.array(oracle.codes("#####\n#X_O#\n#_P_#\n#___#\n#####"))) is None


def test_bad_arguments():
    with pytest.raises(ValueError, match="exactly one player"):
        solve(np.array(oracle.codes("####\n#XO#\n####")))
    open_room = np.array(oracle.codes("########\n#_O__O_#\n#______#\n#_XP_X_#\n#______#\n########"))
    with pytest.raises(ValueError, match="max_states = 10 "):
        solve(open_room, max_states=10)
