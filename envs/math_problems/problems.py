"""Sets of problems with their answers, and how they are split."""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ProblemSet:
    """N problems: what is asked, the gold answers, and worked solutions as a model would reply.

    A solution is empty where none is known.
    """

    questions: tuple[str, ...]
    answers: tuple[str, ...]
    solutions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.questions)

    def take(self, indices: Sequence[int] | np.ndarray) -> "ProblemSet":
        """Returns the problems at the given places, in that order."""
        return ProblemSet(
            *(
                tuple(column[int(index)] for index in indices)
                for column in (self.questions, self.answers, self.solutions)
            )
        )

    def digest(self) -> str:
        """Returns a digest of questions and answers."""
        return hashlib.sha256(
            repr((self.questions, self.answers)).encode("utf-8", "replace")
        ).hexdigest()


@dataclass(frozen=True)
class Problems:
    """Problems to train on and problems to measure on; no question is among both.

    dropped: problems left out, because the same question came before or is held out.
    """

    train: ProblemSet
    held_out: ProblemSet
    dropped: int = 0

    def split(self, name: str) -> ProblemSet:
        """Returns the problems of `train` or `held_out`."""
        return {"train": self.train, "held_out": self.held_out}[name]


def content_hashes(problems: ProblemSet) -> np.ndarray:
    """Returns [N] uint64, equal for questions that differ in case and white space at most."""
    digests = (
        hashlib.sha256(_plain(question).encode("utf-8", "replace")).digest()[:8]
        for question in problems.questions
    )
    return np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64)


def split_by_content(problems: ProblemSet, held_out_share: float = 0.125) -> Problems:
    """Splits a set by the hashes of its questions: what is held out stays so as sets grow.

    Raises:
        ValueError: a part would be empty.
    """
    hashes = content_hashes(problems)
    held_out = hashes < np.uint64(int(held_out_share * 2**64))
    return separate(
        problems.take(np.flatnonzero(~held_out)), problems.take(np.flatnonzero(held_out))
    )


def separate(train: ProblemSet, held_out: ProblemSet) -> Problems:
    """Makes a split of two sets: repeated questions go, from the training set before all.

    Raises:
        ValueError: a part would be empty.
    """
    test_hashes, test_first = np.unique(content_hashes(held_out), return_index=True)
    train_hashes, train_first = np.unique(content_hashes(train), return_index=True)
    train_first = train_first[~np.isin(train_hashes, test_hashes)]
    dropped = len(train) + len(held_out) - len(train_first) - len(test_first)
    parts = {"train": train_first, "held_out": test_first}
    for name, kept in parts.items():
        if not len(kept):
            raise ValueError(f"{name}: no problem is left of {len(train) + len(held_out)}")
    return Problems(train.take(np.sort(train_first)), held_out.take(np.sort(test_first)), dropped)


def _plain(question: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split())
