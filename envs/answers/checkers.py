r"""Checkers of replies: GSM8K, AIME, and general mathematics.

The first two take one number as it is written (`envs.answers.literal`), in microseconds where
it is written plainly. The third tries, in this order, equal text, equal numbers, equal values
(`envs.answers.forms`), and math-verify; where the gold answer is an integer, so must be what the
reply gives, with nothing left to work out.
"""

import functools
import re
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from envs.answers import extract
from envs.answers.forms import Form, TooLarge, Unreadable, Words, read
from envs.answers.literal import read_literal
from envs.answers.math_verify_pool import MathVerifyPool
from envs.answers.normalise import MAX_ANSWER, normalise, squeezed
from envs.answers.verdict import Checker, Verdict

CHECKERS = ("gsm8k", "gsm8k_flexible", "aime", "math")

_PLAIN_LINE = re.compile(r"[ \t]*\$?(-?(?:\d{1,3}(?:,\d{3})+|\d{1,18}))[ \t]*\.?[ \t]*(?:\n|\Z)")
_HEADING = re.compile(
    r"\D*\Z|[*_]*(?:case|example|method|part|phase|problem|question|section|stage|step) \d",
    re.IGNORECASE,
)
_ANSWER_HEADING = re.compile(r"[*_]*(?:the )?(?:final )?(?:answer|result|total)\W*", re.IGNORECASE)
_MAX_DIGITS = 1000
_LARGEST_AIME = 999

# What math-verify does not tell apart reliably: it would call different answers equal.
_UNRELIABLE = re.compile(
    r"\\(?:[lcvd]?dots|sum|prod|int|forall|exists|binom)(?![A-Za-z])|\.\.\.|!|\\mathrm"
)
_PROSE = re.compile(r"(?<![\\A-Za-z])(?!(?:sin|cos|tan|log|exp|sqrt)(?![a-z]))[A-Za-z]{3,}")
_SENTENCE_END = re.compile(r"[.,;:!?](?=\s|$)")
_LONGEST_VERIFIED = 300
# What is still to be worked out, which is not paid where the gold answer is an integer.
_OPERATION = re.compile(r"[*+/^!|]|[\w)}\]]\s*-|\)\s*\(|\d\s*\(|\\(?!(?:text|pmod|in)\b)[A-Za-z]")


def make_checker(name: str, *, pool: MathVerifyPool | None = None) -> Checker:
    """Makes a checker of `CHECKERS`.

    Args:
        name: `gsm8k` takes the number after the last `####`, else in the last box, else in the
            last `<answer>`; `gsm8k_flexible` else the last number; `aime` takes the last box;
            `math` takes any of these and mathematics beyond numbers.
        pool: for `math`, the last stage; without one what needs it is undecided.

    Raises:
        ValueError: the name is unknown.
    """
    if name == "gsm8k":
        return _each(check_gsm8k)
    if name == "gsm8k_flexible":
        return _each(functools.partial(check_gsm8k, flexible=True))
    if name == "aime":
        return _each(check_aime)
    if name == "math":
        return functools.partial(check_math, pool=pool)
    raise ValueError(f"checker must be one of {CHECKERS}, not {name!r}")


def check_gsm8k(gold: str, reply: str, *, flexible: bool = False) -> Verdict:
    """Compares the number that a reply ends in with a gold number.

    Only a number as it is written counts, see `envs.answers.literal`; nothing is worked out.

    Raises:
        ValueError: the gold answer is no number.
    """
    reply = extract.own_turn(reply)
    start = reply.rfind("####")
    plain = _PLAIN_LINE.match(reply, start + 4) if start >= 0 else None
    if plain:
        value: int | Fraction | None = int(plain[1].replace(",", ""))
    else:
        answer = _word_problem_answer(reply, flexible)
        if not answer:
            return Verdict.NO_ANSWER
        value = read_literal(answer)
        if value is None:
            return Verdict.UNREADABLE
    return Verdict.RIGHT if value == _gold_number(gold) else Verdict.WRONG


def check_aime(gold: str, reply: str) -> Verdict:
    """Compares the integer in the last box of a reply with a gold integer from 0 to 999.

    As in `check_gsm8k`, nothing is worked out.

    Raises:
        ValueError: the gold answer is no integer.
    """
    reply = extract.own_turn(reply)
    answer = extract.last_boxed(reply)
    if not answer:
        return Verdict.NO_ANSWER
    if answer.isdecimal() and len(answer) < _MAX_DIGITS:
        value: int | Fraction | None = int(answer)
    else:
        value = read_literal(answer, alone=True) if len(answer) <= MAX_ANSWER else None
        if value is None or value.denominator != 1:
            return Verdict.UNREADABLE
    right = value == _gold_integer(gold) and 0 <= value <= _LARGEST_AIME
    return Verdict.RIGHT if right else Verdict.WRONG


def check_math(
    golds: Sequence[str], replies: Sequence[str], *, pool: MathVerifyPool | None = None
) -> np.ndarray:
    """Compares replies [B] with gold answers [B]; returns verdicts [B] int8.

    What only math-verify can tell goes to the pool, all rows together.
    """
    verdicts = np.zeros(len(golds), np.int8)
    rows, pairs = [], []
    for row, (gold, reply) in enumerate(zip(golds, replies, strict=True)):
        verdict, answer = compare(gold, reply)
        verdicts[row] = verdict
        if verdict is Verdict.UNDECIDED and answer:
            rows.append(row)
            pairs.append((_bare(gold), _bare(answer)))
    if pool is not None:
        verdicts[rows] = pool.verify(pairs)
    return verdicts


