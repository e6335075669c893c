"""A client of retrieval servers that speak as Search-R1's does."""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from envs import checks
from envs.retrieval.corpus import texts_of
from envs.retrieval.types import Hit, RetrievalError

_PASSING = (408, 425, 429)  # of the client errors, those that another try may mend
_SHOWN = 200  # characters of an unexpected answer that an error shows


class HttpRetriever:
    """Searches over HTTP: `POST /retrieve {"queries", "topk", "return_scores": true}`.

    All queries of a search go out together, in as few requests as `batch` allows. A request
    that fails is tried again with growing pauses: where no connection can be made, no answer
    comes in time, the server reports a fault of its own (5xx) or the answer is nonsense. A
    refusal (4xx) is an error at once, for the same request would be refused again.
    """

    def __init__(
        self,
        url: str,
        *,
        batch: int = 512,
        concurrency: int = 4,
        timeout: float = 30.0,
        retries: int = 4,
        pause: float = 0.5,
    ) -> None:
        """Makes a client; nothing is sent yet.

        Args:
            url: of the server, such as http://127.0.0.1:8000; a path in it replaces /retrieve.
            batch: queries a request may hold.
            concurrency: requests that may be under way at once.
            timeout: seconds that a connection, and each wait for data, may take.
            retries: further tries after the first.
            pause: seconds before the second try; each later pause is twice as long.

        Raises:
            ValueError: an argument is out of range; ImportError: httpx2 is missing.
        """
        self.url = _full_url(url)
        self.batch = checks.positive("batch", batch)
        self.retries = checks.integer("retries", retries)
        self.pause = checks.finite("pause", pause)
        if self.retries < 0 or self.pause < 0:
            raise ValueError(f"retries and pause must not be negative: {retries}, {pause}")
        if not checks.finite("timeout", timeout) > 0:
            raise ValueError(f"timeout must be positive, not {timeout}")
        self._http = _httpx()
        self._client = self._http.Client(timeout=timeout)
        self._pool = ThreadPoolExecutor(checks.positive("concurrency", concurrency))

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Finds passages; see `envs.retrieval.Retriever`."""
        checks.positive("topk", topk)
        texts = texts_of(queries)
        parts = [texts[start : start + self.batch] for start in range(0, len(texts), self.batch)]
        if len(parts) < 2:
            found = [self._ask(part, topk) for part in parts]
        else:
            found = list(self._pool.map(lambda part: self._ask(part, topk), parts))
        return [hits for part in found for hits in part]

    def close(self) -> None:
        """Ends the connections."""
        self._pool.shutdown()
        self._client.close()

    def __enter__(self) -> "HttpRetriever":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Sends one request until it is answered or the tries are used up."""
        # A server that returns no scores may fail to answer at all, so they are asked for.
        body = {"queries": queries, "topk": topk, "return_scores": True}
        reason = ""
        for attempt in range(1 + self.retries):
            if attempt:
                # Clients that failed together shall not come back together.
                time.sleep(self.pause * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))
            try:
                answer = self._client.post(self.url, json=body)
            except self._http.HTTPError as error:
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
                continue
            status = answer.status_code
            if status == 200:
                try:
                    return _hits(_parsed(answer), len(queries), topk)
                except (ValueError, OverflowError) as error:
                    reason = f"its answer is {error}: {answer.text[:_SHOWN]!r}"
                    continue
            reason = f"it answered status {status}: {answer.text[:_SHOWN]!r}"
            if status < 500 and status not in _PASSING:
                raise RetrievalError(f"{self.url}: {reason}")
        raise RetrievalError(f"{self.url}: no answer after {1 + self.retries} tries; {reason}")


def _full_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port or an address that is none
        good = False
    if not good:
        raise ValueError(f"url must be like http://host:port, not {url!r}")
    return url if parts.path.strip("/") else url.rstrip("/") + "/retrieve"


def _parsed(answer: Any) -> Any:
    try:
        return answer.json()
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error


def _hits(answer: Any, count: int, topk: int) -> list[list[Hit]]:
    """Reads an answer to so many queries; ValueError says what is wrong with it."""
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, list) or len(result) != count:
        raise ValueError(f"without a result of {count} lists")
    if not all(isinstance(found, list) for found in result):
        raise ValueError("with a result that is not of lists")
    return [[_hit(item) for item in found[:topk]] for found in result]


def _hit(item: Any) -> Hit:
    scored = isinstance(item, dict) and isinstance(item.get("document"), dict)
    document = item["document"] if scored else item
    if not isinstance(document, dict):
        raise ValueError("with a hit that is no document")
    contents = document.get("contents")
    if contents is None and isinstance(document.get("text"), str):
        contents = f'"{document.get("title", "")}"\n{document["text"]}'
    score = item.get("score", 0.0) if scored else 0.0
    if not isinstance(contents, str) or not isinstance(score, int | float):
        raise ValueError("with a hit without contents or with a score that is no number")
    name, contents = texts_of([str(document.get("id", "")), contents])
    return Hit(name, contents, float(score))


def _httpx() -> Any:
    try:
        import httpx2
    except ImportError as error:
        raise ImportError(
            'retrieval over HTTP needs httpx2: pip install "freshper-jax[retrieval]"'
        ) from error
    return httpx2
