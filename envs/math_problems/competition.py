r"""Problems in the manner of the AIME, made offline: integers from 0 to 999 in a box.

`LEVELS` holds them by name. A solution works in steps and ends in `\boxed{42}`.
"""

import functools
import math
from collections.abc import Callable

import numpy as np

from envs.math_problems.problems import Problems, ProblemSet, numbers_hashes, split_by_content

Problem = tuple[str, list[str], int]  # question, steps, answer
Make = Callable[[np.random.Generator], Problem]

_CLOTHES = (
    ("shirts", "hats", "coats"),
    ("soups", "roasts", "cakes"),
    ("roads", "boats", "trains"),
    ("reds", "blues", "greens"),
)


@functools.lru_cache(maxsize=8)
def load_competition(level: str = "easy", *, count: int = 16_000, seed: int = 0) -> Problems:
    """Makes the problems of a level of `LEVELS`, of all kinds alike many, split by content.

    Raises:
        ValueError: the level is unknown.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {tuple(LEVELS)}, not {level!r}")
    problems = generate(LEVELS[level], count, seed)
    return split_by_content(problems, hashes_of=numbers_hashes)


def generate(kinds: tuple[Make, ...], count: int, seed: int) -> ProblemSet:
    """Makes `count` problems, the same for one seed in every process."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    made = [kinds[index % len(kinds)](rng) for index in range(count)]
    return ProblemSet(
        tuple(question for question, _, _ in made),
        tuple(str(answer) for _, _, answer in made),
        tuple("\n".join((*steps, rf"\boxed{{{answer}}}")) for _, steps, answer in made),
    )


def make_sum_remainder(rng: np.random.Generator) -> Problem:
    """The remainder of a sum of digits, added up one by one."""
    return _remainder(rng, "+")


def make_product_remainder(rng: np.random.Generator) -> Problem:
    """The remainder of a product of digits, multiplied up one by one."""
    return _remainder(rng, "*")


def make_choices(rng: np.random.Generator) -> Problem:
    """How many ways there are to choose one of each of three kinds."""
    numbers = a, b, c = [int(n) for n in rng.integers(2, 10, 3)]
    things = _CLOTHES[rng.integers(len(_CLOTHES))]
    named = [f"{number} {thing}" for number, thing in zip(numbers, things, strict=True)]
    question = (
        f"There are {named[0]}, {named[1]} and {named[2]}. How many ways to take one of each?"
    )
    return question, [f"{a}*{b}={a * b}", f"{a * b}*{c}={a * b * c}"], a * b * c


def make_term(rng: np.random.Generator) -> Problem:
    """A term of an arithmetic sequence."""
    first, step, place = (int(rng.integers(*ends)) for ends in ((1, 40), (2, 10), (3, 10)))
    change = step * (place - 1)
    question = f"A sequence begins with {first} and grows by {step}. Find its term number {place}."
    steps = [f"{place}-1={place - 1}", f"{place - 1}*{step}={change}"]
    return question, [*steps, f"{first}+{change}={first + change}"], first + change


def make_small_divisor(rng: np.random.Generator) -> Problem:
    """The greatest common divisor of numbers up to 40."""
    return _divisor(rng, 40)


def make_divisor(rng: np.random.Generator) -> Problem:
    """The greatest common divisor of numbers up to 900."""
    return _divisor(rng, 900)


def make_multiple(rng: np.random.Generator) -> Problem:
    """The least common multiple of two numbers, by their greatest common divisor."""
    a, b = (int(n) for n in rng.integers(2, 32, 2))
    common = math.gcd(a, b)
    steps = [f"gcd={common}", f"{a}/{common}={a // common}", f"{a // common}*{b}={a // common * b}"]
    return f"Find the least common multiple of {a} and {b}.", steps, math.lcm(a, b)


def make_power(rng: np.random.Generator) -> Problem:
    """The remainder of a power, multiplied up one factor at a time."""
    base = int(rng.integers(2, 10))
    modulus, exponent = int(rng.integers(base + 1, 100)), int(rng.integers(2, 12))
    value, steps = base, []
    for _ in range(exponent - 1):
        steps.append(f"{value}*{base}={value * base}={value * base % modulus}")
        value = value * base % modulus
    question = f"Find the remainder when {base}^{exponent} is divided by {modulus}."
    return question, steps, value


def make_count(rng: np.random.Generator) -> Problem:
    """How many numbers up to n are divisible by one of two others: inclusion and exclusion."""
    a, b = (int(n) for n in rng.permutation(np.arange(2, 16))[:2])
    n, both = int(rng.integers(max(a, b), 901)), math.lcm(a, b)
    counts = n // a, n // b, n // both
    total = counts[0] + counts[1] - counts[2]
    steps = [f"{n}//{d}={c}" for d, c in zip((a, b, both), counts, strict=True)]
    steps.append(f"{counts[0]}+{counts[1]}-{counts[2]}={total}")
    question = f"How many positive integers up to {n} are divisible by {a} or by {b}?"
    return question, steps, total


def make_series(rng: np.random.Generator) -> Problem:
    """The sum of consecutive integers, from the first, the last and their number."""
    terms = int(rng.integers(3, 20))
    first = int(rng.integers(1, 999 // terms - terms + 1))
    last = first + terms - 1
    double = (first + last) * terms
    steps = [f"{first}+{last}={first + last}", f"{first + last}*{terms}={double}"]
    steps.append(f"{double}/2={double // 2}")
    return f"Find the sum of the integers from {first} to {last}.", steps, double // 2


LEVELS: dict[str, tuple[Make, ...]] = {
    "easy": (
        make_sum_remainder,
        make_product_remainder,
        make_choices,
        make_term,
        make_small_divisor,
    ),
    "hard": (make_divisor, make_multiple, make_power, make_count, make_series),
}


def _remainder(rng: np.random.Generator, sign: str) -> Problem:
    modulus = (7, 11, 13)[rng.integers(3)]  # prime, so that few products leave nothing
    digits = [digit for digit in range(2, 10) if digit != modulus]
    numbers = [digits[i] for i in rng.integers(0, len(digits), rng.integers(3, 5))]
    value, steps = numbers[0], []
    for number in numbers[1:]:
        result = value + number if sign == "+" else value * number
        steps.append(f"{value}{sign}{number}={result}={result % modulus}")
        value = result % modulus
    expression = f" {sign} ".join(map(str, numbers))
    return f"Find the remainder when {expression} is divided by {modulus}.", steps, value


def _divisor(rng: np.random.Generator, most: int) -> Problem:
    """Euclid's algorithm on two numbers that share a factor."""
    factor = int(rng.integers(1, most // 5))
    a, b = sorted((factor * int(n) for n in rng.integers(1, most // factor + 1, 2)), reverse=True)
    steps, x, y = [], a, b
    while y:
        steps.append(f"{x}={x // y}*{y}+{x % y}")
        x, y = y, x % y
    return f"Find the greatest common divisor of {a} and {b}.", steps, x
