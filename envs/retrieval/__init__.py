"""Search over passages: within the process, or over HTTP."""

from envs.retrieval.bm25 import Bm25Retriever, build_bm25
from envs.retrieval.client import HttpRetriever
from envs.retrieval.corpus import Corpus, CorpusError, Passage, make_corpus, read_corpus
from envs.retrieval.full_text import TantivyRetriever, build_tantivy
from envs.retrieval.index import RETRIEVERS, build_index, make_retriever, open_index
from envs.retrieval.types import Hit, RetrievalError, Retriever, Tolerant

__all__ = [
    "RETRIEVERS",
    "Bm25Retriever",
    "Corpus",
    "CorpusError",
    "Hit",
    "HttpRetriever",
    "Passage",
    "RetrievalError",
    "Retriever",
    "TantivyRetriever",
    "Tolerant",
    "build_bm25",
    "build_index",
    "build_tantivy",
    "make_corpus",
    "make_retriever",
    "open_index",
    "read_corpus",
]
