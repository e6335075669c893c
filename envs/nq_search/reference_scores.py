"""What players reach that are no models: guesses, and a perfect reader of what is found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from envs.nq_search.questions import QuestionSet
from envs.nq_search.scoring import exact_match, lenient_match, normalise
from envs.retrieval import Retriever


@dataclass(frozen=True)
class ReferenceScore:
    """Shares of questions answered right: exactly, and by the paper's lenient match."""

    exact: float
    lenient: float


def constant_reference(questions: QuestionSet, answer: str) -> ReferenceScore:
    """Gives one answer to every question."""
    return _score(questions, [answer] * len(questions))


def random_reference(
    questions: QuestionSet, answers: Sequence[str], *, seed: int = 0
) -> ReferenceScore:
    """Answers each question with one of some answers, drawn at random."""
    drawn = np.random.default_rng(seed).integers(len(answers), size=len(questions))
    return _score(questions, [answers[place] for place in drawn])


def oracle_reference(
    questions: QuestionSet,
    retriever: Retriever,
    *,
    topk: int = 3,
    queries: Callable[[str], Sequence[str]] = lambda question: (question,),
) -> float:
    """Returns the share of questions of which a gold stands in a passage that is found.

    No reader of these passages answers more of them but by knowing it before. Golds stand in a
    passage as whole words, both normalised.

    Args:
        questions: what is asked.
        retriever: what searches.
        topk: passages of a search.
        queries: the queries made for a question; by default the question itself.
    """
    asked = [tuple(queries(question)) for question in questions.questions]
    found = iter(retriever.search([query for part in asked for query in part], topk))
    right = 0
    for golds, part in zip(questions.golds, asked, strict=True):
        hits = [hit for _ in part for hit in next(found)]
        texts = [f" {normalise(hit.contents)} " for hit in hits]
        bare = [f" {normalise(gold)} " for gold in golds if normalise(gold)]
        right += any(gold in text for gold in bare for text in texts)
    return right / len(questions)


def _score(questions: QuestionSet, answers: Sequence[str]) -> ReferenceScore:
    pairs = list(zip(answers, questions.golds, strict=True))
    return ReferenceScore(
        exact=float(np.mean([exact_match(answer, golds) for answer, golds in pairs])),
        lenient=float(np.mean([lenient_match(answer, golds) for answer, golds in pairs])),
    )
