import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest
from starlette.testclient import TestClient

from benchmarks.retrieval import serving
from envs.retrieval import HttpRetriever, RetrievalError, make_retriever
from envs.retrieval_server import make_app
from tests.envs.retrieval.conftest import answering, echo


def client(url, **settings):
    return HttpRetriever(url, **{"pause": 0.0, "retries": 2, "timeout": 5.0, **settings})


@pytest.mark.parametrize("kind", ["bm25", "tantivy"])
def test_over_http_the_hits_are_the_same(corpus, kind):
    retriever = make_retriever(corpus, kind)
    queries = ["capital of Peru", "metal", "submarine", "\ud800 iron", "", 'C++ AND ("']
    with serving(retriever) as url, client(url, batch=2) as remote:
        assert remote.search(queries, 2) == retriever.search(queries, 2)


def test_one_search_is_one_request():
    with answering(echo) as (url, bodies), client(url) as remote:
        found = remote.search([str(n) for n in range(300)], 3)
        assert [hits[0].contents for hits in found] == [f'"T"\n{n}' for n in range(300)]
        assert remote.search([], 3) == []
    ((path, body),) = bodies
    assert path == "/retrieve"
    assert body == {"queries": [str(n) for n in range(300)], "topk": 3, "return_scores": True}


def test_large_searches_are_split_and_bounded():
    under_way = []
    most = []

    def slow(number, body):
        under_way.append(number)
        most.append(len(under_way))
        time.sleep(0.03)
        under_way.remove(number)
        return echo(number, body)

    with answering(slow) as (url, bodies), client(url, batch=4, concurrency=3) as remote:
        found = remote.search([str(n) for n in range(30)], 1)
    assert [hits[0].id for hits in found] == [str(n) for n in range(30)]
    assert sorted(len(body["queries"]) for _, body in bodies) == [2, *[4] * 7]
    assert max(most) <= 3


def test_a_path_in_the_url_is_kept():
    with answering(echo) as (url, bodies), client(f"{url}/v2/find") as remote:
        remote.search(["x"], 1)
    assert bodies[0][0] == "/v2/find"


NONSENSE = {
    "no json": b"<html>",
    "no utf-8": b"\xff\xfe\x00",
    "a list": b"[]",
    "no result": b"{}",
    "too few": b'{"result": []}',
    "no lists": b'{"result": [3]}',
    "no document": b'{"result": [[3]]}',
    "no contents": b'{"result": [[{"document": {"id": "1"}, "score": 1}]]}',
    "no score": b'{"result": [[{"document": {"contents": "x"}, "score": "high"}]]}',
    "huge score": b'{"result": [[{"document": {"contents": "x"}, "score": 1' + b"0" * 400 + b"}]]}",
}


