"""An index of passages as a folder: built once, then opened without reading it all."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from envs import checks
from envs.retrieval.bm25 import build_bm25, load_bm25
from envs.retrieval.corpus import Corpus, CorpusError, Progress, load_corpus, write_corpus
from envs.retrieval.full_text import build_tantivy, load_tantivy
from envs.retrieval.types import RetrievalError, Retriever

RETRIEVERS = ("bm25", "tantivy")

_FORMAT = 1  # raise it when folders of before cannot be opened any more


def make_retriever(
    corpus: Corpus, retriever: str = "bm25", *, progress: Progress | None = None, **settings: Any
) -> Retriever:
    """Indexes a corpus in memory.

    Args:
        corpus: the passages.
        retriever: `bm25` or `tantivy`.
        progress: called with the passages indexed and the passages there are.
        **settings: further arguments of `build_bm25`.

    Raises:
        ValueError: the retriever is unknown; ImportError: its library is missing.
    """
    if checks.one_of("retriever", retriever, RETRIEVERS) == "tantivy":
        return build_tantivy(corpus, progress=progress, **settings)
    return build_bm25(corpus, **settings)


def build_index(
    corpus: Corpus,
    folder: str | Path,
    retriever: str = "bm25",
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> None:
    """Writes an index and its corpus to a folder that must not exist yet or be empty.

    A build that is cut short leaves no folder that could be opened.

    Raises:
        ValueError: the retriever is unknown; FileExistsError: the folder holds something;
            OSError; ImportError.
    """
    checks.one_of("retriever", retriever, RETRIEVERS)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already; delete it or choose another name")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        facts = {"format": _FORMAT, "retriever": retriever, "passages": len(corpus)}
        write_corpus(partial / "corpus", corpus)
        if retriever == "tantivy":
            build_tantivy(corpus, partial / "index", progress=progress, **settings)
        else:
            built = build_bm25(corpus, **settings)
            built.save(partial / "index")
            facts["stems"] = built.stems
        (partial / "index.json").write_text(json.dumps(facts, indent=2) + "\n")
        partial.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def open_index(folder: str | Path) -> Retriever:
    """Opens an index that `build_index` wrote.

    Raises:
        RetrievalError: the folder holds no index, or a damaged one; ImportError: the library
            that made it is missing.
    """
    folder = Path(folder)
    try:
        facts = json.loads((folder / "index.json").read_text())
        if facts["format"] != _FORMAT:
            raise RetrievalError(
                f"{folder}: format {facts['format']}, expected {_FORMAT}; build it again"
            )
        corpus = load_corpus(folder / "corpus")
        if len(corpus) != facts["passages"]:
            raise RetrievalError(
                f"{folder}: {len(corpus)} passages, expected {facts['passages']}; build it again"
            )
        if facts["retriever"] == "tantivy":
            return load_tantivy(folder / "index", corpus)
        return load_bm25(folder / "index", corpus, stems=facts["stems"])
    except FileNotFoundError as error:
        raise RetrievalError(
            f"{folder}: there is no index of passages; make one with python -m envs.retrieval"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, EOFError, CorpusError) as error:
        raise RetrievalError(f"{folder}: the index cannot be read: {error}") from error
