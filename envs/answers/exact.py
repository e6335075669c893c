r"""Exact values of written numbers: sums of terms `c * sqrt(n) * pi^k` with rational c.

These are closed under what school mathematics writes most: fractions, decimals, surds, powers,
multiples of pi. Two such numbers are equal exactly if their terms are.
"""

import math
import re
from collections.abc import Mapping
from fractions import Fraction

Terms = Mapping[tuple[int, int], Fraction]  # (square-free n, k) -> c, no c being 0

MAX_BITS = 1 << 15  # of an integer that is worked out
MAX_DIGITS = 4000  # of a number as written; Python itself refuses more than 4300
MAX_DEPTH = 40
MAX_FACTORIAL = 3000
_MAX_RADICAND = 10**12

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?)"
    r"|(?P<name>\\[dt]?frac|\\sqrt|√|sqrt|\\pi|pi|π|\\infty)(?![A-Za-z])"
    r"|(?P<times>\\cdot|\\times)(?![A-Za-z])"
    r"|(?P<sign>[-+*/^!(){}\[\]]))"
)
_CLOSING = {"(": ")", "{": "}"}


class Unreadable(ValueError):
    """The text is not a number of the kind that is worked out here."""


class TooLarge(ValueError):
    """The number is too large to be worked out."""


def rational(value: int | Fraction) -> dict[tuple[int, int], Fraction]:
    """Returns the terms of a rational number."""
    return {(1, 0): Fraction(value)} if value else {}


def evaluate(text: str) -> frozenset[tuple[tuple[int, int], Fraction]]:
    r"""Returns the terms of a written number, in plain notation or LaTeX.

    Args:
        text: digits, decimals, `1e3`, `+ - * / ^ !`, brackets, `\frac`, `\sqrt`, `√`, `\pi`;
            factors may stand side by side.

    Raises:
        Unreadable: the text is something else, or its value is no such sum of terms;
        TooLarge: a number takes more than `MAX_BITS` bits, or brackets nest too deeply.
    """
    reader = _Reader(_tokens(text))
    terms = reader.sum(0)
    if reader.place != len(reader.tokens):
        raise Unreadable(text)
    return frozenset(terms.items())


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, place = [], 0
    text = text.strip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None or found.lastgroup is None:
            raise Unreadable(text)
        tokens.append((found.lastgroup, found[found.lastgroup]))
        place = found.end()
    if not tokens:
        raise Unreadable(text)
    return tokens


