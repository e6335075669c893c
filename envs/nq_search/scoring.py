"""Whether an answer is right: exact match as SQuAD has it, and the paper's lenient match."""

import re
import string
from collections.abc import Sequence

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_INNER_ARTICLES = re.compile(r" (a|an|the)(?= )")


def normalise(answer: str) -> str:
    """Returns an answer in lower case, without ASCII punctuation, articles and extra blanks.

    Punctuation leaves no blank, so `rock-n-roll` becomes `rocknroll`. Curly quotation marks,
    dashes and accents stay.

    References:
        Rajpurkar et al., SQuAD: 100,000+ Questions for Machine Comprehension of Text, 2016.
    """
    return " ".join(_ARTICLES.sub(" ", _plain(answer)).split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether a normalised answer equals a normalised gold.

    What holds nothing but punctuation and blanks fits nothing, not even itself. Articles
    alone fit articles alone, as in SQuAD: the grade `A+` is a right answer to itself.
    """
    if not _plain(answer).strip():
        return False
    given = normalise(answer)
    return any(given == normalise(gold) and bool(_plain(gold).strip()) for gold in golds)


def lenient_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether an answer contains a gold or is contained in one, nearly normalised.

    So the paper's released code scores, which drops articles only between blanks. An answer
    of one letter fits most golds, and one of punctuation fits them all: this is a figure to
    compare with, never a reward.
    """
    given = _nearly(answer)
    return any(given in gold or gold in given for gold in map(_nearly, golds))


def _plain(text: str) -> str:
    return text.lower().translate(_NO_PUNCTUATION)


def _nearly(text: str) -> str:
    return " ".join(_INNER_ARTICLES.sub("", _plain(text)).split())
