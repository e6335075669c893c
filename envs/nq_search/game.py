"""NQ Search as a game: a question, searches, an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envs import checks
from envs.game import Counters, Game, Turn
from envs.nq_search import prompts
from envs.nq_search.parse import Act, Kind, parse_reply
from envs.nq_search.questions import QuestionSet
from envs.nq_search.scoring import exact_match, lenient_match
from envs.nq_search.trim import Trim, trim_words
from envs.retrieval import Retriever, Tolerant

LONGEST_QUERY = 1000  # characters; what is longer is cut
FORMAT_PENALTY = -0.15


@dataclass(frozen=True)
class Rules:
    """How an episode goes.

    searches: searches that an episode may make.
    horizon: replies that it may take.
    topk: passages that a search brings.
    information_tokens: what they are cut to, all those of a search together.
    repeat_question: whether every observation ends with the question.
    answer_first: whether an answer counts before a search that stands before it.
    overdraft: of a search when none is left: `refuse` makes none and says so, `end` ends the
      episode without an answer.
    right_reward: of a right answer; all else is paid nothing.
    format_penalty: reported for a reply that does nothing.
    style: of the prompts, `default` or `minimal`.
    """

    searches: int = 5
    horizon: int = 10
    topk: int = 3
    information_tokens: int = 500
    repeat_question: bool = False
    answer_first: bool = False
    overdraft: str = "refuse"
    right_reward: float = 1.0
    format_penalty: float = FORMAT_PENALTY
    style: str = "default"

    def __post_init__(self) -> None:
        if checks.integer("searches", self.searches) < 0:
            raise ValueError(f"searches must not be negative: {self.searches}")
        for field in ("horizon", "topk", "information_tokens"):
            checks.positive(field, getattr(self, field))
        for field in ("right_reward", "format_penalty"):
            checks.finite(field, getattr(self, field))
        checks.one_of("overdraft", self.overdraft, ("refuse", "end"))
        checks.one_of("style", self.style, prompts.STYLES)


PRESETS = {
    "default": Rules(),
    # Four turns that may search and one to answer; nothing but the answer is paid for.
    "search-r1": Rules(searches=4, horizon=5, format_penalty=0.0),
    # What the paper's released environment does, but for its lenient reward.
    "paper": Rules(repeat_question=True, answer_first=True, overdraft="end"),
}


@dataclass(frozen=True)
class Episodes:
    """The state of B episodes.

    | field           | shape | dtype  | content                                            |
    | --------------- | ----- | ------ | -------------------------------------------------- |
    | question        | [B]   | int64  | place in the question set                          |
    | searches        | [B]   | int32  | searches made                                      |
    | search_failures | [B]   | int32  | those of them that the search engine failed        |
    | answered        | [B]   | bool   | an answer was given                                |
    | exact_match     | [B]   | bool   | it was right                                       |
    | lenient_match   | [B]   | bool   | it was right by the paper's code                   |
    | overdrawn       | [B]   | bool   | the episode ended by a search when none was left   |
    | news            | [B]   | object | what came of the last reply, as text               |
    """

    question: np.ndarray
    searches: np.ndarray
    search_failures: np.ndarray
    answered: np.ndarray
    exact_match: np.ndarray
    lenient_match: np.ndarray
    overdrawn: np.ndarray
    news: np.ndarray


def make_game(
    questions: QuestionSet,
    retriever: Retriever,
    *,
    rules: Rules = PRESETS["default"],
    trim: Trim = trim_words,
    failures: int = 8,
) -> Game[Episodes]:
    """Makes the game of a set of questions.

    A reply thinks, searches or answers, see `parse_reply`; each uses up one action. An answer
    ends the episode and is paid where it matches a gold exactly. The searches of all rows in a
    turn are one call of the retriever. Where it fails, the model is told that it cannot be
    reached, and the info `search_failures` counts it; after `failures` calls that failed in a
    row the error is raised.

    Args:
        questions: the questions to ask.
        retriever: what searches.
        rules: how an episode goes.
        trim: cuts the passages of a search to `rules.information_tokens`.
        failures: failed calls in a row that are borne; 0 raises at the first.

    Raises:
        ValueError: there is no question, or failures is negative.
    """
    if not len(questions):
        raise ValueError("questions must hold at least one question")
    if checks.integer("failures", failures) < 0:
        raise ValueError(f"failures must not be negative: {failures}")
    tolerant = Tolerant(retriever, failures)

    def play(
        state: Episodes, replies: Sequence[str], active: np.ndarray, left: np.ndarray
    ) -> tuple[Episodes, Turn]:
        del left
        acts = [
            parse_reply(reply, answer_first=rules.answer_first) if on else _IDLE
            for reply, on in zip(replies, active, strict=True)
        ]
        kinds = np.array([act.kind for act in acts])
        wanting = active & (kinds == Kind.SEARCH)
        searching = wanting & (state.searches < rules.searches)
        refused = wanting & ~searching
        news = state.news.copy()
        news[active] = ""
        news[active & (kinds == Kind.INVALID)] = prompts.invalid_text(rules.style)
        news[refused] = prompts.spent_text(rules.style)
        found = np.zeros(len(news), bool)
        failed = np.zeros(len(news), bool)
        if searching.any():
            rows = np.flatnonzero(searching)
            queries = [acts[row].text[:LONGEST_QUERY] for row in rows]
            news[rows], found[rows], failed[rows] = _look_up(queries, tolerant, rules, trim)
        exact, lenient = state.exact_match.copy(), state.lenient_match.copy()
        answering = active & (kinds == Kind.ANSWER)
        for row in np.flatnonzero(answering):
            golds = questions.golds[state.question[row]]
            exact[row] = exact_match(acts[row].text, golds)
            lenient[row] = lenient_match(acts[row].text, golds)
        ends = refused if rules.overdraft == "end" else np.zeros_like(refused)
        turn = Turn(
            reward=np.where(answering & exact, np.float32(rules.right_reward), np.float32(0)),
            valid=kinds != Kind.INVALID,
            effective=answering | found,
            used=np.ones(len(news), np.int32),
        )
        state = replace(
            state,
            searches=state.searches + searching.astype(np.int32),
            search_failures=state.search_failures + failed.astype(np.int32),
            answered=state.answered | answering,
            exact_match=exact,
            lenient_match=lenient,
            overdrawn=state.overdrawn | ends,
            news=news,
        )
        return state, turn

    def show(state: Episodes, counters: Counters, left: np.ndarray) -> list[str]:
        return [
            prompts.turn_text(
                rules.style,
                state.news[row],
                question=asked if rules.repeat_question else None,
                searches_left=int(rules.searches - state.searches[row]),
                replies_left=int(left[row]),
            )
            if counters.turns[row]
            else prompts.opening_text(rules.style, asked)
            for row, asked in enumerate(questions.questions[place] for place in state.question)
        ]

    def infos(state: Episodes) -> dict[str, Any]:
        names = ("exact_match", "lenient_match", "answered", "searches", "search_failures")
        return {name: getattr(state, name).copy() for name in names}

    return Game(
        starts=len(questions),
        horizon=rules.horizon,
        system_prompt=prompts.system_prompt(
            rules.style, searches=rules.searches, horizon=rules.horizon
        ),
        begin=_begin,
        play=play,
        show=show,
        terminated=lambda state: state.answered | state.overdrawn,
        success=lambda state: state.exact_match,
        infos=infos,
        format_penalty=rules.format_penalty,
    )


_IDLE = Act(Kind.THINK)


def _begin(indices: np.ndarray, seeds: np.ndarray) -> Episodes:
    del seeds  # there is no chance in an episode
    count = len(indices)
    return Episodes(
        question=indices,
        searches=np.zeros(count, np.int32),
        search_failures=np.zeros(count, np.int32),
        answered=np.zeros(count, bool),
        exact_match=np.zeros(count, bool),
        lenient_match=np.zeros(count, bool),
        overdrawn=np.zeros(count, bool),
        news=np.full(count, "", object),
    )


def _look_up(
    queries: list[str], tolerant: Tolerant, rules: Rules, trim: Trim
) -> tuple[list[str], list[bool], bool]:
    """Returns the information for each query, whether it holds passages, and whether all failed."""
    results = tolerant.search(queries, rules.topk)
    if results is None:
        text = prompts.information_text(prompts.UNAVAILABLE)
        return [text] * len(queries), [False] * len(queries), True
    texts = trim([prompts.passages_text(hits) for hits in results], rules.information_tokens)
    shown = [prompts.information_text(text or prompts.NOTHING) for text in texts]
    return shown, [bool(text) for text in texts], False
