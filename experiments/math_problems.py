"""What the experiments on mathematical problems share: their flags, and the task they make."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Literal

import numpy as np

from envs import GameVectorEnv
from envs.answers import MathVerifyPool, make_checker
from envs.answers.extract import TURN_MARKERS
from envs.math_problems import (
    TASKS,
    DataError,
    Problems,
    ProblemSet,
    constant_reference,
    load_task,
    make_game,
    optimal_reference,
    random_reference,
)
from envs.math_problems.prompts import STYLES, feedback, system_prompt
from experiments.options import Options, OptionsError
from experiments.progress import Console
from experiments.task import Demonstrations, Reference, Split, Task
from freshper_jax.rollout import ChatRenderer, Episodes

__all__ = ["PRETRAINED", "MathOptions", "make_math_task", "pieces"]

# A pretrained model reasons in words before it answers.
PRETRAINED = {"max_tokens": None, "max_new_tokens": 256}

_TINY_STYLE, _STYLE = "minimal", "default"
_MEASURED = 64  # problems, those with the longest questions, on which an episode is measured
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
      OptionsError: an option is unknown, or the data cannot be read.
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
    pool = MathVerifyPool() if checker_name == "math" else None
    checker = make_checker(checker_name, pool=pool)

    checked = -(-len(train) // 8)  # training problems whose solutions are not shown

    def env_of(part: ProblemSet, rows: int) -> GameVectorEnv:
        game = make_game(
            part,
            checker,
            form=known.form,
            max_attempts=settings.max_attempts,
            reward=settings.reward,
            prompt=style,
        )
        return GameVectorEnv(game, rows)

    def make_env(split: Split, rows: int, renderer: ChatRenderer) -> GameVectorEnv:
        del renderer  # questions are as long as they are
        return env_of(problems.split(split), rows)

    def play(indices: np.ndarray) -> Episodes:
        return Episodes.of(indices, start_indices=indices)

    def train_episodes(seed: int, iteration: int, count: int) -> Episodes:
        rng = np.random.default_rng([seed, iteration])
        return play(rng.choice(len(train), count, replace=count > len(train)))

    def demonstrations(count: int, longest: int, rows: int) -> Demonstrations:
        del longest  # a solution is one turn
        shown = [
            index
            for index, solution in enumerate(train.solutions[: len(train) - checked])
            if solution and len(pieces(solution)) < options.max_new_tokens
        ][:count]
        if not shown:
            raise OptionsError(
                f"--warm-start.traces: no solution of the training problems takes fewer than "
                f"--max-new-tokens ({options.max_new_tokens}) words; expected 0"
            )
        part = train.take(shown)
        replies = [[solution] for solution in part.solutions]
        return Demonstrations(env_of(part, rows), play(np.arange(len(part))), replies)

    def check_episodes(count: int) -> Episodes:
        return play(len(train) - 1 - np.arange(count) % checked)

    def max_tokens(reply_tokens: int, renderer: ChatRenderer) -> int:
        questions = sorted(train.questions + held_out.questions, key=len)[-_MEASURED:]
        longest = ProblemSet(tuple(questions), ("0",) * len(questions), ("",) * len(questions))
        env = env_of(longest, len(questions))
        shown, _ = env.reset(options={"start_indices": np.arange(len(questions))})
        opening = max(map(len, renderer.open(env.system_prompt, shown)))
        texts = [feedback(style, known.form, verdict) for verdict in range(5)]
        turn = max(map(len, renderer.follow(texts, [False] * len(texts))))
        return opening + reply_tokens + (settings.max_attempts - 1) * (turn + reply_tokens)

    def references(count: int) -> tuple[Reference, ...]:
        part = held_out.take(np.arange(min(count, len(held_out))))
        random = random_reference(
            train, part, max_attempts=settings.max_attempts, reward=settings.reward
        )
        constant, optimal = constant_reference(train, part), optimal_reference()
        return (
            Reference("answers drawn at random", random.success, random.score),
            Reference("the commonest answer", constant.success, constant.score),
            Reference("right answers", optimal.success, optimal.score),
        )

    return Task(
        name=f"{name}-{options.task}",
        identity=repr((train.digest(), held_out.digest(), style, checker_name, settings)),
        max_tokens=max_tokens,
        held_out_count=len(held_out),
        make_env=make_env,
        words=_words(problems, system_prompt(style, known.form), style, known.form),
        train_episodes=train_episodes,
        held_out_episodes=lambda count: play(np.arange(count)),
        demonstrations=demonstrations,
        check_episodes=check_episodes,
        references=references,
        stop_strings=TURN_MARKERS,
        metrics=("no_answer", "unreadable", *(["undecided"] if pool else [])),
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


def _words(problems: Problems, opening: str, style: str, form: str) -> tuple[str, ...]:
    """Return the words of a tiny policy's tokenizer; fixed texts are one word each."""
    fixed = dict.fromkeys([opening, *(feedback(style, form, v) for v in range(5))])

    def texts() -> Iterable[str]:
        for part in (problems.train, problems.held_out):
            yield from part.questions
            yield from part.solutions

    found = {word for text in texts() for word in pieces(text)}
    return (*fixed, *sorted(found - set(fixed)))
