"""From a model's reply to what it does: think, search or answer."""

import enum
from typing import NamedTuple

TAGS = ("think", "search", "information", "answer")

_MARKS = tuple(mark for tag in TAGS for mark in (f"<{tag}>", f"</{tag}>"))


class Kind(enum.IntEnum):
    """What a reply does."""

    INVALID = 0
    THINK = 1
    SEARCH = 2
    ANSWER = 3


class Act(NamedTuple):
    """What a reply does, and the query or answer in it; empty for the other kinds."""

    kind: Kind
    text: str = ""


def parse_reply(reply: str, *, answer_first: bool = False) -> Act:
    """Reads a reply.

    The first closed `<search>...</search>` or `<answer>...</answer>` counts, as if the reply
    had ended there: of two answers the first, of a search and an answer whichever is closed
    first. It matters not whether a `<think>` is open around it. Within nested tags of one
    kind the innermost counts, and tags inside are dropped. Without either, a reply with a
    closed `<think>...</think>` only thinks. All else is invalid, and so is a search for
    nothing; an empty answer is an answer.

    Args:
        reply: any text; the time taken grows with its length and no faster.
        answer_first: an answer counts wherever it stands, before any search.
    """
    answer, search = _inside(reply, "answer"), _inside(reply, "search")
    if answer is not None and (answer_first or search is None or answer[1] < search[1]):
        return Act(Kind.ANSWER, _bare(reply[slice(*answer)]))
    if search is not None:
        query = _bare(reply[slice(*search)])
        return Act(Kind.SEARCH, query) if query else Act(Kind.INVALID)
    return Act(Kind.INVALID if _inside(reply, "think") is None else Kind.THINK)


def _inside(reply: str, tag: str) -> tuple[int, int] | None:
    """Returns where the text of the first closed tag begins and ends, None without one."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = reply.find(opening)
    end = reply.find(closing, start) if start >= 0 else -1
    if end < 0:
        return None
    return reply.rfind(opening, start, end) + len(opening), end


def _bare(text: str) -> str:
    """Returns text without tags of the protocol, each white space one blank."""
    if "<" in text:
        for mark in _MARKS:
            text = text.replace(mark, " ")
    return " ".join(text.split())
