import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.options import OptionsError
from experiments.run_directory import RunError
from experiments.runner import parse_options
from freshper_jax.training import CheckpointError, latest_step
from tests.experiments.small import FLAGS, run_small

ARMS = ("freshper", "per", "uniform", "fifo", "on_policy", "on_policy_epochs")
PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRESHPER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four iterations, and what it printed."""
    return run_small(tmp_path_factory.mktemp("runs") / "whole")


def history(path):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    timed = ("time/", "speed/")
    return [{k: v for k, v in line.items() if not k.startswith(timed)} for line in lines]


def parameters(path):
    """The saved policy's bytes, read without the project."""
    from orbax.checkpoint import v1 as ocp

    step = latest_step(path / "checkpoints")
    folder = path / "checkpoints" / f"{step:08d}" / "items"
    return jax.tree.map(np.asarray, ocp.load(folder, checkpointable_name="policy"))


def test_a_run_leaves_its_files_behind(finished):
    path, printed = finished
    for name in ("config.json", "results.json", "learning_curve.png", "ages.png", "episodes.md"):
        assert (path / name).stat().st_size > 100, name
    assert list((path / "tensorboard").glob("events*"))
    assert (path / "tokenizer" / "tokenizer.json").exists()
    results = json.loads((path / "results.json").read_text())
    assert set(results) == {
        "warm start, sampled",
        "freshper, sampled",
        "freshper, greedy",
        "random actions",
        "optimal play",
    }
    assert results["optimal play"]["success"] == 1.0
    assert "held-out" in printed
    assert "optimal play" in printed
    assert [line["iteration"] for line in history(path)] == [0, 1, 2, 3, 4]


def test_ages_are_counted_in_optimiser_updates(finished):
    path, _ = finished
    lines = history(path)
    assert [line["updates"] for line in lines[1:]] == [3, 6, 9, 12]
    # The first draws come after one update, the second after two: of rows born at 0.
    assert lines[1]["age/count"][:3] == [0, 8, 8]
    assert lines[1]["replay/age_mean"] == 1.5
    assert lines[4]["replay/age_max"] <= 11


def test_fresh_data_is_on_policy_to_rounding(finished):
    path, _ = finished
    for line in history(path)[1:]:
        assert line["fresh/kl_k3"] < 1e-9
        assert abs(line["fresh/ratio_max"] - 1) < 1e-4
        assert line["replay/kl_k3"] > line["fresh/kl_k3"]


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS[1:])
def test_every_arm_runs(arm, tmp_path):
    path, _ = run_small(tmp_path / arm, f"--arm={arm}", "--iterations=2")
    config = json.loads((path / "config.json").read_text())
    last = history(path)[-1]
    replays = config["replay"]["source"] == "buffer"
    assert ("replay/loss" in last) == replays
    updates = {"on_policy": 1}.get(arm, 3)
    assert last["updates"] == 2 * updates
    assert (path / "ages.png").exists()


def test_arms_are_settings_and_flags_win_over_them():
    fifo = parse_options("sokoban", ["--arm=fifo"])
    assert (fifo.replay.strategy, fifo.replay.capacity) == ("uniform", 512)
    assert (
        parse_options("sokoban", ["--arm=fifo", "--replay.capacity=1024"]).replay.capacity == 1024
    )
    assert parse_options("sokoban", ["--arm", "per"]).replay.tau is None
    assert parse_options("sokoban", ["--replay.tau", "7"]).replay.tau == 7.0
    assert parse_options("sokoban", ["--arm=on_policy"]).replay.source == "none"


@pytest.mark.slow
def test_nothing_compiles_after_the_second_iteration(tmp_path):
    compiled: list[str] = []

    def listen(event, duration, **_):
        if "backend_compile" in event:
            compiled.append(event)

    at_line: list[int] = []
    from experiments import runner

    original = runner._line

    def line(*arguments):
        at_line.append(len(compiled))
        return original(*arguments)

    jax.monitoring.register_event_duration_secs_listener(listen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_line", line)
        run_small(tmp_path / "run", "--iterations=6", "--evaluation.every=0")
    assert at_line[0] > 0
    assert at_line[1:] == [at_line[1]] * 5


def start(out, *flags):
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir}
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.sokoban", *FLAGS, f"--out={out}", *flags],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    flags = ("--iterations=8", "--checkpoint-every=3")
    whole = start(tmp_path / "whole", *flags)
    assert whole.wait(timeout=300) == 0, whole.stdout.read()

    killed = start(tmp_path / "killed", *flags)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    deadline = time.time() + 300
    while time.time() < deadline and killed.poll() is None:
        if metrics.exists() and len(metrics.read_text().splitlines()) >= 6:  # iteration 5 is done
            killed.send_signal(signal.SIGKILL)
        time.sleep(0.01)
    assert killed.wait() == -signal.SIGKILL

    resumed = start(tmp_path / "killed", *flags, "--resume")
    printed, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, printed
    assert "after iteration 3" in printed
    assert history(tmp_path / "killed") == history(tmp_path / "whole")
    jax.tree.map(
        np.testing.assert_array_equal,
        parameters(tmp_path / "killed"),
        parameters(tmp_path / "whole"),
    )
    results = [(tmp_path / name / "results.json").read_text() for name in ("killed", "whole")]
    assert results[0] == results[1]


