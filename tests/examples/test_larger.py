"""The example of the documentation runs, is what it says, and is short."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs import GameEnv, GameVectorEnv
from examples.larger import EXPERIMENT, PAIRS, make_game
from tests.experiments.small import run_small

PROJECT = Path(__file__).parents[2]


def test_the_page_shows_the_file_which_is_short():
    source = (PROJECT / "examples" / "larger.py").read_text()
    page = (PROJECT / "docs" / "your_own_task.md").read_text()
    (shown,) = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert shown == source
    assert len(source.splitlines()) < 40


def test_the_game():
    env = GameVectorEnv(make_game(np.array([[3, 12], [7, 7], [40, 5]])), 3)
    shown, _ = env.reset(options={"start_indices": np.arange(3)})
    assert list(shown) == ["3 12", "7 7", "40 5"]
    _, rewards, terminated, truncated, infos = env.step(["12", "3", "both"])
    assert rewards.tolist() == [1, 0, 0]
    assert infos["success"].tolist() == [True, False, False]
    assert terminated.all()
    assert not truncated.any()
    assert infos["action_is_valid"].tolist() == [True, True, False]


def test_no_pair_is_there_twice():
    assert len({tuple(pair) for pair in PAIRS.tolist()}) == len(PAIRS)


@pytest.mark.filterwarnings("ignore:.*render_modes.*")
def test_gymnasium_accepts_it():
    check_env(GameEnv(make_game(PAIRS)), skip_render_check=True)


@pytest.mark.slow
def test_it_trains(tmp_path, monkeypatch):
    monkeypatch.setenv("FRESHPER_CACHE", str(tmp_path / "cache"))
    path, printed = run_small(
        tmp_path / "run", "--iterations=2", "--max-tokens=24", experiment=EXPERIMENT
    )
    assert "larger, arm freshper" in printed
    results = json.loads((path / "results.json").read_text())
    assert set(results) == {"random start, sampled", "freshper, sampled", "freshper, greedy"}