class _Reader:
    """A recursive-descent parser: a sum of products of signed powers."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.place = 0

    def sum(self, depth: int) -> Terms:
        if depth > MAX_DEPTH:
            raise TooLarge("brackets nest too deeply")
        total = self.product(depth)
        while self.peek() in ("+", "-"):
            sign = -1 if self.take() == "-" else 1
            total = add(total, self.product(depth), sign)
        return total

    def product(self, depth: int) -> Terms:
        total = self.signed(depth)
        while True:
            sign = self.peek()
            if sign in ("*", "/"):
                self.take()
                factor = self.signed(depth)
                total = divide(total, factor) if sign == "/" else multiply(total, factor)
            elif self.begins_factor() and not self.parts_digits():
                total = multiply(total, self.power(depth))
            else:
                return total

    def signed(self, depth: int) -> Terms:
        minus = False
        while self.peek() in ("+", "-"):
            minus ^= self.take() == "-"
        value = self.power(depth)
        return negate(value) if minus else value

    def power(self, depth: int) -> Terms:
        if depth > MAX_DEPTH:
            raise TooLarge("powers nest too deeply")
        base = self.atom(depth)
        while self.peek() == "!":
            self.take()
            base = factorial(base)
        if self.peek() != "^":
            return base
        self.take()
        minus = self.peek() == "-"
        if minus:
            self.take()
        exponent = self.power(depth + 1)  # towers are read from the top
        return raise_to(base, negate(exponent) if minus else exponent)

    def atom(self, depth: int) -> Terms:
        kind, text = self.next()
        if kind == "number":
            return _written(text)
        if text in _CLOSING:
            value = self.sum(depth + 1)
            self.expect(_CLOSING[text])
            return value
        if text.endswith("frac"):
            return divide(self.argument(depth), self.argument(depth))
        if text in (r"\sqrt", "√", "sqrt"):
            if self.peek() == "[":
                raise Unreadable("a root that is not square")
            return square_root(self.argument(depth))
        if text in (r"\pi", "pi", "π"):
            return {(1, 1): Fraction(1)}
        raise Unreadable(text)

    def argument(self, depth: int) -> Terms:
        if self.peek() in _CLOSING or self.begins_factor():
            return self.atom(depth + 1)
        raise Unreadable("an argument is missing")

    def begins_factor(self) -> bool:
        if self.place == len(self.tokens):
            return False
        kind, text = self.tokens[self.place]
        return (kind == "name" and text != r"\infty") or kind == "number" or text in _CLOSING

    def parts_digits(self) -> bool:
        """Whether the next token is a number, and the last was: `2 3` is no product."""
        return [kind for kind, _ in self.tokens[self.place - 1 : self.place + 1]] == ["number"] * 2

    def peek(self) -> str | None:
        if self.place == len(self.tokens):
            return None
        kind, text = self.tokens[self.place]
        return "*" if kind == "times" else text if kind == "sign" else None

    def take(self) -> str:
        sign = self.peek()
        self.place += 1
        return sign or ""

    def next(self) -> tuple[str, str]:
        if self.place == len(self.tokens):
            raise Unreadable("the number ends early")
        self.place += 1
        return self.tokens[self.place - 1]

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            raise Unreadable(f"{sign} is missing")
        self.place += 1


def add(a: Terms, b: Terms, sign: int = 1) -> Terms:
    """Returns a + sign * b."""
    total = dict(a)
    for key, value in b.items():
        total[key] = total.get(key, Fraction(0)) + sign * value
    return _checked({key: value for key, value in total.items() if value})


def negate(a: Terms) -> Terms:
    """Returns -a."""
    return {key: -value for key, value in a.items()}


def multiply(a: Terms, b: Terms) -> Terms:
    """Returns a * b."""
    if len(a) * len(b) > 64:
        raise TooLarge("too many terms")
    total: Terms = {}
    for (n, j), c in a.items():
        for (m, k), d in b.items():
            common = math.gcd(n, m)  # sqrt(n) sqrt(m) = common sqrt(n m / common^2)
            key = (n // common * (m // common), j + k)
            total = add(total, {key: _product(c * common, d)})
    return total


def divide(a: Terms, b: Terms) -> Terms:
    """Returns a / b for a `b` of one term; Unreadable otherwise."""
    if len(b) != 1:
        raise Unreadable("division by zero or by a sum with roots")
    ((n, k), c) = next(iter(b.items()))
    return multiply(a, {(n, -k): 1 / (c * n)})


def square_root(a: Terms) -> Terms:
    """Returns the square root of a rational number; Unreadable otherwise."""
    value = _as_rational(a)
    if value < 0:
        raise Unreadable("the root of a negative number")
    radicand = value.numerator * value.denominator
    if radicand > _MAX_RADICAND:
        outer, radicand = math.isqrt(radicand), 1 if _is_square(radicand) else 0
        if not radicand:
            raise Unreadable("the root of a large number")
    else:
        outer, radicand = _square_part(radicand)
    return {(radicand, 0): Fraction(outer, value.denominator)} if value else {}


def raise_to(base: Terms, exponent: Terms) -> Terms:
    """Returns base ** exponent, for an exponent that is an integer or 1/2."""
    power = _as_rational(exponent)
    if power == Fraction(1, 2):
        return square_root(base)
    if power.denominator != 1:
        raise Unreadable("a root that is not square")
    if not base:
        if power <= 0:
            raise Unreadable("a power of zero")
        return base
    count = abs(power.numerator)
    bits = max(_bits(value) + n.bit_length() for (n, _), value in base.items())
    if bits * count > MAX_BITS or (len(base) > 1 and count > 16):
        raise TooLarge("a large power")
    if len(base) == 1:
        ((n, k), c) = next(iter(base.items()))
        value = c**count * n ** (count // 2)
        total: Terms = {(n if count % 2 else 1, k * count): value}
    else:
        total = rational(1)
        for _ in range(count):
            total = multiply(total, base)
    return divide(rational(1), total) if power < 0 else total


def factorial(a: Terms) -> Terms:
    """Returns a! of an integer from 0 to `MAX_FACTORIAL`."""
    value = _as_rational(a)
    if value.denominator != 1 or value < 0:
        raise Unreadable("the factorial of what is no whole number")
    if value > MAX_FACTORIAL:
        raise TooLarge("a large factorial")
    return rational(math.factorial(int(value)))


def _written(text: str) -> Terms:
    if len(text) > MAX_DIGITS:
        raise TooLarge("too many digits")
    _, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > 1000:
        raise TooLarge("a large power of ten")
    return rational(Fraction(text))


def _as_rational(a: Terms) -> Fraction:
    if not set(a) <= {(1, 0)}:
        raise Unreadable("expected a rational number")
    return a.get((1, 0), Fraction(0))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _product(a: Fraction, b: Fraction) -> Fraction:
    if _bits(a) + _bits(b) > 2 * MAX_BITS:
        raise TooLarge("a large product")
    return a * b


def _checked(terms: Terms) -> Terms:
    if any(_bits(value) > 2 * MAX_BITS for value in terms.values()):
        raise TooLarge("a large sum")
    return terms


def _is_square(value: int) -> bool:
    return math.isqrt(value) ** 2 == value


def _square_part(value: int) -> tuple[int, int]:
    """Returns (s, n) with value = s * s * n and n square-free."""
    outer, inner, prime = 1, 1, 2
    while prime**3 <= value:
        while value % (prime * prime) == 0:
            value //= prime * prime
            outer *= prime
        if value % prime == 0:
            value //= prime
            inner *= prime
        prime += 1
    # What is left has at most two prime factors.
    root = math.isqrt(value)
    return (outer * root, inner) if root * root == value else (outer, inner * value)
