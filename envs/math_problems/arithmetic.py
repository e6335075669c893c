r"""Problems made offline, with exact answers and worked solutions.

`LEVELS` holds them by name. A solution works in steps of one operation each, short enough that
a tiny model can learn them, and ends as GSM8K's do: `#### 42`.
"""

import functools
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from envs.math_problems.problems import Problems, ProblemSet, numbers_hashes, split_by_content

Problem = tuple[str, list[str], int]  # question, steps, answer
Make = Callable[[np.random.Generator], Problem]

NAMES = (
    ("Ann", "She"), ("Ben", "He"), ("Cleo", "She"), ("Dan", "He"), ("Eva", "She"), ("Finn", "He"),
    ("Gina", "She"), ("Hugo", "He"),
)  # fmt: skip
THINGS = ("apples", "books", "coins", "eggs", "marbles", "pens", "shells", "stamps")
_GAINS = ("buys", "finds", "gets")
_LOSSES = ("sells", "loses", "gives away")
_TIMES = {2: "twice", 3: "three times"}


def generate(make: Make, count: int, seed: int) -> ProblemSet:
    """Makes `count` problems, the same for one seed in every process."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    made = [make(rng) for _ in range(count)]
    return ProblemSet(
        tuple(question for question, _, _ in made),
        tuple(str(answer) for _, _, answer in made),
        tuple("\n".join((*steps, f"#### {answer}")) for _, steps, answer in made),
    )


@functools.lru_cache(maxsize=8)
def load_arithmetic(level: str = "stories", *, count: int = 12_000, seed: int = 0) -> Problems:
    """Makes the problems of a level of `LEVELS`, split by content.

    Raises:
        ValueError: the level is unknown.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {tuple(LEVELS)}, not {level!r}")
    problems = generate(LEVELS[level], count, seed)
    return split_by_content(problems, hashes_of=numbers_hashes)


def make_sum(rng: np.random.Generator) -> Problem:
    """One operation on numbers below 100, products on numbers below 10."""
    sign = "+-*"[rng.integers(3)]
    a, b = (int(n) for n in rng.integers(2, 10 if sign == "*" else 100, 2))
    if sign == "-" and a < b:
        a, b = b, a
    return f"What is {a} {sign} {b}?", *_work([a], [(sign, b)])


def make_chain(rng: np.random.Generator) -> Problem:
    """Three operations, one after the other, on a number that stays below 100."""
    value = start = int(rng.integers(2, 30))
    operations, words = [], []
    for _ in range(3):
        sign, b = _operation(rng, value, most=99)
        value = _apply(value, sign, b)
        operations.append((sign, b))
        words.append({"+": "add {}", "-": "take away {}", "*": "multiply by {}"}[sign].format(b))
    question = f"Start with {start}, {', '.join(words)}. What do you get?"
    return question, *_work([start], operations)


def make_story(rng: np.random.Generator) -> Problem:
    """A story of two steps on numbers below 100."""
    return _story(rng, events=1, most=99) if rng.random() < 0.6 else _comparison(rng, most=99)


def make_long_story(rng: np.random.Generator) -> Problem:
    """A story of four steps on numbers below 1000."""
    return _story(rng, events=3, most=999)


LEVELS: dict[str, Make] = {
    "sums": make_sum,
    "chains": make_chain,
    "stories": make_story,
    "long_stories": make_long_story,
}


def _story(rng: np.random.Generator, *, events: int, most: int) -> Problem:
    """Bags of things, and then things come and go."""
    name, pronoun = NAMES[rng.integers(len(NAMES))]
    things = THINGS[rng.integers(len(THINGS))]
    bags = int(rng.integers(2, 10))
    each = int(rng.integers(2, 10 if most < 100 else 40))
    value = bags * each
    sentences, operations = [], [("*", each)]
    for _ in range(events):
        sign, b = _operation(rng, value, most=most, signs="+-")
        verbs = _GAINS if sign == "+" else _LOSSES
        sentences.append(f"{pronoun} {verbs[rng.integers(3)]} {b} of them." if sign == "-"
                         else f"{pronoun} {verbs[rng.integers(3)]} {b} more.")  # fmt: skip
        operations.append((sign, b))
        value = _apply(value, sign, b)
    question = (
        f"{name} has {bags} bags with {each} {things} in each. {' '.join(sentences)} "
        f"How many {things} does {name} have now?"
    )
    return question, *_work([bags], operations)


def _comparison(rng: np.random.Generator, *, most: int) -> Problem:
    """Two people, one of whom has more, fewer or several times as many as the other."""
    (name, _), (other, _) = (NAMES[i] for i in rng.permutation(len(NAMES))[:2])
    things = THINGS[rng.integers(len(THINGS))]
    first = int(rng.integers(3, most // 4 + 1))
    kind = int(rng.integers(3))
    if kind == 2:
        factor = int(rng.integers(2, 4))
        relation, operation = f"{_TIMES[factor]} as many as", ("*", factor)
    else:
        most_change = most - 2 * first if kind == 0 else first - 1
        change = int(rng.integers(1, min(most_change, 20) + 1))
        relation = f"{change} more than" if kind == 0 else f"{change} fewer than"
        operation = ("+" if kind == 0 else "-", change)
    second = _apply(first, *operation)
    question = (
        f"{name} has {first} {things}. {other} has {relation} {name}. "
        f"How many {things} do they have together?"
    )
    steps = [_step(first, *operation), _step(second, "+", first)]
    return question, steps, first + second


def _operation(
    rng: np.random.Generator, value: int, *, most: int, signs: str = "+-*"
) -> tuple[str, int]:
    """Draws an operation after which the value is from 1 to `most`."""
    fitting = {
        "+": (1, min(most - value, 30 if most < 100 else 200)),
        "-": (1, min(value - 1, 30 if most < 100 else 200)),
        "*": (2, min(most // value, 9)),
    }
    possible = [sign for sign in signs if fitting[sign][0] <= fitting[sign][1]]
    sign = possible[rng.integers(len(possible))]
    low, high = fitting[sign]
    return sign, int(rng.integers(low, high + 1))


def _apply(a: int, sign: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def _step(a: int, sign: str, b: int) -> str:
    return f"{a}{sign}{b}={_apply(a, sign, b)}"


def _work(values: list[int], operations: list[tuple[str, int]]) -> tuple[list[str], int]:
    """Returns the steps of operations one after the other, and the answer."""
    for sign, b in operations:
        values = [*values, _apply(values[-1], sign, b)]
    steps = [
        _step(a, *operation) for (a, _), operation in zip(pairwise(values), operations, strict=True)
    ]
    return steps, values[-1]
