r"""One spelling for what is written in many: Unicode, LaTeX, units, currency, separators.

`normalise` undoes typography and leaves mathematics as it is; the texts are short, see
`MAX_ANSWER`.
"""

import re
import unicodedata

MAX_ANSWER = 1000  # characters of an answer that is read at all

_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-",
    "×": "*", "·": "*", "⋅": "*", "∙": "*", "∗": "*", "÷": "/", "∕": "/", "⁄": "/",
    "°": "", "º": "", "˚": "", "′": "", "″": "",
    "√": r"\sqrt ", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "∈": r"\in ", "≠": r"\ne ",
    "∪": r"\cup ", "…": r"\ldots ",
    "$": "", "%": "", "£": "", "€": "", "¥": "", "₹": "", "`": "", "~": " ", "∶": ":",
    "。": ".", "，": ",",
    **{sign: f"^{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{
        sign: rf"\frac{{{sign_top}}}{{{sign_bottom}}}"
        for sign, sign_top, sign_bottom in (
            ("½", 1, 2), ("⅓", 1, 3), ("⅔", 2, 3), ("¼", 1, 4), ("¾", 3, 4), ("⅕", 1, 5),
            ("⅖", 2, 5), ("⅗", 3, 5), ("⅘", 4, 5), ("⅙", 1, 6), ("⅚", 5, 6), ("⅛", 1, 8),
            ("⅜", 3, 8), ("⅝", 5, 8), ("⅞", 7, 8),
        )
    },
}  # fmt: skip
_SIGN_TABLE = str.maketrans(_SIGNS)

# Bare letters after a number that name a unit, longest first where one begins another.
UNITS = (
    "square kilometers", "square meters", "square centimeters", "square inches", "square feet",
    "square units", "cubic centimeters", "cubic meters", "cubic inches", "cubic feet",
    "cubic units", "centimeters", "centimetres", "millimeters", "millimetres", "kilometers",
    "kilometres", "meters", "metres", "nautical miles", "inches", "inch", "feet", "foot", "yards",
    "miles", "seconds", "minutes", "hours", "hour", "days", "day", "weeks", "months", "years",
    "degrees", "degree", "radians", "dollars", "dollar", "cents", "cent", "euros", "pounds",
    "units", "unit", "percent", "grams", "kilograms", "liters", "litres", "mph",
    "平方千米", "平方厘米", "平方米", "千米", "厘米", "小时", "秒", "海里", "米", "度",
    "cm", "mm", "km", "dm", "kg", "mg", "ml", "mL", "ft", "yd", "mi", "lb", "oz", "sec", "min",
    "hrs", "hr", "rad", "m", "g", "s", "h", "L",
)  # fmt: skip
_UNIT = "|".join(map(re.escape, UNITS))
_UNIT_TAIL = re.compile(
    rf"(?<=[\d)}}\]\s])\s*(?:{_UNIT})(?:\s*\^\s*\{{?\d\}}?|[23])?"
    rf"(?:\s*/\s*(?:{_UNIT})(?:\s*\^\s*\{{?\d\}}?)?)?\s*$"
)
_WORD_TAIL = re.compile(r"(?<=\d) [A-Za-z]{2,}(?:[ .-]+[A-Za-z]{2,}){0,5}\.?$")

_LAYOUT = re.compile(
    r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle|textstyle|limits)(?![A-Za-z])|\\[!$%#]"
)
_GAP = re.compile(r"\\(?:quad|qquad)(?![A-Za-z])|\\[,;: ]|\*{2,}|_{2,}")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\(?:degree|circ)(?![A-Za-z])")
_WRAPPED = re.compile(
    r"\\(?:boxed|fbox|text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname)\s*"
    r"\{([^{}]*)\}"
)
_SYNONYMS = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:leqslant|leq)(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\(?:geqslant|geq)(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\neq(?![A-Za-z])"), r"\\ne"),
    (re.compile(r"\\(?:lbrace|\{)"), "⟦"),
    (re.compile(r"\\(?:rbrace|\})"), "⟧"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\d)\s*\{"), r"\\frac{\1}{"),
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,\d{3})+(?![\d,])|(?: \d{3})+(?![\d,/]))")
_MIXED = (
    re.compile(r"(?<![\w.}^])(\d+)\s*(\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})"),
    re.compile(r"(?<![\w./^])(\d+)\s+(\d+\s*/\s*\d+)(?![\d.])"),
)
_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")


def normalise(text: str) -> str:
    r"""Returns an answer in one spelling.

    Unicode is folded (NFKC, Unicode minus signs, roots and fractions), layout commands, degree
    and currency signs, `%` and bold marks are dropped, thousands separators too; `\text{...}`
    and boxes yield their content, braces of sets become `⟦ ⟧`, a mixed number `2\frac12`
    becomes `(2+\frac{1}{2})`. Of lone surrogates nothing is left.
    """
    text = text[: 2 * MAX_ANSWER].encode("utf-8", "ignore").decode("utf-8")
    text = unicodedata.normalize(
        "NFKC", _GAP.sub(" ", _LAYOUT.sub("", text)).translate(_SIGN_TABLE)
    )
    text = text.replace("{,}", ",").translate(_SIGN_TABLE)
    text = _DEGREES.sub("", text)
    for _ in range(4):  # wrappers may be nested
        unwrapped = _WRAPPED.sub(r" \1 ", text)
        if unwrapped == text:
            break
        text = unwrapped
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    text = _THOUSANDS.sub(lambda found: re.sub("[, ]", "", found[0]), text)
    for pattern in _MIXED:
        text = pattern.sub(r"(\1+\2)", text)
    return " ".join(text.split()).rstrip(" .,;:").lstrip(" =:")


def without_unit(text: str) -> str:
    """Returns a normalised answer without the unit, or the words, that follow its number."""
    bare = _UNIT_TAIL.sub("", text)
    return (_WORD_TAIL.sub("", text) if bare == text else bare).rstrip()


def squeezed(text: str) -> str:
    """Returns a normalised answer for comparison as text: white space between digits alone."""
    return _SPACE.sub("", text).replace("{", "(").replace("}", ")")