def compare(gold: str, reply: str) -> tuple[Verdict, str]:
    """Compares by text and by value.

    Returns:
        The verdict, and where it is `UNDECIDED` the answer for math-verify to look at, which
        is empty where math-verify is no help.
    """
    answer, form = find_answer(extract.own_turn(reply))
    if not answer:
        return Verdict.NO_ANSWER, ""
    gold_form = _read_gold(gold)
    if len(answer) <= MAX_ANSWER and squeezed(normalise(gold)) == squeezed(normalise(answer)):
        return Verdict.RIGHT, ""
    if isinstance(form, TooLarge) or isinstance(gold_form, TooLarge):
        return Verdict.UNDECIDED, ""
    integer = _written_integer(gold)
    value = read_literal(answer, alone=True) if integer is not None else None
    if value is not None and len(answer) <= MAX_ANSWER:
        return (Verdict.RIGHT if value == integer else Verdict.WRONG), ""
    if form is not None and gold_form is not None:
        if form != gold_form:
            return Verdict.WRONG, ""
        return (Verdict.RIGHT if integer is None else Verdict.UNREADABLE), ""
    # An answer in words is equal to no number, and the other way round.
    if isinstance(form, Words) or isinstance(gold_form, Words):
        return Verdict.WRONG, ""
    if integer is not None and _OPERATION.search(normalise(answer)):
        return Verdict.UNREADABLE, ""
    if _UNRELIABLE.search(gold) or _UNRELIABLE.search(answer):
        return Verdict.UNDECIDED, ""
    if len(answer) > _LONGEST_VERIFIED or _PROSE.search(answer):
        return Verdict.UNREADABLE, ""
    return Verdict.UNDECIDED, answer


def find_answer(reply: str) -> tuple[str | None, Form | TooLarge | None]:
    r"""Returns the answer that a reply gives and its form, if it has one.

    A box, `####` or `<answer>` is taken whatever it holds; without these, what follows
    `answer is`, else the reply itself, if it is mathematics; else the last formula between
    dollars or the last number, whichever stands later.
    """
    for find in (extract.last_boxed, extract.after_hashes, extract.last_tagged):
        marked = find(reply)
        if marked is not None:
            return marked, _form(marked)
    whole, stated = reply.strip(), extract.last_stated(reply)
    cut = _SENTENCE_END.split(stated, maxsplit=1)[0] if stated else None
    for answer in (stated, cut, whole):
        form = _form(answer) if answer else None
        if form is not None:
            return answer, form
        if answer and len(answer) <= _LONGEST_VERIFIED and not _PROSE.search(answer):
            return answer, None
    # Whichever stands last; a number inside of a formula is part of it.
    formula, number = extract.last_formula(reply), extract.last_number(reply)
    if formula and not (number and number in reply[reply.rfind(formula) + len(formula) :]):
        return formula, _form(formula)
    return number, _form(number) if number else None


def _each(check) -> Checker:
    """Makes a checker of batches from one of single replies."""

    def check_batch(golds: Sequence[str], replies: Sequence[str]) -> np.ndarray:
        return np.array([check(g, r) for g, r in zip(golds, replies, strict=True)], np.int8)

    return check_batch


def _word_problem_answer(reply: str, flexible: bool) -> str | None:
    """Returns the text after `####`, in the last box, or in the last `<answer>`.

    In Markdown `####` opens a heading; one that is no answer is passed over if there is one
    elsewhere.
    """
    line = extract.after_hashes(reply)
    if line and not _HEADING.match(line):
        return line
    for find in (extract.last_boxed, extract.last_tagged):
        marked = find(reply)
        if marked is not None:
            return marked
    below = extract.below_hashes(reply) if line and _ANSWER_HEADING.fullmatch(line) else None
    number = extract.last_number(reply, word=True) if flexible else None
    return below or number or line


@functools.lru_cache(maxsize=1 << 16)
def _gold_number(gold: str) -> Fraction:
    value = read_literal(gold, alone=True) if len(gold) <= MAX_ANSWER else None
    if value is None:
        raise ValueError(f"gold answer must be a number, not {gold[:80]!r}")
    return value


@functools.lru_cache(maxsize=1 << 16)
def _gold_integer(gold: str) -> int:
    value = _gold_number(gold)
    if value.denominator != 1:
        raise ValueError(f"gold answer must be an integer, not {gold[:80]!r}")
    return int(value)


@functools.lru_cache(maxsize=1 << 14)
def _written_integer(gold: str) -> int | None:
    value = read_literal(extract.last_boxed(gold) or gold, alone=True)
    return int(value) if value is not None and value.denominator == 1 else None


@functools.lru_cache(maxsize=1 << 14)
def _read_gold(gold: str) -> Form | TooLarge | None:
    boxed = extract.last_boxed(gold)
    return _form(boxed if boxed else gold)


def _form(text: str) -> Form | TooLarge | None:
    """Returns the form of a text, None if it has none, the error if a number is too large."""
    if len(text) > MAX_ANSWER:
        return None
    try:
        return read(text)
    except Unreadable:
        return None
    except TooLarge as error:
        return error


def _bare(text: str) -> str:
    """Returns LaTeX without the box and the dollars around it."""
    boxed = extract.last_boxed(text)
    return (boxed if boxed else text).strip().strip("$").strip()
