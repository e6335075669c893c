"""Where in a reply its answer stands; every search takes time linear in the reply."""

import re
from collections import deque

# What opens another speaker's turn: a model that goes on past its own answers what nobody asked.
TURN_MARKERS = (
    "\nHuman:",
    "\nUser:",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
)

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_STATED = re.compile(r"\banswer\s*(?:\*\*\s*)?(?:is|:|=)\s*", re.IGNORECASE)
_DOLLARS = re.compile(r"\$\$?([^$\n]{1,1000})\$")
_WORD_AFTER = re.compile(r" ?[A-Za-z]{1,20}(?![A-Za-z])")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def own_turn(reply: str) -> str:
    """Returns the reply up to the first marker of another speaker's turn."""
    end = len(reply)
    for marker in TURN_MARKERS:
        found = reply.find(marker, 0, end)
        if found >= 0:
            end = found
    return reply if end == len(reply) else reply[:end]


def last_boxed(reply: str) -> str | None:
    r"""Returns what the last `\\boxed{...}` or `\\fbox{...}` holds, braces balanced.

    Returns:
        None where there is no box; an empty string where the last one is never closed.
    """
    start = max(reply.rfind(r"\boxed"), reply.rfind(r"\fbox"))
    opening = _BOX.match(reply, start) if start >= 0 else None
    if opening is None:
        return None
    start = opening.end()
    if not reply.startswith("{", start):  # TeX takes one word without braces
        return reply[start : start + 100].split(None, 1)[0].rstrip("$.") if reply[start:] else ""
    depth = 0
    for brace in _BRACE.finditer(reply, start):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
            if depth == 0:
                return reply[start + 1 : brace.start()]
    return ""


def last_tagged(reply: str, tag: str = "answer") -> str | None:
    """Returns what the last `<tag>...</tag>` holds, or None where no tag is closed."""
    end = reply.rfind(f"</{tag}>")
    start = reply.rfind(f"<{tag}>", 0, max(end, 0))
    return reply[start + len(tag) + 2 : end].strip() if start >= 0 else None


def after_hashes(reply: str) -> str | None:
    """Returns the line after the last `####`, or None where there is none.

    A `####` that closes a line, as in `#### 42 ####`, is no other one.
    """
    start = reply.rfind("####")
    if start < 0:
        return None
    line, rest = reply[start + 4 :].partition("\n")[0], reply[:start].rstrip("# \t")
    opening = rest.rfind("####") if not line.strip() else -1
    if opening > rest.rfind("\n"):
        return rest[opening + 4 :].strip("# \t")
    return reply[start + 4 :].lstrip("# \t\n\r").split("\n", 1)[0].strip()


def below_hashes(reply: str) -> str | None:
    """Returns the line below that of the last `####`, empty ones left out, or None."""
    start = reply.rfind("####")
    lines = reply[start + 4 :].lstrip("# \t\n\r").split("\n", 1) if start >= 0 else []
    return lines[1].strip().split("\n", 1)[0].strip() if len(lines) > 1 else None


def last_stated(reply: str) -> str | None:
    """Returns the line after the last `answer is` or `answer:`, or None."""
    place = _last(_STATED, reply)
    return None if place is None else reply[place.end() :].split("\n", 1)[0].strip()


def last_formula(reply: str) -> str | None:
    """Returns what stands between the last pair of dollars, or None.

    Dollars with a space inside, as between two prices, are no pair.
    """
    formulas = (found[1] for found in _DOLLARS.finditer(reply))
    return next((f for f in reversed(list(formulas)) if f == f.strip(" ,")), None)


def last_number(reply: str, *, word: bool = False) -> str | None:
    """Returns the last number written in digits, with its sign and commas, or None.

    Args:
        reply: where to look.
        word: whether to return the word that follows it too, as in `18 million`.
    """
    place = _last(_NUMBER, reply)
    if place is None:
        return None
    text = place[0].rstrip(",")
    following = _WORD_AFTER.match(reply, place.end()) if word else None
    tail = following[0] if following else ""
    if not re.fullmatch(r"\d+|\d{1,3}(?:,\d{3})+", text.split(".")[0]):
        return text.rsplit(",", 1)[-1] + tail  # numbers of a list
    before = reply[max(place.start() - 3, 0) : place.start()].replace("$", "").rstrip("*")
    minus = before.endswith(("-", "−")) and not before[-2:-1].isalnum()
    return f"-{text}{tail}" if minus else text + tail


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)
