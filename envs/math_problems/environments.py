"""The mathematical tasks by name, and their environments."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs import checks
from envs.answers import MathVerifyPool, make_checker
from envs.game import Game
from envs.math_problems.arithmetic import LEVELS, load_arithmetic
from envs.math_problems.competition import LEVELS as COMPETITION_LEVELS
from envs.math_problems.competition import load_competition
from envs.math_problems.game import MathState, make_game
from envs.math_problems.problems import Problems
from envs.math_problems.readers import DataError, load_problems
from envs.single_env import GameEnv
from envs.vector_env import GameVectorEnv

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class TaskSettings:
    """A task: `kind` says who makes its problems, `checker` and `form` how they are answered.

    kind: `arithmetic` and `competition` are made offline, at a `level`; `gsm8k` and `aime` are
      read from data.
    """

    kind: str
    checker: str
    form: str
    level: str = ""


TASKS = {
    "arithmetic": TaskSettings("arithmetic", "gsm8k", "hashes", "stories"),
    **{level: TaskSettings("arithmetic", "gsm8k", "hashes", level) for level in LEVELS},
    "gsm8k": TaskSettings("gsm8k", "gsm8k", "hashes"),
    "offline": TaskSettings("competition", "aime", "boxed", "easy"),
    **{
        f"offline_{level}": TaskSettings("competition", "aime", "boxed", level)
        for level in COMPETITION_LEVELS
    },
    "aime": TaskSettings("aime", "aime", "boxed"),
}


def load_task(task: str, *, data: Paths | None = None, held_out: Paths | None = None) -> Problems:
    """Makes or reads the problems of a task of `TASKS`.

    Args:
        task: its name.
        data, held_out: of `gsm8k` and `aime`, see `load_problems`; the others take none.

    Raises:
        ValueError: the task is unknown; DataError: its data are missing or cannot be read.
    """
    settings = TASKS[checks.one_of("task", task, tuple(TASKS))]
    if settings.kind in ("arithmetic", "competition"):
        if data is not None or held_out is not None:
            raise DataError(f"data: task {task!r} makes its own problems and takes none")
        load = load_arithmetic if settings.kind == "arithmetic" else load_competition
        return load(settings.level)
    if data is None:
        raise DataError(
            f"data: task {task!r} needs a folder, files, or the name of a data set of the hub"
        )
    return load_problems(data, settings.kind, held_out=held_out)


def load_game(
    task: str = "arithmetic",
    *,
    split: str = "train",
    data: Paths | None = None,
    held_out: Paths | None = None,
    checker: str | None = None,
    pool: MathVerifyPool | None = None,
    **options: Any,
) -> Game[MathState]:
    """Makes the game of a task's problems.

    Args:
        task: one of `TASKS`.
        split: `train` or `held_out`.
        data, held_out: see `load_task`.
        checker: one of `envs.answers.CHECKERS`, by default the task's own.
        pool: for the checker `math`.
        **options: further arguments of `make_game`.
    """
    checks.one_of("split", split, ("train", "held_out"))
    problems = load_task(task, data=data, held_out=held_out)
    settings = TASKS[task]
    return make_game(
        problems.split(split),
        make_checker(checker or settings.checker, pool=pool),
        form=settings.form,
        **options,
    )


def make_math(
    task: str = "arithmetic",
    num_envs: int = 1,
    *,
    seed: int | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> GameVectorEnv:
    """Makes the vector environment of a task; `options` are those of `load_game`."""
    return GameVectorEnv(load_game(task, **options), num_envs, seed=seed, render_mode=render_mode)


def make_single_math(
    task: str = "arithmetic", *, render_mode: str | None = None, **options: Any
) -> GameEnv:
    """Makes the single environment of a task; `options` are those of `load_game`."""
    return GameEnv(load_game(task, **options), render_mode=render_mode)
