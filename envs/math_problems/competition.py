r"""Problems in the manner of the AIME, made offline: integers from 0 to 999 in a box.

`LEVELS` holds them by name. A solution works in steps and ends in `\boxed{42}`.
"""

import functools
import math
from collections.abc import Callable

import numpy as np

from envs.math_problems.problems import Problems, ProblemSet, split_by_content

Problem = tuple[str, list[str], int]  # question, steps, answer
Make = Callable[[np.random.Generator, int], Problem]

LEVELS = {"easy": 99, "hard": 900}  # numbers in the questions stay below


@functools.lru_cache(maxsize=8)
def load_competition(level: str = "easy", *, count: int = 16_000, seed: int = 0) -> Problems:
    """Makes the problems of a level of `LEVELS`, all kinds alike often, split by content.

    Raises:
        ValueError: the level is unknown.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {tuple(LEVELS)}, not {level!r}")
    return split_by_content(generate(LEVELS[level], count, seed))


def generate(most: int, count: int, seed: int) -> ProblemSet:
    """Makes `count` problems, the same for one seed in every process."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    made = [KINDS[index % len(KINDS)](rng, most) for index in range(count)]
    return ProblemSet(
        tuple(question for question, _, _ in made),
        tuple(str(answer) for _, _, answer in made),
        tuple("\n".join((*steps, rf"\boxed{{{answer}}}")) for _, steps, answer in made),
    )


def make_divisor(rng: np.random.Generator, most: int) -> Problem:
    """The greatest common divisor, by Euclid's algorithm."""
    factor = int(rng.integers(1, most // 5))
    a, b = sorted((factor * int(n) for n in rng.integers(1, most // factor + 1, 2)), reverse=True)
    steps, x, y = [], a, b
    while y:
        steps.append(f"{x}={x // y}*{y}+{x % y}")
        x, y = y, x % y
    return f"Find the greatest common divisor of {a} and {b}.", steps, x


def make_multiple(rng: np.random.Generator, most: int) -> Problem:
    """The least common multiple of two numbers, by their greatest common divisor."""
    top = 20 if most < 100 else 32
    a, b = (int(n) for n in rng.integers(2, top, 2))
    common = math.gcd(a, b)
    steps = [f"gcd={common}", f"{a}/{common}={a // common}", f"{a // common}*{b}={a // common * b}"]
    return f"Find the least common multiple of {a} and {b}.", steps, math.lcm(a, b)


def make_remainder(rng: np.random.Generator, most: int) -> Problem:
    """The remainder of a power, multiplied up one factor at a time."""
    base = int(rng.integers(2, 10))
    modulus = int(rng.integers(base + 1, 16 if most < 100 else 100))
    exponent = int(rng.integers(2, 6 if most < 100 else 12))
    value, steps = base, []
    for _ in range(exponent - 1):
        product = value * base
        value = product % modulus
        steps.append(f"{product // base}*{base}={product}={value}")
    question = f"Find the remainder when {base}^{exponent} is divided by {modulus}."
    return question, steps, value


def make_count(rng: np.random.Generator, most: int) -> Problem:
    """How many numbers up to n are divisible by one of two others: inclusion and exclusion."""
    a, b = (int(n) for n in rng.permutation(np.arange(2, 8 if most < 100 else 16))[:2])
    n = int(rng.integers(max(a, b), most + 1))
    both = math.lcm(a, b)
    counts = n // a, n // b, n // both
    total = counts[0] + counts[1] - counts[2]
    steps = [f"{n}//{d}={c}" for d, c in zip((a, b, both), counts, strict=True)]
    steps.append(f"{counts[0]}+{counts[1]}-{counts[2]}={total}")
    question = f"How many positive integers up to {n} are divisible by {a} or by {b}?"
    return question, steps, total


def make_series(rng: np.random.Generator, most: int) -> Problem:
    """The sum of consecutive integers, from the first, the last and their number."""
    terms = int(rng.integers(3, 10 if most < 100 else 20))
    first = int(rng.integers(1, (most // 2 if most < 100 else 999 // terms - terms) + 1))
    last = first + terms - 1
    double = (first + last) * terms
    steps = [f"{first}+{last}={first + last}", f"{first + last}*{terms}={double}"]
    steps.append(f"{double}/2={double // 2}")
    return f"Find the sum of the integers from {first} to {last}.", steps, double // 2


KINDS: tuple[Make, ...] = (make_divisor, make_multiple, make_remainder, make_count, make_series)
