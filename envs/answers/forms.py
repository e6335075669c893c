r"""Answers as values that can be compared: numbers, words, and groups of them.

`read` knows exact numbers (see `envs.answers.exact`), infinity, tuples, intervals, sets, lists
and words. An inequality is read as the interval it stands for, and of an equation the right-hand
side counts.
"""

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from envs.answers.exact import TooLarge, Unreadable, evaluate
from envs.answers.normalise import normalise, without_unit

__all__ = ["Form", "Group", "Number", "TooLarge", "Unreadable", "Words", "read"]

_VARIABLE = re.compile(r"(?:[A-Za-z]|\\[a-z]+)(?:_\{?\w+\}?)?(?:\([A-Za-z]\))?")
_RELATION = re.compile(r"(<=|>=|\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>)")
_MEMBER = re.compile(r"(?:[A-Za-z](?:_\{?\w+\}?)?)\s*\\in(?![A-Za-z])\s*")
_WORDS = re.compile(r"[A-Za-z]+(?:[ '-][A-Za-z]+)*\.?")
_SEPARATOR = re.compile(r"[,;]|\band\b|\bor\b")
_OPENING, _CLOSING = "([{⟦", ")]}⟧"
_MAX_ITEMS = 64


@dataclass(frozen=True)
class Number:
    """A number as its terms; `infinite` is 1 or -1 for an infinity, which has none."""

    terms: frozenset[tuple[tuple[int, int], Fraction]]
    infinite: int = 0


@dataclass(frozen=True)
class Words:
    """An answer in words, such as the letter of a choice; case does not matter."""

    text: str


@dataclass(frozen=True)
class Group:
    """Several answers, of which order counts only in `items`.

    brackets: as written, such as `[)`; `{}` for a set, nothing for a list.
    items: those of a tuple or an interval, in order.
    counts: those of a set or a list, each with how often it occurs.
    """

    brackets: str
    items: tuple["Form", ...] = ()
    counts: frozenset[tuple["Form", int]] = frozenset()


Form = Number | Words | Group


def read(text: str, *, words: int = 4) -> Form:
    """Returns the value of an answer as it is written.

    Args:
        text: the answer alone.
        words: how many words an answer in words may have.

    Raises:
        Unreadable: it is none of the forms known here; TooLarge: a number is too large.
    """
    return _read(normalise(text), words)


def _read(text: str, words: int) -> Form:
    text = _MEMBER.sub("", text, count=1).strip()
    if not text:
        raise Unreadable(text)
    for part in (text, without_unit(text)):
        try:
            return _number(part)
        except Unreadable:
            continue
    inside = _inside_brackets(text)
    items = _split(inside or text)
    if len(items) > 1 or (inside is not None and text[0] in "[⟦"):
        return _group(text[0] + text[-1] if inside is not None else "", items)
    if _RELATION.search(text):
        return _inequality(text)
    left, equals, right = text.rpartition("=")
    # A right-hand side is the answer if it is a value: in `y = 2x` all counts.
    if equals and right.strip() and not left.rstrip().endswith((r"\ne", "!")):
        return _read(right.strip(), 0)
    bare = inside if inside is not None else text
    if _WORDS.fullmatch(bare) and len(bare.split()) <= words:
        return Words(bare.rstrip(".").casefold())
    raise Unreadable(text)


def _number(text: str) -> Number:
    sign = re.fullmatch(r"([-+]?)\s*\\infty", text.strip())
    if sign:
        return Number(frozenset(), -1 if sign[1] == "-" else 1)
    return Number(evaluate(text))


def _group(brackets: str, items: list[str]) -> Group:
    if len(items) > _MAX_ITEMS:
        raise Unreadable("too many items")
    forms = tuple(_read(item, 1) for item in items)
    if len({isinstance(form, Words) for form in forms}) > 1:
        raise Unreadable("words among numbers")
    if brackets in ("", "⟦⟧", "{}"):
        return Group("{}" if brackets else "", counts=frozenset(Counter(forms).items()))
    return Group(brackets, forms)


def _inequality(text: str) -> Group:
    """Reads `x < b`, `a >= x` or `a < x <= b` as an interval."""
    parts = [part.strip() for part in _RELATION.split(text)]
    sides, signs = parts[::2], [_plain(sign) for sign in parts[1::2]]
    if len(sides) == 2:
        if _VARIABLE.fullmatch(sides[1]) and not _VARIABLE.fullmatch(sides[0]):
            sides, signs = sides[::-1], [_turned(signs[0])]
        if not _VARIABLE.fullmatch(sides[0]):
            raise Unreadable(text)
        value, sign = _bound(sides[1]), signs[0]
        if sign[0] == "<":
            return Group("(" + _bracket(sign, "])"), (Number(frozenset(), -1), value))
        return Group(_bracket(sign, "[(") + ")", (value, Number(frozenset(), 1)))
    if len(sides) == 3 and _VARIABLE.fullmatch(sides[1]) and signs[0][0] == signs[1][0]:
        if signs[0][0] == ">":
            sides, signs = sides[::-1], [_turned(sign) for sign in signs[::-1]]
        brackets = _bracket(signs[0], "[(") + _bracket(signs[1], "])")
        return Group(brackets, (_bound(sides[0]), _bound(sides[2])))
    raise Unreadable(text)


def _bound(text: str) -> Number:
    return _number(without_unit(text))


def _plain(sign: str) -> str:
    return {r"\le": "<=", r"\ge": ">="}.get(sign, sign)


def _turned(sign: str) -> str:
    return sign.translate(str.maketrans("<>", "><"))


def _bracket(sign: str, pair: str) -> str:
    return pair[0] if sign.endswith("=") else pair[1]


def _inside_brackets(text: str) -> str | None:
    """Returns what stands between the first and the last sign, if these are a pair."""
    if len(text) < 2 or text[0] not in _OPENING or text[-1] not in _CLOSING:
        return None
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth == 0:
            return text[1:-1].strip() if place == len(text) - 1 else None
    return None


def _split(text: str) -> list[str]:
    """Splits a text at the commas, semicolons, `and` and `or` outside of brackets."""
    items, start, depth, place = [], 0, 0, 0
    while place < len(text):
        sign = text[place]
        depth += (sign in _OPENING) - (sign in _CLOSING)
        found = _SEPARATOR.match(text, place) if depth == 0 else None
        if found:
            items.append(text[start:place])
            start = place = found.end()
        else:
            place += 1
    items.append(text[start:])
    return [item.strip() for item in items if item.strip()]
