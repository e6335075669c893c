import numpy as np
import pytest

from envs.math_problems import (
    ProblemSet,
    constant_reference,
    optimal_reference,
    random_reference,
)


def answered(*answers):
    return ProblemSet(tuple(map(str, range(len(answers)))), answers, ("",) * len(answers))


TRAIN = answered("1", "1", "2", "3", "1", "2")
HELD_OUT = answered("1", "2", "2", "4")


@pytest.mark.parametrize("reward", ["success", "halving"])
@pytest.mark.parametrize("tries", [1, 3])
def test_random_answers_by_simulation(tries, reward):
    rng = np.random.default_rng(0)
    count = 40_000
    drawn = rng.choice(TRAIN.answers, (len(HELD_OUT), count, tries))
    right = drawn == np.array(HELD_OUT.answers)[:, None, None]
    first = np.where(right.any(-1), right.argmax(-1), -1)
    paid = np.where(first >= 0, 0.5**first if reward == "halving" else 1.0, 0.0)
    found = random_reference(TRAIN, HELD_OUT, max_attempts=tries, reward=reward)
    assert abs(found.success - (first >= 0).mean()) < 0.01
    assert abs(found.score - paid.mean()) < 0.01


def test_constant_and_optimal():
    assert constant_reference(TRAIN, HELD_OUT).success == 0.25  # the answer "1"
    assert constant_reference(TRAIN, HELD_OUT).score == 0.25
    assert optimal_reference().success == optimal_reference().score == 1
