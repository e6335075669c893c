"""The promised rates, which the code exceeds many times over on any machine of today."""

import numpy as np
import pytest

from benchmarks.envs import TARGETS, main, rate
from envs.sokoban import make_boards, render_text, step
from envs.sokoban.generation import carve_layouts, solvable_starts


@pytest.fixture(scope="module")
def boards(banks):
    return make_boards(banks["simple"].train.cells[:1024])


def test_steps(boards):
    actions = np.random.default_rng(0).integers(0, 4, 1024)
    assert rate(lambda: step(boards, actions), 1024, seconds=0.1) > TARGETS["steps_per_s"]


def test_text(boards):
    found = rate(lambda: render_text(boards.cells), 1024, seconds=0.1)
    assert found > TARGETS["boards_to_text_per_s"]


def test_layouts():
    rng = np.random.default_rng(0)

    def generate():
        return solvable_starts(carve_layouts(rng, 64, 6, 6, 1), 19)

    assert rate(generate, 64, seconds=0.1) > TARGETS["layouts_6x6_per_s"]


def test_rate_counts_items_a_second():
    calls = []

    def work():
        calls.append(sum(range(20_000)))

    found = rate(work, 3, seconds=0.05, repeats=1)
    assert 0 < found < 3 * len(calls) / 0.05 * 1.001


def test_command_line_explains_itself(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["benchmarks.envs", "--help"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_a_missing_folder_is_told_before_the_measurement(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["benchmarks.envs", "--json", str(tmp_path / "no" / "f.json")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "there is no folder" in capsys.readouterr().err
