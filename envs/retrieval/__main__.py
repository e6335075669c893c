"""Build an index of passages: `python -m envs.retrieval --corpus FILE --out FOLDER`."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envs.retrieval.corpus import CorpusError, folder_size, read_corpus
from envs.retrieval.index import RETRIEVERS, build_index


def main() -> None:
    """Reads a corpus, indexes it and says what came of it."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.retrieval", description="Build an index of passages."
    )
    parser.add_argument(
        "--corpus", type=Path, required=True, help="jsonl, each line with id and contents"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to be made")
    parser.add_argument("--retriever", choices=RETRIEVERS, default="bm25")
    parser.add_argument(
        "--stems", action="store_true", help="for bm25: words of one English stem are one word"
    )
    arguments = parser.parse_args()
    start = time.perf_counter()
    try:
        corpus = read_corpus(arguments.corpus, counting("reading"))
        settings: dict[str, Any] = {}
        if arguments.retriever == "tantivy":
            settings["progress"] = counting("indexing")
        else:
            settings["stems"] = arguments.stems
            print("indexing ...", file=sys.stderr)
        build_index(corpus, arguments.out, arguments.retriever, **settings)
    except (OSError, CorpusError, ValueError, ImportError) as error:
        sys.exit(f"error: {error}")
    print(
        f"{arguments.out}: {len(corpus):,} passages, {folder_size(arguments.out) / 1e6:.1f} MB, "
        f"{time.perf_counter() - start:.1f} s"
    )


def counting(what: str) -> Callable[[int, int], None]:
    """Returns a progress that rewrites one line of a terminal, and is silent elsewhere."""

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\r{what} {100 * done // max(total, 1):3d} %", end=end, file=sys.stderr)

    return progress


if __name__ == "__main__":
    main()
