"""What counts as one number that is written, and what has still to be worked out."""

from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import pytest

from envs.answers import check_aime, check_gsm8k
from envs.answers.literal import read_literal

EIGHTEEN = [
    "18", "018", "+18", "18.", "18.0", "0.18e2", "1.8e1", "$18", r"\$18.00", "£18", "USD 18",
    "US$18", "18 USD", "Rs. 18", "18%", "18 percent", "18°", "`18`", "**18**", "***18***",
    "*18*", '"18"', r"18 \\",
    "(18)", r"\(18\)", r"\[18\]", "$$18$$", "<answer>18</answer>", r"\boxed{18}", r"\text{18}",
    r"\underline{18}", r"\color{blue}{18}", "18 ✅", "Answer: 18", "**Answer:** 18",
    "The answer is 18", "The total is **18**.", r"Final Answer: $\boxed{18}$", "x = 18",
    "9*2=18", "18 apples", "18 apples and 3 pears", "18 dollars in 3 days", "18 y y y", "18cm",
    "18 cm^2", "18 km/h", "18 m^{2}", "18m2",
    "$18/day", "18海里", "18 (apples)", "18, in total, so it is",
    "18. Check: x, y.", "18 of them", "18 - that is it", "18 or so",
]  # fmt: skip
NOT_EIGHTEEN = [
    "9*2", r"9 \times 2", r"9 \cdot 2", "9 × 2", "3+15", "20-2", "20 - 2", "36/2", r"\frac{36}{2}",
    "18/1", "18^1", "18!", "9**2", "2(9)", "(9)(2)", r"\sqrt{324}", "|18|", "--18", "-(-18)",
    "10+8 apples", "10 apples + 8 apples", "Total: 9*2", "The answer is 10+8", "18=9*2",
    "18 million", "18k", "18 dozen", "18 hundred", "18% of 20", "18 minus 2", "18 plus two",
    "18 squared", "18x + 2", "18x", "18 x 2", "18 n^2",
    "18pi", "18 pi", "18 times 2", "18 and a half",
    "18 hours and 30 minutes", "18 dollars and 50 cents", "18 feet 6 inches",
    "18 1/2", r"18\frac{1}{2}", r"18.\overline{3}", "18 > 17", "x > 18", "x >= 18", r"x \ge 18",
    r"x \ne 18", "18 or 20", "18 apples or 20 apples", "18, 20", "18,20", "18; 20", "18|19",
    "18:20", "18-20", "18 to 20", "1 8", r"1\ 8", r"1\,8", "1$8", "1%8", "1,8", "18.0.0",
    "not 18", "x = 17, y = 18", "eighteen", "1e", "",
]  # fmt: skip


@pytest.mark.parametrize("text", EIGHTEEN)
def test_one_number_with_what_belongs_to_it_counts(text):
    assert read_literal(text) == 18
    assert check_gsm8k("18", f"so\n#### {text}").name == "RIGHT"


@pytest.mark.parametrize("text", NOT_EIGHTEEN)
def test_what_is_worked_out_or_goes_on_is_not_that_number(text):
    assert read_literal(text) != 18
    for flexible in (False, True):
        if text != "not 18":  # whose last number it is
            assert check_gsm8k("18", f"so\n#### {text}", flexible=flexible).name != "RIGHT"
    assert check_aime("18", rf"so \boxed{{{text}}}").name != "RIGHT"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18 million", 18_000_000),
        ("1.8k", 1800),
        ("$2 billion dollars", 2 * 10**9),
        ("18 dozen eggs", 216),
        ("5 hundred", 500),
        ("3 thousand", 3000),
        ("1 080", 1080),
        (r"1\,080", 1080),
        (r"1{,}080.50", Fraction(2161, 2)),
        ("−12", -12),
        ("-$12", -12),
        ("1e-2", Fraction(1, 100)),
        ("3/4", Fraction(3, 4)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        ("½", Fraction(1, 2)),
        ("6/8", None),
        ("4/1", None),
        ("1/0", None),
        ("1.5/2", None),
        ("1/2/3", None),
        ("1" * 1001, None),
        ("1e1000", None),
    ],
)
def test_values(text, value):
    assert read_literal(text) == value


def test_other_numbers_may_follow_unless_it_must_stand_alone():
    assert read_literal("5 apples and 3 pears") == 5
    assert read_literal("5 apples and 3 pears", alone=True) is None


@hypothesis.given(
    st.integers(1, 999), st.sampled_from(["+", "-", "*", "/", "^", r" \cdot ", " × "]), st.data()
)
def test_no_operation_is_paid_whatever_it_comes_to(a, sign, data):
    b = data.draw(st.integers(1, 9))
    value = {"+": a + b, "-": a - b, "/": Fraction(a, b), "^": a**b}.get(sign, a * b)
    for text in (f"{a}{sign}{b}", f"({a}){sign}({b})", f"{a} {sign} {b}"):
        if sign == "/" and b > 1 and value.denominator == b and "(" not in text:
            assert read_literal(text) == value
        else:
            assert read_literal(text) is None


@hypothesis.given(st.text(max_size=200))
def test_any_text_has_a_value_or_none(text):
    assert isinstance(read_literal(text), Fraction | None)
