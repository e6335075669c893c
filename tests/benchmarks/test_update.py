"""The update benchmark runs without torch, and says what it could not compare."""

import json

import pytest

from benchmarks import update
from benchmarks.update import judge, main, matrix_products, measure_apart
from freshper_jax.models import preset
from tests.models.common import small_config


def run(monkeypatch, *flags):
    monkeypatch.setattr("sys.argv", ["benchmarks.update", *flags])
    main()


def test_ours_alone(capsys, monkeypatch, tmp_path):
    def apart(what, flags):
        if what == update.MEMORY:
            return measure_apart(what, flags)
        return update.measure_here(what, preset("tiny"), rows=2, length=16, parts=2)

    # Of several processes one is enough here.
    monkeypatch.setattr(update, "measure_apart", apart)
    monkeypatch.setattr(update, "missing", lambda: "torch not installed; pip install torch")
    path = tmp_path / "figures.json"
    flags = ["--preset", "tiny", "--rows", "2", "--length", "16", "--rounds", "1"]
    run(monkeypatch, *flags, "--json", str(path))
    report = json.loads(path.read_text())
    assert [cell["implementation"] for cell in report["cells"]] == [
        "freshper",
        "freshper-all",
    ]
    assert report["cells"][0]["minimum_s"] > 0
    assert report["ratio"] is None
    assert [entry["passed"] is None for entry in report["targets"]] == [True, False, False]
    # Parameters and two moments are three times 200,000 floats. What is resident is all that this
    # process ever held, earlier tests included.
    assert 0.002 < report["memory"]["compiled_gib"] < 0.1 < report["memory"]["resident_gib"]
    printed = capsys.readouterr().out
    assert "transformers is not compared: torch not installed; pip install torch" in printed
    assert "| freshper |" in printed


def test_products_are_those_of_the_kernels():
    config = small_config(num_hidden_layers=3, num_key_value_heads=1)
    counts = matrix_products(config, 40)
    # Forward, gradient of the input and of the kernel: 6 operations a token and weight.
    weights = 3 * (12 * 24 + 2 * 12 * 6 + 24 * 12 + 3 * 12 * 20) + 12 * 13
    assert sum(2 * m * k * n * count for (m, k, n), count in counts.items()) == 6 * 40 * weights
    assert counts[40, 12, 6] == 6  # keys and values, three layers
    assert counts[12, 40, 20] == 6  # gradients of gate and up


@pytest.mark.parametrize(
    ("ratio", "share", "gib", "passed"),
    [
        (1.0, 0.5, 6.0, [True, True, True]),
        (0.99, 0.49, 6.01, [False, False, False]),
        (None, 0.6, 5.0, [None, True, True]),
    ],
)
def test_goals_are_judged(ratio, share, gib, passed):
    report = {"ratio": ratio, "matmul": {"share": share}, "memory": {"resident_gib": gib}}
    assert [entry["passed"] for entry in judge(report)] == passed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds", "0"], "--rounds: at least 1, got 0"),
        (["--length", "1"], "--length: at least 2, got 1"),
        (["--microbatches", "3"], "--microbatches: must divide the 8 rows, got 3"),
        (["--preset", "huge"], "invalid choice"),
        (["--remat", "some"], "remat must be one of none, dots, full, got 'some'"),
        (["--json", "no/such/folder/f.json"], "there is no folder"),
    ],
)
def test_bad_options_are_told_before_the_measurement(capsys, monkeypatch, flags, message):
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, *flags)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
