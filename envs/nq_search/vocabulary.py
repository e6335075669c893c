"""The words of a tiny policy's tokenizer: whole phrases of templates, and names in pieces."""

import re
from collections import Counter

from envs.nq_search import offline, prompts
from envs.nq_search.offline import Facts
from envs.nq_search.parse import TAGS

_COMMON = 12  # names that a piece of two letters must stand in, to be a word of its own


def phrase_words(facts: Facts) -> tuple[str, ...]:
    """Returns words that cover all that is shown and said in the `minimal` style.

    What templates write is a word a phrase. Names are spelled, so that one never seen before is
    made of pieces that were: letters, and the pairs of letters that many names share.
    """
    phrases = {prompts.system_prompt("minimal", searches=0, horizon=0)}
    phrases |= {prompts.invalid_text("minimal"), prompts.spent_text("minimal"), prompts.NOTHING}
    phrases |= {mark for tag in TAGS if tag != "think" for mark in (f"<{tag}>", f"</{tag}>")}
    phrases |= set(re.split(r"\d", 'Doc 0(Title: "')) | {'") ', "\n", *"0123456789"}
    for asked in (*offline.ONE_HOP.values(), *offline.DISTRACTORS):
        for template in asked:
            phrases |= _around(template)
    for templates in (offline.QUERIES, offline.BRIDGES, offline.BRIDGE_QUERIES):
        for template in templates.values():
            phrases |= _around(template)
    for template in (*offline.BRIDGE_SENTENCES.values(), offline.COUNTRY, offline.ELEMENT):
        phrases |= _around(template)
    for template in offline.SENTENCES.values():
        phrases |= _around(" " + template)
    names = _names(facts)
    pairs = Counter(
        pair for name in names for pair in {name[n : n + 2] for n in range(len(name) - 1)}
    )
    pieces = {letter for name in names for letter in name}
    pieces |= {pair for pair, count in pairs.items() if count >= _COMMON}
    return tuple(sorted((phrases | pieces) - {""}))


def _around(template: str) -> set[str]:
    return set(template.split("{}"))


def _names(facts: Facts) -> set[str]:
    found: set[str] = set()
    for made in facts.solutions.values():
        found |= {made.entity, made.bridge, made.golds[0]}
    return found - {""}
