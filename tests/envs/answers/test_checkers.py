"""Verdicts on replies: handed cases, rules of extraction, hostile replies."""

import json
import time
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from envs.answers import CHECKERS, Verdict, check_aime, check_gsm8k, check_math, make_checker

VECTORS = Path(__file__).parents[4] / "shared" / "vectors" / "answers.json"
HANDED = json.loads(VECTORS.read_text("utf-8")) if VECTORS.exists() else {}

needs_vectors = pytest.mark.skipif(not HANDED, reason=f"{VECTORS} is not there")


@needs_vectors
@pytest.mark.parametrize("case", HANDED.get("math", []), ids=lambda case: case["pred"][:30])
def test_handed_mathematics(case):
    (verdict,) = check_math([case["gold"]], [case["pred"]])
    assert (verdict == Verdict.RIGHT) == case["right"]


@needs_vectors
@pytest.mark.parametrize("case", HANDED.get("gsm8k", []), ids=lambda case: case["response"][:30])
def test_handed_word_problems(case):
    right = case["right"]
    if isinstance(right, str):  # what the first turn says, before another speaker begins
        assert right.startswith("first-turn answer is 5")
        right = True
    verdict = check_gsm8k(case["gold"], case["response"], flexible=True)
    assert (verdict == Verdict.RIGHT) == right


@pytest.mark.parametrize(
    ("reply", "strict", "flexible"),
    [
        ("#### 5", "RIGHT", "RIGHT"),
        ("####5", "RIGHT", "RIGHT"),
        ("####\n5", "RIGHT", "RIGHT"),
        ("#### 5\n#### 6", "WRONG", "WRONG"),
        ("#### 6\nso #### 5 and done", "RIGHT", "RIGHT"),
        ("#### 2+3=5", "RIGHT", "RIGHT"),
        (r"#### \boxed{5}", "RIGHT", "RIGHT"),
        (r"#### **5.00** dollars", "RIGHT", "RIGHT"),
        ("#### five", "UNREADABLE", "UNREADABLE"),
        ("#### 2+3", "UNREADABLE", "UNREADABLE"),
        ("#### 5 ####", "RIGHT", "RIGHT"),
        ("#### 5 ####\nGood luck!", "RIGHT", "RIGHT"),
        ("#### Answer\n5", "RIGHT", "RIGHT"),
        ("#### Answer\n\n2+3", "UNREADABLE", "UNREADABLE"),
        ("#### Step 5\nadd", "UNREADABLE", "RIGHT"),
        ("#### Step 1\nWe get 4.\n\\boxed{5}", "RIGHT", "RIGHT"),
        ("#### Conclusion\nSo <answer>5</answer>", "RIGHT", "RIGHT"),
        ("it is 5 million", "NO_ANSWER", "WRONG"),
        ("it is 5 squared", "NO_ANSWER", "UNREADABLE"),
        ("#### 5<|im_end|>#### 6", "RIGHT", "RIGHT"),
        ("#### 5\nUser: and now?\n#### 6", "RIGHT", "RIGHT"),
        (r"so \boxed{5} \boxed{6}", "WRONG", "WRONG"),
        (r"\boxed{6} <answer>5</answer>", "WRONG", "WRONG"),
        ("<answer>5</answer>", "RIGHT", "RIGHT"),
        ("<answer>6</answer> <answer> 5 </answer>", "RIGHT", "RIGHT"),
        ("<answer>5", "NO_ANSWER", "RIGHT"),
        ("it is 6 or 5.", "NO_ANSWER", "RIGHT"),
        ("it is 5, altogether", "NO_ANSWER", "RIGHT"),
        ("it is -5", "NO_ANSWER", "WRONG"),
        ("9-5", "NO_ANSWER", "RIGHT"),
        ("5/1", "NO_ANSWER", "WRONG"),
        ("no number", "NO_ANSWER", "NO_ANSWER"),
        ("####", "NO_ANSWER", "NO_ANSWER"),
        ("", "NO_ANSWER", "NO_ANSWER"),
    ],
)
def test_where_a_word_problem_has_its_answer(reply, strict, flexible):
    assert check_gsm8k("5", reply).name == strict
    assert check_gsm8k("5", reply, flexible=True).name == flexible


@pytest.mark.parametrize(
    ("gold", "reply", "verdict"),
    [
        ("025", r"\boxed{25}", "RIGHT"),
        ("25", r"\boxed{025}", "RIGHT"),
        ("25", r"\boxed{m+n=25}", "RIGHT"),
        ("25", r"\boxed{24} no, \boxed{25}", "RIGHT"),
        ("25", r"\boxed{25} no, \boxed{24}", "WRONG"),
        ("25", r"\boxed{25} no, \boxed{24", "NO_ANSWER"),
        ("25", r"\boxed{\text{25}}", "RIGHT"),
        ("25", r"$\boxed{\frac{50}{2}}$", "UNREADABLE"),
        ("25", r"\boxed{12+13}", "UNREADABLE"),
        ("25", r"\boxed{5^2}", "UNREADABLE"),
        ("25", r"\boxed{m+n=12+13}", "UNREADABLE"),
        ("25", r"\boxed{25 \text{ or } 26}", "UNREADABLE"),
        ("25", r"\boxed{\(25\)}", "RIGHT"),
        ("25", r"\boxed{\text{Answer: }25}", "RIGHT"),
        ("25", r"\boxed{\underline{25}}", "RIGHT"),
        ("100", r"\boxed{1e2}", "RIGHT"),
        ("23", r"\boxed{2\ 3}", "UNREADABLE"),
        ("25", r"\fbox{25}", "RIGHT"),
        ("25", r"\boxed{25^\circ}", "RIGHT"),
        ("25", r"\boxed 25", "RIGHT"),
        ("25", r"\boxed{25.5}", "UNREADABLE"),
        ("25", r"\boxed{x}", "UNREADABLE"),
        ("25", r"\boxed{}", "NO_ANSWER"),
        ("25", "25", "NO_ANSWER"),
        ("25", "#### 25", "NO_ANSWER"),
        ("25", r"\boxed{1025}", "WRONG"),
        ("25", r"\boxed{-25}", "WRONG"),
        ("25", r"\boxed{9^{9^{9^9}}}", "UNREADABLE"),
        ("0", r"\boxed{000}", "RIGHT"),
    ],
)
def test_the_answer_of_a_competition_problem_is_its_last_box(gold, reply, verdict):
    assert check_aime(gold, reply).name == verdict


