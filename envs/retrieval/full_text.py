"""Tantivy: a full-text index for corpora that are large for BM25 in numpy."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from envs import checks
from envs.retrieval.corpus import Corpus, Progress, texts_of
from envs.retrieval.types import Hit

_COMMIT_EVERY = 20_000  # passages between two reports of progress
_HEAP = 256 << 20  # bytes that the writer of an index may take


@dataclass(frozen=True)
class TantivyRetriever:
    """Searches with tantivy's BM25 over English stems.

    A query is its words, any of which may fit; nothing in it is taken for query syntax.
    """

    corpus: Corpus
    index: Any

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Finds passages; see `envs.retrieval.Retriever`."""
        checks.positive("topk", topk)
        searcher = self.index.searcher()
        return [self._hits(searcher, query, topk) for query in texts_of(queries)]

    def _hits(self, searcher: Any, query: str, topk: int) -> list[Hit]:
        # Words alone, in lower case: AND, OR and NOT are words then.
        words = " ".join(re.findall(r"\w+", query.lower()))
        parsed, _ = self.index.parse_query_lenient(words, ["contents"])
        found = searcher.search(parsed, topk, count=False).hits
        hits = []
        for score, address in found:
            place = searcher.doc(address)["place"][0]
            hits.append(Hit(*self.corpus[place], score))
        return hits


def build_tantivy(
    corpus: Corpus, folder: Path | None = None, *, progress: Progress | None = None
) -> TantivyRetriever:
    """Indexes a corpus in a folder, which must be empty or missing, or in memory.

    Args:
        corpus: the passages.
        folder: where the index is kept; None for memory.
        progress: called with the passages indexed and the passages there are.

    Raises:
        ImportError: tantivy is missing.
    """
    tantivy = _tantivy()
    if folder is None:
        index = tantivy.Index(_schema(tantivy))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        index = tantivy.Index(_schema(tantivy), path=str(folder), reuse=False)
    writer = index.writer(_HEAP, 1)  # one thread: one corpus is one index
    for place, text in enumerate(corpus.texts()):
        writer.add_document(tantivy.Document(place=place, contents=text))
        if progress is not None and place % _COMMIT_EVERY == 0:
            progress(place, len(corpus))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    if progress is not None:
        progress(len(corpus), len(corpus))
    return TantivyRetriever(corpus, index)


def load_tantivy(folder: Path, corpus: Corpus) -> TantivyRetriever:
    """Opens an index that `build_tantivy` wrote.

    Raises:
        ValueError: there is none, or it is damaged; ImportError.
    """
    return TantivyRetriever(corpus, _tantivy().Index.open(str(folder)))


def _schema(tantivy: ModuleType) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("place", stored=True)
    builder.add_text_field("contents", tokenizer_name="en_stem", index_option="freq")
    return builder.build()


def _tantivy() -> ModuleType:
    try:
        import tantivy
    except ImportError as error:
        raise ImportError(
            'this retriever needs tantivy: pip install "freshper-jax[retrieval]"'
        ) from error
    return tantivy
