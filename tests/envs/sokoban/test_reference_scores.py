import numpy as np
import pytest

from envs.sokoban import ACTIONS, optimal_reference, random_reference, render_text
from tests.envs.sokoban import oracle


def test_optimal_play_solves_all_within_the_horizon(banks):
    levels = banks["hard"].held_out
    found = optimal_reference(levels, 20)
    placed = [len(t & b) for _, t, b, _ in map(oracle.parse, render_text(levels.cells))]
    # Net reward for boxes is the number not yet placed, then 10 at the end, less 0.1 an action.
    expected = 2 - np.mean(placed) + 10 - 0.1 * levels.optimal_lengths.mean()
    assert found.success == 1.0
    assert found.score == pytest.approx(expected, abs=1e-4)


def test_optimal_play_is_cut_off_at_the_horizon(banks):
    levels = banks["simple"].held_out.take(np.arange(100))
    assert optimal_reference(levels, 4).success == pytest.approx(
        np.mean(levels.optimal_lengths <= 4)
    )


def test_random_play_agrees_with_the_oracle(banks):
    levels = banks["simple"].held_out.take(np.arange(40))
    found = random_reference(levels, 10, seed=3, episodes_per_level=50)
    rng = np.random.default_rng(9)
    wins, scores = [], []
    for text in render_text(levels.cells) * 25:
        score = 0.0
        for action in rng.integers(0, 4, 10):
            text, reward, _, solved = oracle.step(text, ACTIONS[action])
            score += reward
            if solved:
                break
        wins.append(solved)
        scores.append(score)
    assert found.success == pytest.approx(np.mean(wins), abs=0.05)
    assert found.score == pytest.approx(np.mean(scores), abs=0.6)
    assert found == random_reference(levels, 10, seed=3, episodes_per_level=50)
    assert found != random_reference(levels, 10, seed=4, episodes_per_level=50)
