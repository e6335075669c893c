"""Mathematical problems as a game: a question, one or more tries, an exact checker."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs import checks
from envs.answers import Checker, Verdict
from envs.game import Counters, Game, Turn
from envs.math_problems import prompts
from envs.math_problems.problems import ProblemSet

FORMAT_PENALTY = -0.15
REWARDS = ("success", "halving")


@dataclass(frozen=True)
class MathState:
    """The state of B episodes.

    | field    | shape | dtype | content                                      |
    | -------- | ----- | ----- | -------------------------------------------- |
    | problem  | [B]   | int64 | which problem is asked                       |
    | attempts | [B]   | int32 | tries taken                                  |
    | verdict  | [B]   | int8  | `Verdict` on the last try, -1 before the first |
    """

    problem: np.ndarray
    attempts: np.ndarray
    verdict: np.ndarray


def make_game(
    problems: ProblemSet,
    checker: Checker,
    *,
    form: str = "hashes",
    max_attempts: int = 1,
    reward: str = "success",
    prompt: str = "default",
    format_penalty: float = FORMAT_PENALTY,
) -> Game[MathState]:
    """Makes the game of a set of problems.

    A reply is a try. An episode terminates with the first right answer or the last of
    `max_attempts` tries; after a wrong one the model is told so. A reply without an answer is
    invalid and costs the format penalty.

    Infos beside those of every game, each [B], on the last try: `verdict` int8, a `Verdict` or
    -1 before the first; `no_answer`, `unreadable`, `undecided` bool, which of these it was.

    Args:
        problems: the problems, the game's starts.
        checker: judges replies; all rows of a turn at once.
        form: `hashes` or `boxed`: how the model is asked to write its answer, which must be
            one that the checker takes.
        max_attempts: tries an episode has; the paper gives 3.
        reward: `success` pays 1 for a right answer, on whichever try; `halving` pays 1, 1/2,
            1/4 on the first, second, third try, as the released code does.
        prompt: `minimal` (the question alone), `default` or `reference`.
        format_penalty: reported in the infos for a reply without an answer.

    Raises:
        ValueError: an argument is out of range; TypeError: a count is not an integer.
    """
    if not len(problems):
        raise ValueError("problems must hold at least one problem")
    horizon = checks.positive("max_attempts", max_attempts)
    checks.one_of("form", form, tuple(prompts.FORMS))
    checks.one_of("reward", reward, REWARDS)
    checks.one_of("prompt", prompt, prompts.STYLES)

    def begin(start_indices: np.ndarray, _: np.ndarray) -> MathState:
        count = len(start_indices)
        return MathState(
            start_indices.astype(np.int64), np.zeros(count, np.int32), np.full(count, -1, np.int8)
        )

    def play(
        state: MathState, replies: Sequence[str], active: np.ndarray, left: np.ndarray
    ) -> tuple[MathState, Turn]:
        del left  # a turn is one try
        rows = np.flatnonzero(active).tolist()
        verdict = state.verdict.copy()
        verdict[rows] = checker(
            [problems.answers[index] for index in state.problem[rows]],
            [replies[row] for row in rows],
        )
        paid = try_reward(reward, state.attempts)
        answered = verdict != Verdict.NO_ANSWER
        turn = Turn(
            reward=np.where(verdict == Verdict.RIGHT, paid, 0).astype(np.float32),
            valid=answered,
            effective=answered,
            used=np.ones(len(active), np.int32),
        )
        return MathState(state.problem, state.attempts + active.astype(np.int32), verdict), turn

    def show(state: MathState, counters: Counters, left: np.ndarray) -> Sequence[str]:
        del counters, left
        return [
            prompts.first_text(prompt, form, problems.questions[index])
            if attempts == 0
            else prompts.feedback(prompt, form, verdict)
            for index, attempts, verdict in zip(
                state.problem.tolist(), state.attempts.tolist(), state.verdict.tolist(), strict=True
            )
        ]

    return Game(
        starts=len(problems),
        horizon=horizon,
        system_prompt=prompts.system_prompt(prompt, form),
        begin=begin,
        play=play,
        show=show,
        terminated=lambda state: _solved(state) | (state.attempts >= horizon),
        success=_solved,
        infos=_infos,
        format_penalty=checks.finite("format_penalty", format_penalty),
    )


def try_reward(reward: str, earlier: np.ndarray) -> np.ndarray:
    """Returns what success pays after so many earlier tries [B], [B] float32."""
    if reward == "success":
        return np.ones(len(earlier), np.float32)
    return np.ldexp(np.float32(1), -earlier)


def _infos(state: MathState) -> dict[str, np.ndarray]:
    kinds = (Verdict.NO_ANSWER, Verdict.UNREADABLE, Verdict.UNDECIDED)
    return {
        "verdict": state.verdict.copy(),
        **{kind.name.lower(): state.verdict == kind for kind in kinds},
    }


def _solved(state: MathState) -> np.ndarray:
    return state.verdict == Verdict.RIGHT
