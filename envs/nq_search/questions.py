"""Questions with their right answers, and their split by content."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs.nq_search.scoring import normalise

HELD_OUT_SHARE = 8  # one question in so many is held out


@dataclass(frozen=True)
class QuestionSet:
    """N questions, each with every answer that is right."""

    questions: tuple[str, ...]
    golds: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if len(self.questions) != len(self.golds):
            raise ValueError(
                f"golds must be one tuple a question, not {len(self.golds)} "
                f"for {len(self.questions)} questions"
            )

    def __len__(self) -> int:
        return len(self.questions)

    def take(self, places: Sequence[int] | np.ndarray) -> "QuestionSet":
        """Returns the questions at some places."""
        return QuestionSet(
            tuple(self.questions[place] for place in places),
            tuple(self.golds[place] for place in places),
        )


@dataclass(frozen=True)
class Split:
    """Questions to learn from and questions held out; none is in both."""

    train: QuestionSet
    held_out: QuestionSet

    def split(self, name: str) -> QuestionSet:
        """Returns the split of that name; ValueError if there is none."""
        if name not in ("train", "held_out"):
            raise ValueError(f"split must be train or held_out, not {name!r}")
        return self.train if name == "train" else self.held_out


def question_hash(question: str) -> int:
    """Returns a hash of the normalised question, 64 bits, the same in every process."""
    digest = hashlib.blake2b(normalise(question).encode("utf-8", "replace"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def split_questions(questions: QuestionSet) -> Split:
    """Splits by the hash of the question, so that a question asked twice is on one side.

    Raises:
        ValueError: a side would be empty.
    """
    hashes = np.array([question_hash(question) for question in questions.questions], np.uint64)
    held_out = hashes % np.uint64(HELD_OUT_SHARE) == 0
    if held_out.all() or not held_out.any():
        raise ValueError(
            f"questions: {len(questions)} are too few to be split by their content; "
            "give the held-out ones a file of their own"
        )
    return Split(
        questions.take(np.flatnonzero(~held_out)), questions.take(np.flatnonzero(held_out))
    )


def separate_questions(train: QuestionSet, held_out: QuestionSet) -> Split:
    """Leaves out of what is trained on every question that is held out as well.

    Questions are the same where their normalised forms are.

    Raises:
        ValueError: nothing would be left to train on.
    """
    asked = {question_hash(question) for question in held_out.questions}
    kept = [n for n, one in enumerate(train.questions) if question_hash(one) not in asked]
    if not kept:
        raise ValueError(f"questions: all {len(train)} to train on are held out as well")
    return Split(train.take(kept), held_out)
