import hashlib

import numpy as np
import pytest

from envs.math_problems import ProblemSet, content_hashes, separate, split_by_content


def make(*questions):
    return ProblemSet(questions, tuple(str(len(q)) for q in questions), ("",) * len(questions))


def test_questions_that_differ_in_case_and_space_are_the_same():
    hashes = content_hashes(make("How many?", " how\n MANY? ", "Ｈow many?", "How many"))
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]
    # A hash that changed between versions would move problems across the split.
    digest = hashlib.sha256(b"how many?").digest()
    assert hashes[0] == int.from_bytes(digest[:8], "little")


def test_repeated_questions_go_and_are_counted():
    problems = separate(make("a", "b", "A", "c", "d"), make("C", "e", "e"))
    assert problems.train.questions == ("a", "b", "d")
    assert problems.held_out.questions == ("C", "e")
    assert problems.dropped == 3
    with pytest.raises(ValueError, match="train: no problem is left of 2"):
        separate(make("a"), make("a"))


def test_the_split_by_content_is_disjoint_and_keeps_to_its_share():
    problems = split_by_content(make(*(f"problem {i}" for i in range(8000))))
    train, held_out = set(problems.train.questions), set(problems.held_out.questions)
    assert len(train) + len(held_out) == 8000
    assert not train & held_out
    assert abs(len(held_out) - 1000) < 4 * np.sqrt(1000)


def test_what_is_held_out_stays_so_as_sets_grow():
    small = split_by_content(make(*(f"problem {i}" for i in range(200))))
    large = split_by_content(make(*(f"problem {i}" for i in reversed(range(500)))))
    assert set(small.held_out.questions) <= set(large.held_out.questions)
    assert set(small.train.questions) <= set(large.train.questions)
