"""A few passages, and servers of this machine that behave well or badly."""

import contextlib
import http.server
import json
import threading

import pytest

from envs.retrieval import Passage, make_corpus

PASSAGES = (
    Passage("a", '"Iron"\nIron is a metal. Its symbol is Fe.'),
    Passage("b", '"Gold"\nGold is a metal that does not rust.'),
    Passage("c", '"Peru"\nPeru is a country. Its capital is Lima.'),
    Passage("7", "A text without a title that speaks of lamas."),
    Passage("ü", '"Zürich"\nZürich lies by a lake — and "C++ AND (" is no query.'),
)


@pytest.fixture
def corpus():
    return make_corpus(PASSAGES)


@contextlib.contextmanager
def answering(answer):
    """Serves `answer(number of the request, body) -> (status, bytes)`; yields URL and bodies."""
    bodies = []
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(bodies)
                bodies.append((self.path, body))
            status, text = answer(number, body)
            # A client that waits no longer has gone.
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def echo(number, body):
    """Answers each query with one passage that repeats it."""
    del number
    result = [
        [{"document": {"id": q, "contents": f'"T"\n{q}'}, "score": 1.5}] for q in body["queries"]
    ]
    return 200, json.dumps({"result": result}).encode()