@pytest.mark.parametrize(
    ("gold", "reply", "verdict"),
    [
        ("x+1", "$1+x$", "UNDECIDED"),
        ("x+1", "$x + 1$", "RIGHT"),
        ("12", r"\boxed{1 2}", "UNDECIDED"),
        ("n^R", r"\boxed{n^r}", "UNDECIDED"),
        ("1000000!", r"\boxed{1000000!}", "RIGHT"),
        ("1", r"\boxed{9^{9^{9^9}}}", "UNDECIDED"),
        ("1", r"\boxed{1000000!}", "UNDECIDED"),
        ("5", "I do not know the answer to that, sorry.", "NO_ANSWER"),
        ("5", r"\boxed{I could not say which number it is}", "UNREADABLE"),
        ("B", r"\boxed{(B)}", "RIGHT"),
        ("B", r"The answer is A.", "WRONG"),
        ("5", r"\boxed{\text{no solution}}", "WRONG"),
        ("25", r"\boxed{12+13}", "UNREADABLE"),
        ("25", r"\boxed{12+14}", "WRONG"),
        ("25", r"\boxed{|-25|}", "UNREADABLE"),
        ("25", r"\boxed{\infty}", "WRONG"),
        ("25", "The answer is 5^2.", "UNREADABLE"),
        ("$25$", r"\boxed{\sqrt{625}}", "UNREADABLE"),
        ("3", r"\boxed{\log_2 8}", "UNREADABLE"),
        ("25", "#### 12+13=25", "RIGHT"),
        ("1/2", r"\boxed{\frac{2}{4}}", "RIGHT"),
        ("2^{10}", r"\boxed{1024}", "RIGHT"),
    ],
)
def test_verdicts_without_math_verify(gold, reply, verdict):
    assert Verdict(check_math([gold], [reply])[0]).name == verdict


@hypothesis.given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_integers_are_right_exactly_if_equal(gold, answer):
    expected = Verdict.RIGHT if gold == answer else Verdict.WRONG
    assert check_gsm8k(str(gold), f"so\n#### {answer:,}") is expected
    assert check_gsm8k(f"{gold:,}", f"it is \\boxed{{{answer}}}") is expected
    assert check_math([str(gold)], [f"\\boxed{{{answer}}}"])[0] == expected


HOSTILE = {
    "long": "so we go on " * 8_334,
    "braces": r"\boxed{" + "{" * 50_000 + "}" * 50_000,
    "boxes": r"\boxed{" * 15_000,
    "hashes": "#" * 100_000,
    "digits": "1" * 100_000,
    "commas": "1," * 50_000,
    "signs": "-" * 100_000,
    "dollars": "$1$ " * 25_000,
    "spaces": "####" + " " * 100_000 + "x",
    "stated": "answer" + " " * 100_000,
    "answers": "answer is " * 10_000,
    "tags": "<answer>" * 12_500,
    "letters in a box": r"\boxed{5 " + "a" * 90_000 + "}",
    "a tower": r"\boxed{" + "9^{" * 20_000 + "9" + "}" * 20_001,
    "brackets": "#### " + "(" * 50_000,
    "surrogates": "\udcff\udc80" * 50_000,
    "words after a number": "#### 5" + " ab" * 30_000 + " 7",
    "stars": "#### 5" + "*" * 90_000 + "x",
    "currencies": "#### " + "5$" * 40_000,
    "labels": "#### " + "is (" * 20_000 + "^7",
    "words of a scale": "#### 8 " + "hundred" * 10_000 + "teen 8",
    "zeros": "#### " + "0" * 99_000 + "1",
}


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_replies_take_no_time(checker, reply):
    check = make_checker(checker)
    start = time.process_time()
    (verdict,) = check(["7"], [reply])
    assert time.process_time() - start < 0.5  # a quadratic search would take minutes
    assert verdict != Verdict.RIGHT


@pytest.mark.parametrize("checker", CHECKERS)
@hypothesis.given(replies=st.lists(st.text(), max_size=4))
@hypothesis.settings(max_examples=50)
def test_any_reply_has_a_verdict(checker, replies):
    verdicts = make_checker(checker)(["5"] * len(replies), replies)
    assert verdicts.shape == (len(replies),)
    assert set(verdicts.tolist()) <= set(Verdict)


def test_a_gold_answer_must_be_of_the_checkers_kind():
    with pytest.raises(ValueError, match="gold answer must be a number, not 'many'"):
        check_gsm8k("many", "#### 5")
    with pytest.raises(ValueError, match=r"gold answer must be an integer, not '2\.5'"):
        check_aime("2.5", r"\boxed{5}")
    with pytest.raises(ValueError, match=r"checker must be one of .*, not 'best'"):
        make_checker("best")
