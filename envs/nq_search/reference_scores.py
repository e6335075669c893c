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
) -> ReferenceScore:
    """Searches and answers with a gold where one stands in a passage that was found.

    No reader of these passages does better, however good; one that must guess which of their
    words is the answer does worse. Golds stand in a passage as whole words, both normalised.

    Args:
        questions: what is asked.
        retriever: what searches.
        topk: passages of a search.
        queries: the queries made for a question; by default the question itself.
    """
    asked = [tuple(queries(question)) for question in questions.questions]
    found = iter(retriever.search([query for part in asked for query in part], topk))
    answers = []
    for golds, part in zip(questions.golds, asked, strict=True):
        texts = [
            f" {normalise(hit.contents)} "
            for _, hits in zip(part, found, strict=False)
            for hit in hits
        ]
        there = [
            gold
            for gold in golds
            if normalise(gold) and any(f" {normalise(gold)} " in text for text in texts)
        ]
        answers.append(there[0] if there else "")
    return _score(questions, answers)


def _score(questions: QuestionSet, answers: Sequence[str]) -> ReferenceScore:
    pairs = list(zip(answers, questions.golds, strict=True))
    return ReferenceScore(
        exact=float(np.mean([exact_match(answer, golds) for answer, golds in pairs])),
        lenient=float(np.mean([lenient_match(answer, golds) for answer, golds in pairs])),
    )
