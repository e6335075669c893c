"""Sets of problems with their answers, and how they are split."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
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
    return _hashes(_plain(question) for question in problems.questions)


def numbers_hashes(problems: ProblemSet) -> np.ndarray:
    """Returns [N] uint64, equal for problems of the same numbers, in any order, and answer.

    Of problems made by rule that is the same problem in another guise: with other names and
    things, or with the sides of a sum exchanged.
    """
    return _hashes(
        f"{sorted(re.findall(r'[0-9]+', question), key=int)} {answer}"
        for question, answer in zip(problems.questions, problems.answers, strict=True)
    )


def split_by_content(
    problems: ProblemSet,
    held_out_share: float = 0.125,
    *,
    hashes_of: Callable[[ProblemSet], np.ndarray] = content_hashes,
) -> Problems:
    """Splits a set by hashes of its problems: what is held out stays so as sets grow.

    Args:
        problems: the set.
        held_out_share: the share of hashes that are held out.
        hashes_of: `(problems) -> [N] uint64`; problems of one hash are on one side.

    Raises:
        ValueError: a part would be empty.
    """
    hashes = hashes_of(problems)
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


def _hashes(texts: Iterable[str]) -> np.ndarray:
    digests = (hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8] for text in texts)
    return np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64)


def _plain(question: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split())
