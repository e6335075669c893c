"""What answers are equal, however they are written."""

from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import pytest

from envs.answers.forms import TooLarge, Unreadable, read
from envs.answers.normalise import normalise

SAME = [
    ("1,080", "1080"),
    ("1 080", "1080"),
    ("1{,}080", "1080"),
    ("$70,000", "70000"),
    (r"\$70{,}000.00", "70000"),
    ("−12", "-12"),
    ("**12**", "12"),
    ("016", "16"),
    ("50%", r"50\%"),
    ("½", r"\frac12"),
    ("2½", "5/2"),
    (r"2\frac{1}{2}", "2.5"),
    ("2 1/2", "5/2"),
    (r"\dfrac{3}{4}", r"\tfrac34"),
    ("10√3", r"10\sqrt{3}"),
    (r"\sqrt{300}", "10√{3}"),
    (r"\frac{2}{\sqrt{2}}", r"\sqrt 2"),
    ("2π", r"2 \pi"),
    (r"145^{\circ}", "145°"),
    ("145 degrees", "145"),
    ("12cm", r"12\text{ cm}"),
    ("12 cm^2", "12cm²"),
    ("3 km/h", "3"),
    ("3海里", "3"),
    ("7 red apples", "7"),
    ("m+n=25", "25"),
    ("12*45=540", "540"),
    (r"x \in [1, 2)", r"1 \leq x < 2"),
    (r"2 > x \ge 1", "[1,2)"),
    ("x < 3", r"(-\infty, 3)"),
    (r"3 \le y", r"y \in [3, \infty)"),
    (r"\{1, 2\}", r"\{2, 1\}"),
    ("1, 2", "2 and 1"),
    ("x=1 or x=2", r"1 \text{ or } 2"),
    ("(A)", r"\text{a}"),
    ("No solution.", "no solution"),
]
DIFFERENT = [
    ("12", "12x"),
    ("1", "-1"),
    ("10√3", "10"),
    ("2π", "2"),
    (r"4\sqrt(2)", "4"),
    ("0.000001", "0.0000014"),
    ("(1, 2)", "(2, 1)"),
    ("(1, 2)", "[1, 2]"),
    (r"\{1, 2\}", "(1, 2)"),
    ("1, 1", "1"),
    ("x < 3", r"x \le 3"),
    ("A", "B"),
    ("1.000", "1000"),
    ("6", "2 3"),
    ("12", "1 2"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
]


def read_or_none(text):
    try:
        return read(text)
    except (Unreadable, TooLarge):
        return None


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_answers(one, other):
    assert read(one) == read(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_answers(one, other):
    assert read(one) != read_or_none(other)


@pytest.mark.parametrize(
    "text", ["", "x+1", r"1, 2, \ldots, n", r"\log 2", "72, altogether", "y = 2x", r"x \ne 2", "{"]
)
def test_other_mathematics_is_unreadable(text):
    with pytest.raises(Unreadable):
        read(text)


def renderings(value):
    """Ways to write a fraction, each for those that it can write."""
    n, d = value.numerator, value.denominator
    sign, size = "-" if n < 0 else "", abs(n)
    ways = [f"{n}/{d}", rf"{sign}\frac{{{size}}}{{{d}}}", rf"${sign}\dfrac{{{size}}}{{{d}}}$"]
    ways += [rf"{sign}\tfrac {{{size}}} {{{d}}}", f"x = {n}/{d}", f"−{size}/{d}"[n >= 0 :]]
    if size > d > 1:
        ways += [
            rf"{sign}{size // d}\frac{{{size % d}}}{{{d}}}",
            f"{sign}{size // d} {size % d}/{d}",
        ]
    if d == 1:
        ways += [f"{n:,}", f"{sign}00{size}", f"{n}.0", rf"\text{{{n}}}", f"**{n}**", f"{n} cm"]
        ways += [f"{n:,}".replace(",", "{,}"), f"{sign}${size:,}", rf"{n}^\circ", f"{n}%", f"{n}."]
    if 10**6 % d == 0:
        digits = str(int(abs(value) * 10**6)).rjust(7, "0")
        ways.append(f"{sign}{digits[:-6]}.{digits[-6:]}")
    return ways


@hypothesis.given(st.data(), st.fractions(-(10**7), 10**7, max_denominator=1000))
def test_a_fraction_is_read_from_all_its_renderings(data, fraction):
    for text in renderings(fraction):
        assert read(text) == read(f"({fraction.numerator})/({fraction.denominator})"), text


@hypothesis.given(
    st.data(),
    st.fractions(-1000, 1000, max_denominator=100),
    st.sampled_from((Fraction(1), Fraction(-1), Fraction(1, 100), Fraction(1, 999))),
)
def test_a_perturbed_fraction_is_another(data, fraction, change):
    one = data.draw(st.sampled_from(renderings(fraction)))
    other = data.draw(st.sampled_from(renderings(fraction + change)))
    assert read(one) != read(other)


@hypothesis.given(st.text(max_size=300))
@hypothesis.example("\ud800\udfff 5")
@hypothesis.example("{" * 300)
def test_any_text_is_read_or_refused(text):
    normalise(text)
    read_or_none(text)