@pytest.mark.slow
def test_a_mesh_of_eight_devices_gives_the_result_of_one(finished, tmp_path):
    path, _ = run_small(tmp_path / "mesh", "--mesh.data=8")
    for meshed, single in zip(history(path)[1:3], history(finished[0])[1:3], strict=True):
        for name in ("rollout/score", "fresh/entropy", "replay/age_mean", "replay/kl_k3"):
            np.testing.assert_allclose(meshed[name], single[name], rtol=1e-3, atol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3),
        parameters(path),
        parameters(finished[0]),
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--arm=best"], "--arm: unknown arm 'best', expected one of freshper, per"),
        (["--replay.tau=0"], "--replay.tau: got 0.0, expected a number above 0"),
        (["--replay.tau=nan"], "--replay.tau"),
        (["--replay.alpha=-1"], "--replay.alpha: got -1.0"),
        (["--replay.batch=0"], "--replay.batch: got 0, expected an integer of at least 1"),
        (["--replay.capacity=32"], "--replay.capacity: got 32, expected at least --replay.batch"),
        (["--replay.beta", "0.4", "2"], "--replay.beta"),
        (["--iterations=0"], "--iterations: got 0"),
        (["--temperature=0"], "--temperature: got 0.0"),
        (["--learning.microbatches=5"], "--episodes: got 64, expected a multiple"),
        (["--learning.discount=0"], "--learning.discount"),
        (["--seed=-1"], "--seed"),
    ],
)
def test_bad_values_are_refused_by_name(flags, message):
    with pytest.raises(OptionsError) as raised:
        parse_options("sokoban", flags)
    assert message in str(raised.value)


@pytest.mark.parametrize("flags", [["--replay.taus=3"], ["--preset=huge"], ["--iterations=many"]])
def test_unknown_flags_and_presets_end_the_program(flags, capsys):
    with pytest.raises(SystemExit) as raised:
        parse_options("sokoban", flags)
    assert raised.value.code != 0
    output = "".join(capsys.readouterr())
    assert flags[0].lstrip("-").split("=")[0] in output


def test_an_unknown_task_preset_is_refused(tmp_path):
    with pytest.raises(ValueError, match="preset must be one of"):
        run_small(tmp_path / "run", "--task=impossible")


def test_more_devices_than_there_are_is_refused(tmp_path):
    with pytest.raises(OptionsError, match="16 devices asked for, 8 found"):
        run_small(tmp_path / "run", "--mesh.data=16", "--episodes=16", "--replay.batch=16")


def test_a_used_directory_needs_resume(finished):
    with pytest.raises(RunError, match="already holds a run; add --resume"):
        run_small(finished[0])


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        run_small(tmp_path / "file")


def test_a_checkpoint_of_another_configuration_is_refused(finished):
    with pytest.raises(CheckpointError, match=r"replay\.alpha was 0\.6, now 0\.5"):
        run_small(finished[0], "--resume", "--replay.alpha=0.5")


def test_a_cut_checkpoint_falls_back_to_the_one_before(finished, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished[0], copy)
    newest = copy / "checkpoints" / "00000004"
    largest = max(newest.rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    largest.write_bytes(largest.read_bytes()[:-7])
    path, printed = run_small(copy, "--resume")
    assert "after iteration 2" in printed
    assert history(path) == history(finished[0])


def test_a_full_disk_is_one_clear_error_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    from orbax.checkpoint import v1 as ocp

    original = ocp.save_checkpointables

    def full(path, items):
        if "00000004" in str(path):
            raise OSError(28, "No space left on device")
        return original(path, items)

    monkeypatch.setattr(ocp, "save_checkpointables", full)
    with pytest.raises(CheckpointError, match=r"step 2 stays valid.*No space left"):
        run_small(tmp_path / "run")
    assert latest_step(tmp_path / "run" / "checkpoints") == 2
    monkeypatch.undo()
