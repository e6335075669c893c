"""Problems made offline, against answers worked out from the words of the question."""

import itertools
import math
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from envs.answers import Verdict, check_aime, check_gsm8k
from envs.math_problems import arithmetic, competition
from envs.math_problems.arithmetic import load_arithmetic
from envs.math_problems.competition import load_competition

GAINS, LOSSES = ("buys", "finds", "gets"), ("sells", "loses", "gives away")


def numbers(text):
    return [int(n) for n in re.findall(r"\d+", text)]


def oracle_arithmetic(question):
    """The answer, by reading the question."""
    if found := re.fullmatch(r"What is (\d+ [-+*] \d+)\?", question):
        return eval(found[1])
    if found := re.match(r"Start with (\d+), (.*)\. What", question):
        value = int(found[1])
        for part in found[2].split(", "):
            (n,) = numbers(part)
            value = {"add": value + n, "take": value - n, "mult": value * n}[
                part[:4].rstrip() if not part.startswith("add") else "add"
            ]
        return value
    if "together" in question:
        first, *rest = numbers(question)
        if "twice" in question:
            return 3 * first
        if "three times" in question:
            return 4 * first
        change = rest[0] if "more than" in question else -rest[0]
        return 2 * first + change
    sentences = question.split(". ")
    bags, each = numbers(sentences[0])
    value = bags * each
    for sentence in sentences[1:-1]:
        (n,) = numbers(sentence)
        if any(verb in sentence for verb in GAINS):
            value += n
        else:
            assert any(verb in sentence for verb in LOSSES), sentence
            value -= n
    return value


def oracle_competition(question):
    """The answer, by brute force."""
    n = numbers(question)
    if "common divisor" in question:
        return max(d for d in range(1, min(n) + 1) if n[0] % d == n[1] % d == 0)
    if "common multiple" in question:
        return next(m for m in range(max(n), n[0] * n[1] + 1) if m % n[0] == m % n[1] == 0)
    if "remainder" in question:
        expression = question.split("when ")[1].split(" is ")[0].replace("^", "**")
        return eval(expression) % n[-1]
    if "ways" in question:
        return sum(1 for _ in itertools.product(*map(range, n)))
    if "sequence" in question:
        return list(itertools.islice(itertools.count(n[0], n[1]), n[2]))[-1]
    if "divisible" in question:
        return sum(m % n[1] == 0 or m % n[2] == 0 for m in range(1, n[0] + 1))
    return sum(range(n[0], n[1] + 1))


@pytest.mark.parametrize("level", arithmetic.LEVELS)
def test_arithmetic(level):
    problems = arithmetic.generate(arithmetic.LEVELS[level], 600, seed=5)
    for question, answer, solution in zip(
        problems.questions, problems.answers, problems.solutions, strict=True
    ):
        assert int(answer) == oracle_arithmetic(question), question
        assert 0 <= int(answer) < 1000
        assert check_gsm8k(answer, solution) is Verdict.RIGHT
        for step in solution.split("\n")[:-1]:
            left, right = step.split("=")
            assert eval(left) == int(right), solution


@pytest.mark.parametrize("level", competition.LEVELS)
def test_competition(level):
    problems = competition.generate(competition.LEVELS[level], 600, seed=5)
    for question, answer, solution in zip(
        problems.questions, problems.answers, problems.solutions, strict=True
    ):
        assert int(answer) == oracle_competition(question), question
        assert 0 <= int(answer) <= 999
        assert check_aime(answer, solution) is Verdict.RIGHT
        for step in solution.split("\n")[:-1]:
            left, *rest = step.replace("gcd=", "1*").split("=")
            modulus = numbers(question)[-1] if len(rest) == 2 else None
            values = [eval(left), *map(eval, rest)]
            assert len({v % modulus if modulus else v for v in values}) == 1, solution


def test_all_kinds_are_there_alike_often():
    questions = competition.generate(competition.LEVELS["hard"], 500, seed=0).questions
    words = ("divisor", "multiple", "remainder", "positive integers", "sum")
    assert Counter(next(w for w in words if w in q) for q in questions) == dict.fromkeys(words, 100)


@pytest.mark.parametrize("load", [load_arithmetic, load_competition])
def test_sets_are_large_enough_and_split(load):
    problems = load()
    assert len(problems.held_out) >= 512
    assert len(problems.train) >= 4000
    assert not set(problems.train.questions) & set(problems.held_out.questions)


def test_one_seed_is_one_set_in_every_process():
    code = (
        "from envs.math_problems.arithmetic import load_arithmetic as a;"
        "from envs.math_problems.competition import load_competition as c;"
        "print(a(count=300).train.digest(), c(count=300).train.digest())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": salt},
        ).stdout
        for salt in ("1", "2")
    }  # fmt: skip
    here = load_arithmetic(count=300).train.digest(), load_competition(count=300).train.digest()
    assert made == {" ".join(here) + "\n"}
    assert load_arithmetic(count=300, seed=1).train.digest() != here[0]


def test_unknown_levels_are_refused():
    with pytest.raises(ValueError, match=r"level must be one of \('sums', .*, not 'calculus'"):
        load_arithmetic("calculus")
    with pytest.raises(ValueError, match=r"level must be one of \('easy', 'hard'\), not 'x'"):
        load_competition("x")


def test_numbers_stay_in_their_ranges():
    rng = np.random.default_rng(0)
    for _ in range(300):
        assert 0 < arithmetic.make_story(rng)[2] <= 99
        assert 0 < arithmetic.make_long_story(rng)[2] <= 999
        assert math.log10(arithmetic.make_chain(rng)[2]) < 2


@pytest.mark.parametrize("level", [*arithmetic.LEVELS, "easy", "hard"])
def test_no_problem_is_held_out_that_is_trained_on_in_another_guise(level):
    load = load_arithmetic if level in arithmetic.LEVELS else load_competition

    def guises(problems):
        return {
            (*sorted(map(int, re.findall(r"\d+", question))), int(answer))
            for question, answer in zip(problems.questions, problems.answers, strict=True)
        }

    problems = load(level)
    assert guises(problems.train).isdisjoint(guises(problems.held_out))
    assert len(problems.held_out) >= 512  # what the final table asks for
