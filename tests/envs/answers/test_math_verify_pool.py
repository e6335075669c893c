"""math-verify behind a deadline."""

import importlib.util
import os
import signal
import threading
import time

import pytest

from envs.answers import MathVerifyPool, Verdict, check_math, make_checker

needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None,
    reason="math-verify is not installed (extra `math`)",
)
TOWER = ("9^{9^{9^9}}", "8")


@pytest.fixture(scope="module")
def pool():
    with MathVerifyPool(workers=1) as pool:
        pool.verify([("1", "1")])  # starts the process
        yield pool


@needs_math_verify
def test_verdicts(pool):
    pairs = [
        ("x+1", "1+x"),
        ("x+1", "x-1"),
        (r"\log_2 8", "3"),
        ("1", "((("),
        ("2^{x+1}", r"2\cdot 2^x"),
    ]
    assert [verdict.name for verdict in pool.verify(pairs)] == [
        "RIGHT", "WRONG", "RIGHT", "UNREADABLE", "RIGHT",
    ]  # fmt: skip
    assert pool.verify([]) == []


@needs_math_verify
def test_the_last_stage_of_the_checker(pool):
    golds, replies = ["x+1", "x+1", "5"], [r"so \boxed{1+x}", r"so \boxed{2x}", r"\boxed{5}"]
    assert make_checker("math", pool=pool)(golds, replies).tolist() == [1, 0, 1]


@needs_math_verify
def test_a_pathological_answer_costs_its_deadline_and_one_process(pool):
    before = pool.replaced
    start = time.monotonic()
    verdicts = pool.verify([TOWER])
    assert 1.9 < time.monotonic() - start < 20  # by itself it would take minutes
    assert verdicts == [Verdict.UNDECIDED]
    assert pool.replaced == before + 1
    assert pool.verify([("x+1", "1+x")]) == [Verdict.RIGHT]


@needs_math_verify
def test_other_answers_go_on_beside_a_pathological_one():
    with MathVerifyPool(workers=2, deadline_s=1.0) as pool:
        verdicts = pool.verify([TOWER, *[("x+1", "1+x")] * 20])
        assert verdicts == [Verdict.UNDECIDED, *[Verdict.RIGHT] * 20]
        assert pool.replaced == 1


@needs_math_verify
def test_a_process_that_dies_costs_its_answer_only(pool):
    (worker,) = pool._processes
    os.kill(worker.process.pid, signal.SIGKILL)
    verdicts = pool.verify([("x+1", "1+x"), ("x+1", "1+x")])
    assert verdicts[-1] is Verdict.RIGHT
    assert set(verdicts) <= {Verdict.RIGHT, Verdict.UNDECIDED}


@needs_math_verify
def test_any_thread_may_ask_and_no_signal_handler_changes(pool):
    handler = signal.getsignal(signal.SIGALRM)
    found = {}

    def ask(name):
        found[name] = pool.verify([(f"x+{name}", f"{name}+x")] * 3)

    threads = [threading.Thread(target=ask, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: [Verdict.RIGHT] * 3 for name in range(4)}
    assert signal.getsignal(signal.SIGALRM) is handler


@needs_math_verify
def test_closing_ends_the_processes_and_the_next_answer_starts_anew():
    pool = MathVerifyPool(workers=1)
    assert pool._processes == []  # nothing is started before it is needed
    pool.verify([("1", "1")])
    pid = pool._processes[0].process.pid
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert pool.verify([("1", "1")]) == [Verdict.RIGHT]
    pool.close()


def test_without_math_verify_answers_stay_undecided_and_it_is_told_once(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    pool = MathVerifyPool()
    with pytest.warns(UserWarning, match=r"math-verify is not installed: pip install") as told:
        assert check_math(["x+1"], [r"\boxed{1+x}"], pool=pool).tolist() == [Verdict.UNDECIDED]
    assert len(told) == 1
    assert pool.verify([("x+1", "1+x")] * 2) == [Verdict.UNDECIDED] * 2
    assert pool._processes == []


def test_bad_arguments():
    with pytest.raises(ValueError, match="workers must be at least 1, not 0"):
        MathVerifyPool(workers=0)
    with pytest.raises(ValueError, match="deadline_s must be above 0, not -1"):
        MathVerifyPool(deadline_s=-1)
