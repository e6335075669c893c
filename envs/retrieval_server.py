"""Serve an index over HTTP: `python -m envs.retrieval_server --index FOLDER`.

It answers as Search-R1's server does: `POST /retrieve {"queries": [text], "topk": number or
null, "return_scores": bool}` gives `{"result": [[{"document": {"id", "contents"}, "score"}]]}`,
or lists of bare documents where no scores are asked for. `GET /health` says that it is up.
"""

import argparse
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from envs import checks
from envs.retrieval import (
    RETRIEVERS,
    CorpusError,
    Hit,
    RetrievalError,
    Retriever,
    make_retriever,
    open_index,
    read_corpus,
)

MAX_BATCH = 4096
MAX_TOPK = 100
MAX_BYTES = 16 << 20


class _Refusal(ValueError):
    """A request that cannot be answered, with its status."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


def make_app(
    retriever: Retriever,
    *,
    topk: int = 3,
    max_batch: int = MAX_BATCH,
    max_topk: int = MAX_TOPK,
    max_bytes: int = MAX_BYTES,
) -> Starlette:
    """Makes the application.

    Args:
        retriever: what searches; it is called from several threads.
        topk: hits of a query where the request names no number.
        max_batch: queries a request may hold.
        max_topk: hits a request may ask for.
        max_bytes: bytes a request may take.

    Raises:
        ValueError: an argument is not positive, or topk above its limit.
    """
    for field, value in (("topk", topk), ("max_batch", max_batch), ("max_bytes", max_bytes)):
        checks.positive(field, value)
    if topk > checks.positive("max_topk", max_topk):
        raise ValueError(f"topk must be at most max_topk, {max_topk}, not {topk}")

    async def retrieve(request: Request) -> Response:
        try:
            body = await _body(request.stream(), max_bytes)
            queries, wanted, scores = _read(body, topk, max_batch, max_topk)
        except _Refusal as refusal:
            return JSONResponse({"error": str(refusal)}, refusal.status)
        try:
            found = await run_in_threadpool(retriever.search, queries, wanted)
        except RetrievalError as error:  # of a retriever that asks another server
            return JSONResponse({"error": str(error)}, 503)
        show = _with_score if scores else _document
        return JSONResponse({"result": [[show(hit) for hit in hits] for hits in found]})

    async def health(request: Request) -> Response:
        del request
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/retrieve", retrieve, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
        ]
    )


async def _body(stream: AsyncIterator[bytes], most: int) -> bytes:
    body = bytearray()
    async for piece in stream:
        body += piece
        if len(body) > most:
            raise _Refusal(f"the request takes more than {most} bytes", 413)
    return bytes(body)


def _read(body: bytes, topk: int, max_batch: int, max_topk: int) -> tuple[list[str], int, bool]:
    """Returns queries, hits of each and whether to score them."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Refusal(f"the request is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise _Refusal("the request must be an object")
    queries, wanted, scores = asked.get("queries"), asked.get("topk"), asked.get("return_scores")
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _Refusal("queries must be a list of strings")
    if len(queries) > max_batch:
        raise _Refusal(f"queries must be at most {max_batch}, not {len(queries)}", 413)
    if wanted is None:
        wanted = topk
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= max_topk:
        raise _Refusal(f"topk must be an integer from 1 to {max_topk}, not {wanted!r}"[:200])
    if scores is not None and not isinstance(scores, bool):
        raise _Refusal("return_scores must be true or false")
    return queries, wanted, bool(scores)


def _document(hit: Hit) -> dict[str, Any]:
    return {"id": hit.id, "contents": hit.contents}


def _with_score(hit: Hit) -> dict[str, Any]:
    return {"document": _document(hit), "score": hit.score}


def main() -> None:
    """Opens or makes an index and serves it until it is stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.retrieval_server", description="Serve passages over HTTP."
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--index", type=Path, help="folder made by python -m envs.retrieval")
    source.add_argument("--corpus", type=Path, help="jsonl to be indexed now, in memory")
    parser.add_argument("--retriever", choices=RETRIEVERS, default="bm25", help="of --corpus")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--topk", type=int, default=3, help="where a request names none")
    parser.add_argument("--max-batch", type=int, default=MAX_BATCH, help="queries a request")
    parser.add_argument("--max-topk", type=int, default=MAX_TOPK)
    options = parser.parse_args()
    try:
        if options.index is not None:
            retriever = open_index(options.index)
        else:
            print(f"indexing {options.corpus} ...", file=sys.stderr)
            retriever = make_retriever(read_corpus(options.corpus), options.retriever)
        app = make_app(
            retriever,
            topk=options.topk,
            max_batch=options.max_batch,
            max_topk=options.max_topk,
        )
    except (OSError, CorpusError, RetrievalError, ValueError, ImportError) as error:
        sys.exit(f"error: {error}")
    uvicorn.run(app, host=options.host, port=options.port, access_log=False)


if __name__ == "__main__":
    main()
