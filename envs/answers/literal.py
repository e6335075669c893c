r"""One number as it is written, and nothing worked out.

A reply is to give the number: whoever copies `7*35+152` from the question has not answered it.
"""

import re
from fractions import Fraction

from envs.answers.normalise import MAX_ANSWER, UNITS, normalise

_SCALES = {
    "k": 10**3,
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
SCALE_WORDS = "|".join(word for word in _SCALES if len(word) > 1)

# Marks around a number that say nothing of its value.
_WRAPPER = re.compile(
    r"\\[()\[\]]|</?[A-Za-z]+>|\\(?:text)?color\s*\{\w*\}"
    r"|\\(?:underline|overbrace|underbrace|bm|boldsymbol|pmb|mathsf|mathtt|emph)(?![A-Za-z])"
)
# Signs that `normalise` drops would join the numbers on their sides.
_JOINT = re.compile(
    r"\d\s*(?:\*\*|__|[$%£€¥₹`°º˚′″#]|\\[$%#!]|\^\s*\{?\s*\\circ)[*_$%£€¥₹`°º˚′″#\\!{}\s]*\d"
)
_NUMBER = re.compile(
    r"(?P<sign>[-+]?) ?"
    r"(?:\\frac ?\{ ?(?P<top>-?\d+) ?\} ?\{ ?(?P<bottom>\d+) ?\}"
    r"|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3}(?!\d))?|\.\d+)(?: ?/ ?(?P<under>\d+))?)"
    r"(?!\d)"
)
_LABEL = re.compile(
    r"(?:[A-Za-z'\",.() ]*"
    r"(?::|\b(?:is|are|equals|exactly|USD|EUR|GBP|CAD|AUD|INR|US|Rs)\b\.?))?[\s({\[]*"
)
_UNEQUAL = re.compile(r"(?:[!<>]|\\(?:ne|le|ge))\s*\Z|\d\s*[,;|]")

_SCALE = re.compile(rf"(?:k|\s*(?:{SCALE_WORDS})s?)(?![A-Za-z])", re.IGNORECASE)
_CLOSING = re.compile(r"[\s)}\]#]*")
_EXPONENT_OF_UNIT = re.compile(
    r"(?:(?<=[A-Za-z]{2})|(?<=[\s\d][mM]))(?: ?\^ ?\{? ?[23] ?\}?|(?<=m)[23]\b)"
)
_WORD = re.compile(r"[^\W\d_]+")
# What may follow: words, perhaps after a comma or in brackets, the next sentence, or a smile.
_FOLLOWING = re.compile(
    r"\Z|[^\W\d_]|['\"\u2600-\u27bf\U0001f300-\U0001faff]|\(\s*[^\W\d_]|[,;:-]\s+[^\W\d_(]"
    r"|\.(?:\s+[^\W\d_]|\s*\Z)|/\s?[A-Za-z]{2}"
)
_SENTENCE_END = re.compile(r"[.?](?=\s|$)")
_ATTACHED = frozenset((*UNITS, "st", "nd", "rd", "th"))  # short, and yet no variables
_OPERATIONS = frozenset({"plus", "minus", "divided", "multiplied", "mod", "x"})
# The first word after a number that makes it another; between two numbers, more words do.
_ANOTHER = _OPERATIONS.union(
    ("squared", "cubed", "factorial", "pi", "sqrt", "log", "ln", "sin", "cos", "tan"), _SCALES
)
_COMPARING = _OPERATIONS.union(("times", "over", "of", "or", "to", "by", "than"))
_SIGNS = re.compile(r"[+*^=<>|!\\]|/\s*\d|-\s*\d|\s-\s")
_COUNTED = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen"
    r"|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)\b",
    re.IGNORECASE,
)
_AND_A_PART = re.compile(
    r"\s*(?:and\s+(?:a|an|one|two|three)\b"
    r"|[a-z]+,?\s+(?:and\s+)?\d+\s*(?:minutes?|seconds?|cents?|inch(?:es)?|ounces?)\b)",
    re.IGNORECASE,
)


def read_literal(text: str, *, alone: bool = False) -> Fraction | None:
    r"""Returns the one number that a text gives, None if it gives none or has it worked out.

    That is an integer, a decimal, `1e2`, or a fraction of two integers in lowest terms, with
    what belongs to it: label, sign, separators, currency, `%`, marks of LaTeX and Markdown, a
    word for a power of ten, unit. Of an equation the right-hand side counts.

    Args:
        text: the answer alone; of a long one the beginning counts.
        alone: whether other numbers may not follow, as in `5 apples and 3 pears`.
    """
    text = text[: 2 * MAX_ANSWER].strip("*_\"' \t").rstrip("\\ ")
    if _JOINT.search(text):
        return None
    text = normalise(_WRAPPER.sub(" ", text))
    value = _labelled(text, alone)
    left, equals, right = text.rpartition("=")
    if value is None and equals and not _UNEQUAL.search(left):
        return _labelled(right.strip(), alone)
    return value


def _labelled(text: str, alone: bool) -> Fraction | None:
    found = _NUMBER.search(text)
    if found is None or len(found[0]) > MAX_ANSWER or not _LABEL.fullmatch(text[: found.start()]):
        return None
    value, factor = _value(found), _factor(text[found.end() :], alone)
    return None if value is None or factor is None else value * factor


def _value(found: re.Match[str]) -> Fraction | None:
    top, bottom = found["top"] or found["number"], found["bottom"] or found["under"]
    if bottom is None:
        value = Fraction(top)
    elif not top.lstrip("-").isdecimal():
        return None
    else:
        value = Fraction(int(top), int(bottom) or 1)
        if int(bottom) == 1 or value.denominator != int(bottom):
            return None  # a division that is still to be done
    return -value if found["sign"] == "-" else value


def _factor(tail: str, alone: bool) -> int | None:
    """Returns what the text behind a number multiplies it by, None if it makes it another."""
    scale = _SCALE.match(tail)
    factor = _SCALES[scale[0].strip().lower().removesuffix("s")] if scale else 1
    tail = tail[scale.end() :] if scale else tail
    tail = _EXPONENT_OF_UNIT.sub("", tail)
    attached = _WORD.match(tail)
    if attached and len(attached[0]) < 3 and attached[0] not in _ATTACHED:
        return None
    tail = tail[_CLOSING.match(tail).end() :]  # type: ignore[union-attr]
    if not _FOLLOWING.match(tail) or _AND_A_PART.match(tail):
        return None
    sentence = _SENTENCE_END.split(tail, maxsplit=1)[0]
    words = [word.lower() for word in _WORD.findall(sentence)]
    if words and words[0].removesuffix("s") in _ANOTHER:
        return None
    if _COUNTED.search(sentence) and (
        alone or _SIGNS.search(sentence) or not _COMPARING.isdisjoint(words)
    ):
        return None
    return factor
