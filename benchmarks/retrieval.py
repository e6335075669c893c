"""How fast searching is: `python -m benchmarks.retrieval [--json FILE]`.

The passages are 100 words each, drawn by Zipf's law from a made-up vocabulary; a query is five
words of one passage. Times are seconds of CPU time of one core, those of the server with its
client's, on the same machine, in wall-clock seconds.
"""

import argparse
import contextlib
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import uvicorn

from envs.retrieval import (
    Corpus,
    HttpRetriever,
    Passage,
    Retriever,
    build_bm25,
    build_index,
    make_corpus,
    open_index,
)
from envs.retrieval_server import make_app

PASSAGES, WORDS, QUERIES, TOPK = 100_000, 100, 1_000, 3
# Upper limits of figures in seconds (_s), lower limits of the others.
TARGETS = {"bm25_1000_queries_s": 3.0, "server_queries_per_s": 300.0}

_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


def synthetic_texts(passages: int, *, words: int = WORDS, seed: int = 0) -> list[str]:
    """Makes passages of words whose frequency falls with their rank as Zipf's law has it."""
    rng = np.random.default_rng(seed)
    count = 50_000
    names = [
        "".join(
            _SYLLABLES[place // len(_SYLLABLES) ** power % len(_SYLLABLES)] for power in (0, 1, 2)
        )
        for place in rng.permutation(len(_SYLLABLES) ** 3)[:count]
    ]
    shares = 1.0 / np.arange(1, count + 1)
    drawn = rng.choice(count, (passages, words), p=shares / shares.sum())
    return [" ".join(names[word] for word in row) for row in drawn.tolist()]


def synthetic_corpus(texts: list[str]) -> Corpus:
    """Makes a corpus of texts whose titles are their places."""
    return make_corpus(Passage(str(n), f'"Passage {n}"\n{text}') for n, text in enumerate(texts))


def make_queries(texts: list[str], count: int, *, seed: int = 1) -> list[str]:
    """Draws queries of five words of one passage each."""
    rng = np.random.default_rng(seed)
    chosen = (texts[place].split() for place in rng.integers(len(texts), size=count))
    return [" ".join(rng.choice(words, 5, replace=False)) for words in chosen]


@contextlib.contextmanager
def serving(retriever: Retriever) -> Iterator[str]:
    """Serves a retriever on a free port of this machine; yields the URL."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        config = uvicorn.Config(make_app(retriever), log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{place.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _search_time(
    retriever: Retriever, queries: list[str], clock: Callable[[], float] = time.process_time
) -> float:
    """Returns the seconds of a search that finds something for every query; best of three."""
    best = float("inf")
    for _ in range(3):
        start = clock()
        hits = retriever.search(queries, TOPK)
        best = min(best, clock() - start)
        if not all(hits):
            raise RuntimeError("a query found nothing")
    return best


def measure(passages: int = PASSAGES, queries: int = QUERIES) -> dict[str, float]:
    """Returns every figure by name."""
    texts = synthetic_texts(passages)
    asked = make_queries(texts, queries)
    corpus = synthetic_corpus(texts)
    figures: dict[str, float] = {}
    start = time.process_time()
    build_bm25(corpus)
    figures["bm25_build_s"] = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bm25", "tantivy"):
            path = Path(folder) / name
            start = time.process_time()
            build_index(corpus, path, name)
            figures[f"{name}_index_s"] = time.process_time() - start
            start = time.process_time()
            retriever = open_index(path)
            figures[f"{name}_open_s"] = time.process_time() - start
            figures[f"{name}_1000_queries_s"] = _search_time(retriever, asked) * 1000 / queries
            if name == "bm25":
                with serving(retriever) as url, HttpRetriever(url, batch=128) as client:
                    took = _search_time(client, asked, time.perf_counter)
                    figures["server_queries_per_s"] = queries / took
    return figures


def main() -> None:
    """Measures, prints a table, and writes the figures as JSON where asked to."""
    parser = argparse.ArgumentParser(description="How fast searching is.")
    parser.add_argument("--passages", type=int, default=PASSAGES)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if arguments.json is not None and not arguments.json.parent.is_dir():
        parser.error(f"--json: there is no folder {arguments.json.parent}")
    figures = measure(arguments.passages)
    for name, value in figures.items():
        target = ""
        if name in TARGETS:
            side = "least" if name.endswith("per_s") else "most"
            target = f"  (at {side} {TARGETS[name]:,})"
        print(f"{name:24} {value:>12,.2f}{target}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
