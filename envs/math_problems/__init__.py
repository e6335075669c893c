"""Mathematical problems on the host: data, offline generators, the game and its environments."""

from envs.math_problems.environments import (
    TASKS,
    TaskSettings,
    load_game,
    load_task,
    make_math,
    make_single_math,
)
from envs.math_problems.game import MathState, make_game
from envs.math_problems.problems import (
    Problems,
    ProblemSet,
    content_hashes,
    separate,
    split_by_content,
)
from envs.math_problems.readers import DataError, load_problems, read_problems
from envs.math_problems.reference_scores import (
    ReferenceScore,
    constant_reference,
    optimal_reference,
    random_reference,
)

__all__ = [
    "TASKS",
    "DataError",
    "MathState",
    "ProblemSet",
    "Problems",
    "ReferenceScore",
    "TaskSettings",
    "constant_reference",
    "content_hashes",
    "load_game",
    "load_problems",
    "load_task",
    "make_game",
    "make_math",
    "make_single_math",
    "optimal_reference",
    "random_reference",
    "read_problems",
    "separate",
    "split_by_content",
]
