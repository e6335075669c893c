"""What players without understanding reach, and the best there is; all in closed form."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from envs.math_problems.game import try_reward
from envs.math_problems.problems import ProblemSet


@dataclass(frozen=True)
class ReferenceScore:
    """Share of problems solved within the tries, and mean sum of rewards."""

    success: float
    score: float


def random_reference(
    train: ProblemSet, problems: ProblemSet, *, max_attempts: int = 1, reward: str = "success"
) -> ReferenceScore:
    """Answers every try with the gold answer of a random training problem."""
    counts = Counter(train.answers)
    chances = [counts[answer] / len(train) for answer in problems.answers]
    return _expected(np.array(chances), max_attempts, reward)


def constant_reference(train: ProblemSet, problems: ProblemSet) -> ReferenceScore:
    """Answers every problem with the commonest answer of the training problems."""
    ((commonest, _),) = Counter(train.answers).most_common(1)
    return _expected(
        np.array([answer == commonest for answer in problems.answers], float), 1, "success"
    )


def optimal_reference() -> ReferenceScore:
    """Answers every problem right at the first try, which pays 1."""
    return ReferenceScore(1.0, 1.0)


def _expected(chances: np.ndarray, max_attempts: int, reward: str) -> ReferenceScore:
    """Returns what tries that succeed by the chances [N], each by itself, earn on average."""
    tries = np.arange(max_attempts)
    ends_at = chances[:, None] * (1 - chances[:, None]) ** tries  # [N, K]
    score = (ends_at * try_reward(reward, tries)).sum(axis=1)
    return ReferenceScore(float(ends_at.sum(axis=1).mean()), float(score.mean()))
