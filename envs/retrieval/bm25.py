"""BM25 within the process, on an index that bm25s makes and memory may map."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from envs import checks
from envs.retrieval.corpus import Corpus, texts_of
from envs.retrieval.types import Hit

# One letter is a word too: chemical symbols are.
_WORD = r"(?u)\b\w+\b"


@dataclass(frozen=True)
class Bm25Retriever:
    """Searches with BM25 in Lucene's form; hits of equal score keep the order of the corpus.

    A hit shares at least one word with the query. Function words are no words, here; with a
    stemmer, words of one stem are one word.
    """

    corpus: Corpus
    index: Any
    stems: bool

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Finds passages; see `envs.retrieval.Retriever`."""
        checks.positive("topk", topk)
        return [self._hits(words, topk) for words in _words(texts_of(queries), self.stems)]

    def save(self, folder: Path) -> None:
        """Writes the index, without the corpus."""
        self.index.save(folder, show_progress=False)

    def _hits(self, words: list[str], topk: int) -> list[Hit]:
        known = self.index.get_tokens_ids(words)
        if not known:
            return []
        scores = self.index.get_scores_from_ids(known)
        return [
            Hit(*self.corpus[place], float(scores[place])) for place in best_places(scores, topk)
        ]


def build_bm25(
    corpus: Corpus, *, k1: float = 1.5, b: float = 0.75, stems: bool = False
) -> Bm25Retriever:
    """Indexes a corpus.

    Args:
        corpus: the passages.
        k1, b: how soon repeated words stop counting, and how much long passages are held
            back; the weights are fixed when the index is made.
        stems: whether words are cut to English stems, which needs PyStemmer.

    Raises:
        ValueError: no passage holds a word; ImportError: bm25s or PyStemmer is missing.
    """
    index = _bm25s().BM25(method="lucene", k1=checks.finite("k1", k1), b=checks.finite("b", b))
    tokens = _bm25s().tokenize(list(corpus.texts()), return_ids=True, **_settings(stems))
    if not tokens.vocab:
        raise ValueError("corpus: no passage holds a word")
    index.index(tokens, show_progress=False)
    return Bm25Retriever(corpus, index, stems)


def load_bm25(folder: Path, corpus: Corpus, *, stems: bool) -> Bm25Retriever:
    """Maps an index that `save` wrote into memory.

    Raises:
        OSError, ValueError: a file is missing or damaged; ImportError.
    """
    if stems:
        _stemmer()
    index = _bm25s().BM25.load(folder, mmap=True, show_progress=False)
    return Bm25Retriever(corpus, index, stems)


def best_places(scores: np.ndarray, count: int) -> np.ndarray:
    """Returns the places of the best positive scores [N], the best first, ties by place."""
    if count < len(scores):
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        places = np.flatnonzero(scores >= least if least > 0 else scores > 0)
    else:
        places = np.flatnonzero(scores > 0)
    return places[np.argsort(-scores[places], kind="stable")[:count]]


def _words(texts: list[str], stems: bool) -> list[list[str]]:
    return _bm25s().tokenize(texts, return_ids=False, **_settings(stems)) if texts else []


def _settings(stems: bool) -> dict[str, Any]:
    return {
        "token_pattern": _WORD,
        "stopwords": "english",
        "stemmer": _stemmer() if stems else None,
        "show_progress": False,
    }


def _stemmer() -> Any:
    try:
        import Stemmer
    except ImportError as error:
        raise ImportError("stems need PyStemmer: pip install PyStemmer") from error
    return Stemmer.Stemmer("english")


def _bm25s() -> ModuleType:
    """Imports bm25s without JAX, unless that is loaded already.

    Where bm25s finds JAX it runs a computation as it loads, and so would take the accelerator
    from the process that trains.
    """
    if "bm25s" in sys.modules or "jax" in sys.modules:
        return _import_bm25s()
    sys.modules["jax"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        return _import_bm25s()
    finally:
        del sys.modules["jax"]


def _import_bm25s() -> ModuleType:
    try:
        import bm25s
    except ImportError as error:
        raise ImportError('BM25 needs bm25s: pip install "freshper-jax[retrieval]"') from error
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to tell everything
    return bm25s
