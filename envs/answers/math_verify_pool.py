"""math-verify in processes of its own, each answer with a deadline.

The library works out what it reads, and some answers take it minutes or all memory. Here a
process that misses the deadline is killed and another one started in its place; the caller
needs no signal handler, so that any thread may ask.
"""

import contextlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envs import checks
from envs.answers.verdict import Verdict

_SCRIPT = Path(__file__).with_name("math_verify_worker.py")
_VERDICTS = {
    b"right": Verdict.RIGHT,
    b"wrong": Verdict.WRONG,
    b"unreadable": Verdict.UNREADABLE,
}
_STARTS_IN = 120.0  # seconds that an import may take on a busy machine
_MAX_FAILURES = 3  # starts in a row that fail before the pool gives up


@dataclass(eq=False)
class _Worker:
    """A process, what it is at, and when it must have answered."""

    process: subprocess.Popen[bytes]
    deadline: float
    job: int | None = None
    ready: bool = False
    read: bytearray = field(default_factory=bytearray)


class MathVerifyPool:
    """Persistent processes that compare answers by math-verify.

    They start with the first answer, end with `close`, with the pool, or with the program.
    """

    def __init__(self, *, workers: int = 2, deadline_s: float = 2.0) -> None:
        """Makes a pool without processes yet.

        Args:
            workers: the most processes at a time.
            deadline_s: seconds that one answer may take.

        Raises:
            ValueError, TypeError: an argument is out of range.
        """
        self.workers = checks.positive("workers", workers)
        self.deadline_s = checks.finite("deadline_s", deadline_s)
        if self.deadline_s <= 0:
            raise ValueError(f"deadline_s must be above 0, not {deadline_s}")
        self.replaced = 0  # processes that were killed at a deadline, or died
        self._processes: list[_Worker] = []
        self._lock = threading.Lock()
        self._warned = False
        self._failures = 0
        weakref.finalize(self, _end, self._processes)

    def __enter__(self) -> "MathVerifyPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes; the next answer would start new ones."""
        with self._lock:
            _end(self._processes)

    def verify(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Compares answers to golds, as many at a time as there are workers.

        Args:
            pairs: gold and answer, LaTeX without dollars.

        Returns:
            A verdict a pair. One that misses the deadline is `UNDECIDED`; so are all where
            math-verify is not installed, which is told once by a warning.
        """
        if not pairs:
            return []
        with self._lock:
            try:
                return self._verify(pairs)
            except BaseException:
                _end(self._processes)  # what is under way would be taken for later answers
                raise

    def _verify(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        verdicts = [Verdict.UNDECIDED] * len(pairs)
        waiting = deque(range(len(pairs)))
        while waiting or any(worker.job is not None for worker in self._processes):
            if waiting and not self._fill(len(waiting)):
                break
            for worker in self._processes:
                if worker.ready and worker.job is None and waiting:
                    self._send(worker, waiting.popleft(), pairs)
            for worker in self._awaited():
                for line in _lines(worker):
                    if worker.job is None:
                        worker.ready, self._failures = True, 0
                    else:
                        verdicts[worker.job] = _VERDICTS.get(line, Verdict.UNDECIDED)
                        worker.job = None
        return verdicts

    def _fill(self, wanted: int) -> bool:
        """Starts missing processes; False where none can be had."""
        if self._failures >= _MAX_FAILURES:
            self._warn("math-verify's processes do not start")
        elif importlib.util.find_spec("math_verify") is None:
            self._warn("math-verify is not installed: pip install 'freshper-jax[math]'")
        else:
            busy = sum(worker.job is not None for worker in self._processes)
            while len(self._processes) < min(self.workers, wanted + busy):
                self._processes.append(_start(self.deadline_s))
            return True
        return bool(self._processes)

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            message = f"{reason}; answers that need it stay undecided and count as wrong"
            warnings.warn(message, stacklevel=6)

    def _send(self, worker: _Worker, job: int, pairs: Sequence[tuple[str, str]]) -> None:
        assert worker.process.stdin is not None
        line = json.dumps(pairs[job]).encode() + b"\n"
        worker.job, worker.deadline = job, time.monotonic() + self.deadline_s
        with contextlib.suppress(BrokenPipeError):  # it died; its end of file tells
            worker.process.stdin.write(line)

    def _awaited(self) -> list[_Worker]:
        """Waits for a worker to write; drops those that died or missed their deadline."""
        waited = [
            worker for worker in self._processes if worker.job is not None or not worker.ready
        ]
        with selectors.DefaultSelector() as selector:
            for worker in waited:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            left = min(worker.deadline for worker in waited) - time.monotonic()
            spoke = [key.data for key, _ in selector.select(max(left, 0))]
        for worker in spoke:
            worker.read += os.read(worker.process.stdout.fileno(), 65536)
        now = time.monotonic()
        dead = [
            worker
            for worker in waited
            if (worker in spoke and not worker.read)
            or (worker not in spoke and worker.deadline < now)
        ]
        for worker in dead:
            self._failures += not worker.ready
            self.replaced += worker.ready
            self._processes.remove(worker)
            _end([worker])
        return [worker for worker in spoke if worker not in dead]


def _start(deadline_s: float) -> _Worker:
    """Starts a process; -P keeps the script's folder off its path."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(_SCRIPT), str(deadline_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,  # Ctrl-C is for the program, which ends them
    )
    return _Worker(process, time.monotonic() + _STARTS_IN)


def _lines(worker: _Worker) -> list[bytes]:
    """Takes the complete lines that a process wrote."""
    *lines, rest = bytes(worker.read).split(b"\n")
    worker.read[:] = rest
    return lines


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
        for pipe in (worker.process.stdin, worker.process.stdout):
            if pipe is not None:
                pipe.close()
    workers.clear()
