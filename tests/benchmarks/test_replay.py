"""The replay benchmark runs without any peer, and says what it could not compare."""

import json

import numpy as np
import pytest

from benchmarks import replay_peers
from benchmarks.replay import OPERATIONS, TARGETS, judge, main, peers_ahead, tables
from benchmarks.replay_peers import Freshper, missing


def cell(name, minimum, *, rows="scalar", capacity=1_000_000, operation="update 128"):
    return {
        "rows": rows,
        "capacity": capacity,
        "operation": operation,
        "implementation": name,
        "minimum_s": minimum,
        "median_s": minimum,
        "to_flashbax": minimum / 100e-6,
    }


def run(monkeypatch, *flags):
    monkeypatch.setattr("sys.argv", ["benchmarks.replay", *flags])
    main()


def test_ours_inside_jit(capsys, monkeypatch):
    flags = ["--rounds", "1", "--sizes", "1024", "--trajectory-sizes", "--peers", "--inside-jit"]
    run(monkeypatch, *flags)
    assert "| sample 1024 |" in capsys.readouterr().out


def test_ours_alone(capsys, monkeypatch, tmp_path):
    path = tmp_path / "figures.json"
    flags = ["--rounds", "1", "--sizes", "1024", "--trajectory-sizes", "1030", "--peers"]
    run(monkeypatch, *flags, "--json", str(path))
    report = json.loads(path.read_text())
    assert {"jax", "jaxlib", "numpy", "python"} == set(report["versions"])
    assert {"cpus", "system", "processor", "backend"} == set(report["machine"])
    assert report["settings"]["rounds"] == 1
    assert report["peers"] == report["peers_ahead"] == []
    assert report["missing"] == {}
    places = [(case, operation) for case in ("scalar", "trajectory") for operation in OPERATIONS]
    packed = [entry for entry in report["cells"] if entry["implementation"] == "freshper packed"]
    assert {entry["rows"] for entry in packed} == {"trajectory"}
    (ratio,) = report["packed"]
    # A third of the tokens; tokens and log-probs take 4 bytes each, the mask 1.
    assert 1 / 3 < ratio["ratio"] < 0.45
    assert ratio["passed"]
    ours = [entry for entry in report["cells"] if entry["implementation"] == "freshper"]
    cells = {(entry["rows"], entry["operation"]): entry for entry in ours}
    assert sorted(cells) == sorted(places)
    for (_, operation), entry in cells.items():
        assert entry["implementation"] == "freshper"
        assert entry["to_flashbax"] is None
        assert entry["calls"] == 5
        if operation != "decay all":
            assert 0 < entry["minimum_s"] <= entry["median_s"]
    assert [entry["passed"] for entry in report["targets"]] == [None] * len(TARGETS)
    dense = [entry for entry in report["memory"] if entry["storage"] == "dense"]
    sizes = {entry["rows"]: entry["nbytes"] for entry in dense}
    assert sizes["scalar"] < 1024 * 100 < 1030 * 512 * 9 < sizes["trajectory"]
    assert "| sample 1024 |" in capsys.readouterr().out


def test_a_peer_that_is_not_installed_is_named(capsys, monkeypatch):
    monkeypatch.setattr(replay_peers.Cpprb, "needs", ("no_such_module",))
    flags = ["--rounds", "1", "--sizes", "--trajectory-sizes", "--peers", "cpprb"]
    run(monkeypatch, *flags)
    assert "cpprb is left out: no_such_module is not installed; pip install cpprb" in (
        capsys.readouterr().out
    )


def test_a_compiled_module_that_does_not_load_is_named_without_its_place(monkeypatch, tmp_path):
    (tmp_path / "broken_trees.py").write_text("raise ImportError('undefined symbol: ' + __file__)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(replay_peers.Torchrl, "needs", ("json", "broken_trees"))
    reason = missing(["torchrl"])["torchrl"]
    assert "broken_trees does not load (ImportError)" in reason
    assert str(tmp_path) not in reason


@pytest.mark.parametrize(("minimum", "passed"), [(150e-6, True), (151e-6, False)])
def test_targets_are_judged_by_the_minimum(minimum, passed):
    verdicts = judge([cell("freshper", minimum), cell("flashbax", 100e-6)])
    assert [entry["passed"] for entry in verdicts] == [None, None, passed, None, None]


def test_a_faster_peer_is_told():
    cells = [cell("freshper", 50e-6), cell("flashbax", 100e-6), cell("cpprb", 10e-6)]
    (ahead,) = peers_ahead(cells)
    assert ahead["implementation"] == "cpprb"
    assert ahead["times"] == pytest.approx(5)
    report = {"peers": ["flashbax", "cpprb"], "cells": cells, "memory": [], "packed": []}
    text = tables(report | {"targets": judge(cells), "peers_ahead": [ahead]})
    assert "- cpprb, update 128: 5.0 times (scalar, N=1,000,000)" in text
    assert "| 50 / 50 us | 100 / 100 us | 10 / 10 us | 0.50 |" in text


def test_updates_reach_the_rows_that_are_stored_now():
    buffer = Freshper({"reward": np.zeros((), np.float32)}, 8)
    for _ in range(2):
        buffer.add({"reward": np.zeros(5, np.float32)}, np.ones(5, np.float32))()
        buffer.update(np.arange(5), np.full(5, 3.0, np.float32))()
    stats = buffer._buffer.stats(buffer._state, 0)
    assert int(stats.size) == 8
    assert int(stats.stale_updates) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds", "0"], "--rounds: at least 1"),
        (["--sizes", "100"], "at least 1024"),
        (["--peers", "reverb"], "invalid choice"),
        (["--json", "no/such/folder/f.json"], "there is no folder"),
    ],
)
def test_bad_options_are_told_before_the_measurement(capsys, monkeypatch, flags, message):
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, *flags)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
