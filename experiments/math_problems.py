"""What the experiments on mathematical problems share: their flags, and the task they make."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

import numpy as np

from envs import Game
from envs.answers import MathVerifyPool, make_checker
from envs.answers.extract import TURN_MARKERS
from envs.math_problems import (
    TASKS,
    DataError,
    MathState,
    Problems,
    ProblemSet,
    constant_reference,
    load_task,
    make_game,
    optimal_reference,
    random_reference,
)
from envs.math_problems.prompts import STYLES, feedback
from experiments.game_task import make_game_task
from experiments.options import Options, OptionsError
from experiments.progress import Console
from experiments.task import Reference, Task

__all__ = ["PRETRAINED", "MathOptions", "make_math_task", "pieces"]

# A pretrained model reasons in words before it answers.
PRETRAINED = {"max_tokens": None, "max_new_tokens": 256}

_TINY_STYLE, _STYLE = "minimal", "default"
_MOST_WORDS = 4000  # a word-level tokenizer tries them one by one
_PIECE = re.compile(r"\n?#### |\\boxed\{| ?[^\W\d_]+|\d|\s| ?[^\w\s]|_")


@dataclasses.dataclass(frozen=True)
class MathOptions:
    """The problems and how they are asked."""

    data: tuple[str, ...] = ()
    """Folder, files (.jsonl, .json, .csv, .parquet) or data set of the hub, for the tasks that
    read their problems."""
    held_out: tuple[str, ...] = ()
    """Files to measure on; by default what the source holds out, else an eighth by content."""
    checker: Literal["gsm8k", "gsm8k_flexible", "aime", "math"] | None = None
    """How answers are checked; by default as the task asks for them."""
    max_attempts: int = 1
    """Tries an episode has, with feedback on each wrong one."""
    reward: Literal["success", "halving"] = "success"
    """success: 1 for a right answer on whichever try; halving: 1, 1/2, 1/4."""


def make_math_task(
    name: str, tasks: tuple[str, ...], options: Options[MathOptions], console: Console
) -> Task:
    """Make the task of problems made offline or read from data.

    Args:
      name: of the experiment.
      tasks: the names that it takes, of `envs.math_problems.TASKS`.
      options: of the run.
      console: told what was left out.

    Raises:
      OptionsError: an option is unknown, the data cannot be read, or they hold more words
        than a tiny policy can be told.
    """
    settings = options.env
    if options.task not in tasks:
        raise OptionsError(f"--task: got {options.task!r}, expected one of {', '.join(tasks)}")
    style = options.prompt or (_TINY_STYLE if options.preset == "tiny" else _STYLE)
    if style not in STYLES:
        raise OptionsError(f"--prompt: got {style!r}, expected one of {', '.join(STYLES)}")
    if settings.max_attempts < 1:
        raise OptionsError(
            f"--env.max-attempts: got {settings.max_attempts}, expected an integer of at least 1"
        )
    problems = _load(options.task, settings)
    train, held_out = problems.train, problems.held_out
    if problems.dropped:
        console.say(f"Problems left out as repeated: {problems.dropped}")
    known = TASKS[options.task]
    checker_name = settings.checker or known.checker
    if checker_name == "aime" and known.checker != "aime":
        raise OptionsError(
            f"--env.checker: got aime, which reads boxes alone, expected gsm8k, gsm8k_flexible or "
            f"math with --task {options.task}, whose replies end in ####"
        )
    pool = MathVerifyPool() if checker_name == "math" else None
    checker = make_checker(checker_name, pool=pool)

    words = _words(problems, style, known.form) if options.preset == "tiny" else []
    if len(words) > _MOST_WORDS:
        raise OptionsError(
            f"--preset: got tiny, expected a pretrained one: the problems hold {len(words)} "
            f"distinct words, and a tiny policy reads {_MOST_WORDS} at most"
        )

    def game(part: ProblemSet) -> Game[MathState]:
        return make_game(
            part,
            checker,
            form=known.form,
            max_attempts=settings.max_attempts,
            reward=settings.reward,
            prompt=style,
        )

    def solve(start: int) -> list[str] | None:
        solution = train.solutions[start]
        fits = solution and len(pieces(solution)) < options.max_new_tokens
        return [solution] if fits else None

    def references(count: int) -> tuple[Reference, ...]:
        part = held_out.take(np.arange(min(count, len(held_out))))
        random = random_reference(
            train, part, max_attempts=settings.max_attempts, reward=settings.reward
        )
        constant, optimal = constant_reference(train, part), optimal_reference()
        return (
            Reference("random answers", random.success, random.score),
            Reference("commonest answer", constant.success, constant.score),
            Reference("right answers", optimal.success, optimal.score),
        )

    return make_game_task(
        f"{name}-{options.task}",
        game(train),
        game(held_out),
        words=words,
        solve=solve,
        references=references,
        longest={"train": range(len(train)), "held_out": range(len(held_out))},
        identity=repr((train.digest(), held_out.digest(), checker_name, settings.reward)),
        stop_strings=TURN_MARKERS,
        metrics=("unreadable", *(["undecided"] if pool else [])),
    )


def pieces(text: str) -> list[str]:
    """Return the words, digits and signs of a text, each a token of a tiny policy."""
    return _PIECE.findall(text)


def _load(task: str, settings: MathOptions) -> Problems:
    def paths(given: tuple[str, ...]) -> str | tuple[str, ...] | None:
        return given[0] if len(given) == 1 else given or None

    try:
        return load_task(task, data=paths(settings.data), held_out=paths(settings.held_out))
    except DataError as error:
        raise OptionsError(f"--env.data: {error}") from error


def _words(problems: Problems, style: str, form: str) -> list[str]:
    """Return the words of a tiny policy's tokenizer; what is said of a try is one word."""
    parts = (problems.train, problems.held_out)
    texts = (text for part in parts for text in (*part.questions, *part.solutions))
    found = {word for text in texts for word in pieces(text)}
    return [*(feedback(style, form, verdict) for verdict in range(5)), *sorted(found)]
