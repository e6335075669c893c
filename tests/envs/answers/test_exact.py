"""Exact values against Python's fractions and floats."""

import math
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import pytest

from envs.answers.exact import TooLarge, Unreadable, evaluate

numbers = st.integers(0, 10**12)
small = st.fractions(min_value=-50, max_value=50, max_denominator=30)


def value(text):
    """The value of a rational expression as a Fraction."""
    terms = dict(evaluate(text))
    assert set(terms) <= {(1, 0)}
    return terms.get((1, 0), Fraction(0))


def as_float(text):
    return sum(float(c) * math.sqrt(n) * math.pi**k for (n, k), c in dict(evaluate(text)).items())


@st.composite
def expressions(draw, depth=3):
    """A text and what Python says that it is, as a Fraction."""
    if depth == 0 or draw(st.booleans()):
        number = draw(st.integers(0, 99))
        return str(number), Fraction(number)
    (a, x), (b, y) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    sign = draw(st.sampled_from(("+", "-", "*", "/", r"\cdot", "frac")))
    if sign in ("/", "frac") and y == 0:
        sign = "+"
    text = rf"\frac{{{a}}}{{{b}}}" if sign == "frac" else f"({a}) {sign} ({b})"
    result = {"+": x + y, "-": x - y}.get(sign)
    if result is None:
        result = x / y if sign in ("/", "frac") else x * y
    return text, result


@hypothesis.given(expressions())
def test_arithmetic_is_that_of_fractions(expression):
    text, expected = expression
    assert value(text) == expected


@hypothesis.given(numbers, st.integers(0, 999_999))
def test_decimals(whole, digits):
    assert value(f"{whole}.{digits:06}") == whole + Fraction(digits, 10**6)


@hypothesis.given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_roots_multiply(a, b):
    assert evaluate(rf"\sqrt{{{a}}}\sqrt{{{b}}}") == evaluate(rf"\sqrt{{{a * b}}}")
    assert evaluate(rf"\sqrt{{{a}}}^2") == evaluate(str(a))
    assert math.isclose(as_float(f"sqrt({a})"), math.sqrt(a), rel_tol=1e-12)


@hypothesis.given(small, st.integers(2, 10**5), st.integers(-3, 3))
def test_terms_agree_with_floats(c, n, k):
    text = rf"{c.numerator}*\sqrt{{{n}}}*\pi^{{{k}}}/{c.denominator}"
    expected = float(c) * math.sqrt(n) * math.pi**k
    assert math.isclose(as_float(text), expected, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2^3^2", 512),
        ("-2^2", -4),
        ("2^{-2}", Fraction(1, 4)),
        ("4^(1/2)", 2),
        ("1e3", 1000),
        ("5!", 120),
        ("3!!", 720),
        ("--5", 5),
        ("2(3)(4)", 24),
        ("6/2*3", 9),
        (r"1.5 \times 10^{3}", 1500),
        (".5", Fraction(1, 2)),
        ("0^2", 0),
        ("2004!/2003!", 2004),
    ],
)
def test_conventions(text, expected):
    assert value(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1/0",
        "0^0",
        "(1",
        "1)",
        "2+",
        "/3",
        "5%",
        r"\sqrt",
        r"\sqrt{-1}",
        "1..2",
        "2 3",
    ],
)
def test_what_is_no_number_is_unreadable(text):
    with pytest.raises(Unreadable):
        evaluate(text)


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^9}}",
        "1000000!",
        "10^100000",
        "9" * 5000,
        "1e99999",
        "(" * 200 + "1" + ")" * 200,
        "^".join("2" * 60),
    ],
)
def test_what_is_too_large_is_left(text):
    with pytest.raises(TooLarge):
        evaluate(text)