@pytest.mark.parametrize("text", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_an_error_after_the_tries(text):
    with (
        answering(lambda number, body: (200, text)) as (url, bodies),
        client(url) as remote,
        pytest.raises(RetrievalError, match="no answer after 3 tries; its answer is"),
    ):
        remote.search(["x"], 1)
    assert len(bodies) == 3


@pytest.mark.parametrize("first", [(500, b"oops"), (503, b""), (429, b""), (200, b"<html>")])
def test_a_fault_that_passes_is_borne(first):
    def answer(number, body):
        return first if number < 2 else echo(number, body)

    with answering(answer) as (url, bodies), client(url) as remote:
        assert remote.search(["x"], 1)[0][0].id == "x"
    assert len(bodies) == 3


def test_a_refusal_is_not_tried_again():
    with (
        answering(lambda number, body: (422, b"no such field")) as (url, bodies),
        client(url) as remote,
        pytest.raises(RetrievalError, match="422: 'no such field'"),
    ):
        remote.search(["x"], 1)
    assert len(bodies) == 1


def test_a_server_that_is_down_is_named():
    with answering(echo) as (url, _):
        pass  # gone now
    with client(url) as remote, pytest.raises(RetrievalError, match=f"{url}/retrieve: no answer"):
        remote.search(["x"], 1)


def test_a_slow_server_is_given_up():
    over = threading.Event()

    def slow(number, body):
        over.wait(30)
        return echo(number, body)

    with answering(slow) as (url, _), client(url, timeout=0.05, retries=1) as remote:
        start = time.perf_counter()
        with pytest.raises(RetrievalError, match="after 2 tries; ReadTimeout"):
            remote.search(["x"], 1)
        assert time.perf_counter() - start < 20
        over.set()


def test_pauses_grow(monkeypatch):
    pauses = []
    monkeypatch.setattr("envs.retrieval.client.time.sleep", pauses.append)
    with (
        answering(lambda number, body: (500, b"")) as (url, _),
        client(url, pause=1.0, retries=3) as remote,
        pytest.raises(RetrievalError),
    ):
        remote.search(["x"], 1)
    for pause, expected in zip(pauses, (1.0, 2.0, 4.0), strict=True):
        assert 0.75 * expected <= pause <= 1.25 * expected


def test_documents_without_scores_or_in_two_parts_are_read():
    answer = {"result": [[{"id": 1, "contents": "x"}, {"title": "T", "text": "y"}]]}
    text = json.dumps(answer).encode()
    with answering(lambda number, body: (200, text)) as (url, _), client(url) as remote:
        first, second = remote.search(["x"], 3)[0]
    assert first == ("1", "x", 0.0)
    assert (second.title, second.text) == ("T", "y")


def test_what_utf8_cannot_carry_is_taken_out_of_an_answer():
    answer = b'{"result": [[{"document": {"id": "1", "contents": "a\\ud800b"}, "score": 1}]]}'
    with answering(lambda number, body: (200, answer)) as (url, _), client(url) as remote:
        assert remote.search(["x"], 1)[0][0].contents == "a?b"


def test_no_more_hits_come_than_were_asked_for():
    answer = json.dumps({"result": [[{"contents": "x"}] * 9]}).encode()
    with answering(lambda number, body: (200, answer)) as (url, _), client(url) as remote:
        assert len(remote.search(["x"], 2)[0]) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "localhost:8000"}, "url must be like"),
        ({"url": "ftp://host"}, "url must be like"),
        ({"url": "http://"}, "url must be like"),
        ({"url": "http://host:99999"}, "url must be like"),
        ({"url": "http://[host"}, "url must be like"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"timeout": 0.0}, "timeout must be positive"),
        ({"retries": -1}, "must not be negative"),
        ({"pause": float("inf")}, "pause must be finite"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        HttpRetriever(**{"url": "http://127.0.0.1:1", **settings})


@pytest.fixture
def served(corpus):
    retriever = make_retriever(corpus)
    app = make_app(retriever, topk=2, max_batch=4, max_topk=5, max_bytes=2000)
    with TestClient(app) as test_client:
        yield test_client, retriever


def test_health(served):
    assert served[0].get("/health").json() == {"status": "ok"}


def test_the_answer_has_scores_only_where_asked_for(served):
    http, retriever = served
    (hit,) = retriever.search(["peru"], 1)[0]
    document = {"id": hit.id, "contents": hit.contents}
    asked = {"queries": ["peru", "submarine"], "topk": 1}
    bare = http.post("/retrieve", json={**asked, "return_scores": False}).json()
    assert bare == {"result": [[document], []]}
    assert http.post("/retrieve", json=asked).json() == bare
    scored = http.post("/retrieve", json={**asked, "return_scores": True}).json()
    assert scored == {"result": [[{"document": document, "score": hit.score}], []]}


@pytest.mark.parametrize("topk", [{}, {"topk": None}])
def test_without_a_number_there_is_a_default(served, topk):
    found = served[0].post("/retrieve", json={"queries": ["iron gold peru"], **topk})
    assert len(found.json()["result"][0]) == 2


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff", 400, "not JSON"),
        (b"[" * 1900, 400, "not JSON"),
        (b"[]", 400, "must be an object"),
        (b"{}", 400, "queries must be a list of strings"),
        (b'{"queries": "x"}', 400, "queries must be a list of strings"),
        (b'{"queries": [1]}', 400, "queries must be a list of strings"),
        (b'{"queries": ["a", "b", "c", "d", "e"]}', 413, "at most 4, not 5"),
        (b'{"queries": ["a"], "topk": 0}', 400, "topk must be an integer from 1 to 5, not 0"),
        (b'{"queries": ["a"], "topk": 6}', 400, "from 1 to 5, not 6"),
        (b'{"queries": ["a"], "topk": true}', 400, "not True"),
        (b'{"queries": ["a"], "topk": "3"}', 400, "not '3'"),
        (b'{"queries": ["a"], "return_scores": 1}', 400, "true or false"),
        (b'{"queries": ["' + b"x" * 2000 + b'"]}', 413, "more than 2000 bytes"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(served, content, status, reason):
    answer = served[0].post("/retrieve", content=content)
    assert answer.status_code == status
    assert reason in answer.json()["error"]


def test_a_lone_surrogate_is_served(served):
    answer = served[0].post("/retrieve", content=b'{"queries": ["\\ud800 peru"]}')
    assert answer.json()["result"][0][0]["id"] == "c"


def test_other_methods_and_paths_are_refused(served):
    assert served[0].get("/retrieve").status_code == 405
    assert served[0].post("/search").status_code == 404


def test_a_server_behind_a_dead_server_says_so(corpus):
    class Down:
        def search(self, queries, topk):
            raise RetrievalError("the other one is down")

    with serving(Down()) as url:
        answer = httpx2.post(f"{url}/retrieve", json={"queries": ["x"]})
    assert (answer.status_code, answer.json()) == (503, {"error": "the other one is down"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topk": 0}, "topk"),
        ({"topk": 9, "max_topk": 5}, "at most max_topk"),
        ({"max_batch": 0}, "max_batch"),
    ],
)
def test_limits_of_a_server_are_checked(corpus, settings, message):
    with pytest.raises(ValueError, match=message):
        make_app(make_retriever(corpus), **settings)


def serve(*arguments):
    command = [sys.executable, "-m", "envs.retrieval_server", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=Path(__file__).parents[3], stderr=subprocess.PIPE, text=True
    )


def test_the_command_serves_a_corpus(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "1", "contents": "iron"}\n')
    with serve("--corpus", path, "--port", 0) as process:
        try:
            lines = iter(process.stderr.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://\S+:\d+", line)))
            with client(url) as remote:
                assert remote.search(["iron"], 1)[0][0].id == "1"
        finally:
            process.terminate()
            process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--corpus", "/nowhere.jsonl"], "error: .*No such file"),
        (["--index", "/nowhere"], "error: /nowhere: there is no index"),
        ([], "one of the arguments --index --corpus is required"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, reason):
    with serve(*arguments) as process:
        assert re.search(reason, process.stderr.read())
    assert process.returncode in (1, 2)
