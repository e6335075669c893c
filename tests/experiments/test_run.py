import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from envs import TaskError
from experiments.options import OptionsError
from experiments.run_directory import RunError
from experiments.runner import parse_options
from experiments.sokoban import EXPERIMENT
from freshper_jax.training import CheckpointError, latest_step
from tests.experiments.small import FLAGS, run_small

ARMS = (
    "freshper",
    "freshper_auto",
    "freshper_corrected",
    "per",
    "uniform",
    "fifo",
    "on_policy",
    "on_policy_epochs",
)
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # orbax reads the shardings from its file, and says so
        return jax.tree.map(np.asarray, ocp.load(folder, checkpointable_name="policy"))


def test_a_run_leaves_its_files_behind(finished):
    path, printed = finished
    for name in ("config.json", "results.json", "learning_curve.png", "ages.png", "episodes.md"):
        assert (path / name).stat().st_size > 100, name
    assert list((path / "tensorboard").glob("events*"))
    assert (path / "tokenizer" / "tokenizer.json").exists()
    results = json.loads((path / "results.json").read_text())
    assert set(results) == {
        "random start, sampled",
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
    fifo = parse_options(EXPERIMENT, ["--arm=fifo"])
    assert (fifo.replay.strategy, fifo.replay.capacity) == ("uniform", 512)
    assert (
        parse_options(EXPERIMENT, ["--arm=fifo", "--replay.capacity=1024"]).replay.capacity == 1024
    )
    assert parse_options(EXPERIMENT, ["--arm", "per"]).replay.tau is None
    assert parse_options(EXPERIMENT, ["--replay.tau", "7"]).replay.tau == 7.0
    assert parse_options(EXPERIMENT, ["--arm=on_policy"]).replay.source == "none"


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


def command(out, *flags):
    return [sys.executable, "-m", "experiments.sokoban", *FLAGS, f"--out={out}", *flags]


def subprocess_settings():
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir}
    return {"cwd": PROJECT, "env": environment}


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    flags = ("--iterations=12", "--checkpoint-every=5", "--evaluation.every=3")
    settings = subprocess_settings()
    whole = subprocess.run(
        command(tmp_path / "whole", *flags), capture_output=True, text=True, **settings
    )
    assert whole.returncode == 0, whole.stderr

    metrics = tmp_path / "killed" / "metrics.jsonl"
    with (tmp_path / "log").open("w") as log:
        killed = subprocess.Popen(command(tmp_path / "killed", *flags), stdout=log, **settings)
        deadline = time.time() + 300
        while time.time() < deadline and killed.poll() is None:
            # Seven lines: the start and six iterations, one more than the checkpoint holds.
            if metrics.exists() and metrics.read_text().count("\n") >= 7:
                killed.send_signal(signal.SIGKILL)
                break
            time.sleep(0.005)
        assert killed.wait() == -signal.SIGKILL

    resumed = subprocess.run(
        command(tmp_path / "killed", *flags, "--resume"), capture_output=True, text=True, **settings
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "after iteration 5" in resumed.stdout
    assert history(tmp_path / "killed") == history(tmp_path / "whole")
    jax.tree.map(
        np.testing.assert_array_equal,
        parameters(tmp_path / "killed"),
        parameters(tmp_path / "whole"),
    )
    results = [(tmp_path / name / "results.json").read_text() for name in ("killed", "whole")]
    assert results[0] == results[1]


class Failing:
    """An environment whose steps fail from the n-th on, as one does that has lost its server."""

    def __init__(self, env, steps):
        self.env, self.left = env, steps

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, actions):
        self.left -= 1
        if self.left < 0:
            raise TaskError("the server is down; start it again")
        return self.env.step(actions)


@pytest.mark.parametrize(
    ("split", "steps", "last"),
    [("train", 20, 2), ("held_out", 12, 2)],
    ids=["in an iteration", "in an evaluation"],
)
def test_what_was_collected_before_a_failure_is_kept(finished, tmp_path, split, steps, last):
    def make_task(options, console):
        task = EXPERIMENT.make_task(options, console)

        def make_env(which, rows, renderer):
            env = task.make_env(which, rows, renderer)
            return Failing(env, steps) if which == split else env

        return dataclasses.replace(task, make_env=make_env)

    failing = dataclasses.replace(EXPERIMENT, make_task=make_task)
    out = tmp_path / "run"
    with pytest.raises(TaskError, match="start it again"):
        run_small(out, "--checkpoint-every=100", experiment=failing)
    assert latest_step(out / "checkpoints") == last
    assert [line["iteration"] for line in history(out)] == list(range(last + 1))
    path, printed = run_small(out, "--checkpoint-every=100", "--resume")
    assert f"after iteration {last}" in printed
    whole = history(finished[0])
    if split == "held_out":  # the evaluation that failed is the one thing missing
        whole[last] = {k: v for k, v in whole[last].items() if not k.startswith("held_out/")}
    assert history(path) == whole
    jax.tree.map(np.testing.assert_array_equal, parameters(path), parameters(finished[0]))


@pytest.mark.slow
def test_packed_storage_gives_the_run_of_dense_storage(finished, tmp_path):
    """As long as no trajectory leaves for want of tokens, the same ones are drawn."""
    every_row = 64 * 96
    path, _ = run_small(
        tmp_path / "packed", "--replay.storage=packed", f"--replay.token-capacity={every_row}"
    )
    assert history(path) == history(finished[0])
    jax.tree.map(np.testing.assert_array_equal, parameters(path), parameters(finished[0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--replay.storage=packed", "--replay.capacity=16"),
        ("--replay.strategy=groups", "--group-size=2", "--replay.capacity=12"),
        ("--replay.strategy=prioritized_without_replacement", "--replay.eviction=lowest_priority"),
        ("--arm=freshper_auto", "--replay.tau-prior=4"),
        ("--replay.tau=profile", "--replay.tau-prior=4"),
    ],
    ids=["packed", "groups", "without replacement", "auto tau", "profile"],
)
def test_every_kind_of_buffer_resumes_bit_for_bit(flags, tmp_path):
    flags = (*flags, "--iterations=2", "--checkpoint-every=1", "--evaluation.every=0")
    path, _ = run_small(tmp_path / "run", *flags)
    before, trained = history(path), parameters(path)
    shutil.rmtree(path / "checkpoints" / "00000002")
    path, printed = run_small(path, *flags, "--resume")
    assert "after iteration 1" in printed
    assert history(path) == before
    jax.tree.map(np.testing.assert_array_equal, parameters(path), trained)
    if "--replay.storage=packed" in flags:
        config = json.loads((path / "config.json").read_text())
        assert config["replay"]["token_capacity"] == 16 * 96 // 3
        # The tokens run out before the slots do.
        assert before[-1]["buffer/size"] < 16
    if "--replay.tau-prior=4" in flags:
        # Two draws of 8 rows an iteration, the older ones forgotten a little.
        seen = [sum(line["tau/count"]) for line in before[1:]]
        np.testing.assert_allclose(seen[0], 8 + 0.98 * 8)
        np.testing.assert_allclose(seen[1], 8 + 0.98 * 8 + 0.98**2 * seen[0], rtol=1e-6)
        assert before[1]["tau/tau"] == 4.0
    if "--replay.strategy=groups" in flags:
        assert [line["buffer/size"] for line in before[1:]] == [8, 12]


@pytest.fixture(scope="module")
def one_iteration(tmp_path_factory):
    """A run of one iteration on one device."""
    return run_small(tmp_path_factory.mktemp("one") / "single", "--iterations=1")[0]


@pytest.mark.slow
@pytest.mark.parametrize("axes", [("data=8",), ("data=2", "fsdp=2", "tp=2")])
def test_a_mesh_gives_the_result_of_one_device(axes, one_iteration, tmp_path):
    flags = [f"--mesh.{axis}" for axis in axes]
    path, _ = run_small(tmp_path / "mesh", "--iterations=1", *flags)
    meshed, single = history(path)[1], history(one_iteration)[1]
    assert meshed["age/count"] == single["age/count"]
    for name in ("rollout/score", "fresh/entropy", "fresh/grad_norm", "replay/kl_k3"):
        np.testing.assert_allclose(meshed[name], single[name], rtol=1e-4, atol=1e-7)
    # Adam divides by the root of the second moment: a rounding error in a gradient near zero
    # may move a parameter by a share of the learning rate, which warm-up holds at 3e-5.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5),
        parameters(path),
        parameters(one_iteration),
    )


@pytest.mark.slow
def test_a_run_on_a_mesh_resumes(tmp_path):
    flags = (
        "--mesh.data=4",
        "--mesh.fsdp=2",
        "--iterations=2",
        "--checkpoint-every=1",
        "--arm=freshper_auto",
    )
    path, _ = run_small(tmp_path / "mesh", *flags)
    shutil.rmtree(path / "checkpoints" / "00000002")
    before = history(path)
    path, printed = run_small(path, *flags, "--resume")
    assert "after iteration 1" in printed
    assert history(path) == before


def test_a_run_that_saved_nothing_is_begun_anew(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.json").write_text("{}")
    (out / "metrics.jsonl").write_text('{"iteration": 0, "held')  # cut short by a kill
    path, _ = run_small(out, "--iterations=1", "--resume")
    assert [line["iteration"] for line in history(path)] == [0, 1]
    assert json.loads((path / "config.json").read_text())["iterations"] == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--arm=best"], "--arm: unknown arm 'best', expected one of freshper, freshper_auto"),
        (["--replay.tau=0"], "--replay.tau: got 0.0, expected a number above 0"),
        (["--replay.tau=nan"], "--replay.tau"),
        (["--replay.tau=auto", "--replay.tau-prior=0.5"], "--replay.tau-prior: got 0.5"),
        (["--replay.tau=auto", "--replay.tau-forgetting=1"], "--replay.tau-forgetting: got 1.0"),
        (["--replay.tau=auto", "--replay.strategy=uniform"], "--replay.tau: got auto, expected N"),
        (["--replay.tau=1e-31"], "--replay.tau: got 1e-31"),
        (["--replay.alpha=-1"], "--replay.alpha: got -1.0"),
        (["--replay.batch=0"], "--replay.batch: got 0, expected an integer of at least 1"),
        (["--replay.capacity=32"], "--replay.capacity: got 32, expected at least --replay.batch"),
        (["--replay.beta", "0.4", "2"], "--replay.beta"),
        (["--iterations=0"], "--iterations: got 0"),
        (["--temperature=0"], "--temperature: got 0.0"),
        (["--learning.microbatches=5"], "--episodes: got 64, expected a multiple"),
        (["--learning.discount=0"], "--learning.discount"),
        (["--learning.clip=2"], "--learning.clip: got 2.0"),
        (["--learning.kl-coefficient=-1"], "--learning.kl-coefficient: got -1.0"),
        (["--learning.advantage-clip=-1"], "--learning.advantage-clip"),
        (["--learning.warmup=-1"], "--learning.warmup: got -1"),
        (["--warm-start.check-every=0"], "--warm-start.check-every: got 0"),
        (["--warm-start.batch=0"], "--warm-start.batch: got 0"),
        (["--max-tokens=3"], "--max-tokens: got 3"),
        (["--replay.capacity=2000000000"], "--replay.capacity: got 2000000000"),
        (["--replay.capacity=0"], "--replay.capacity: got 0"),
        (
            ["--replay.strategy=oldest", "--replay.batch=128"],
            "--replay.batch: got 128, expected at most --episodes (64) with --replay.strategy",
        ),
        (["--replay.strategy=groups"], "--group-size: got 1, expected an integer of at least 2"),
        (
            ["--replay.strategy=groups", "--group-size=4", "--replay.capacity=1026"],
            "--replay.capacity: got 1026, expected a multiple of --group-size (4)",
        ),
        (
            [
                "--replay.strategy=groups",
                "--group-size=4",
                "--replay.batch=66",
                "--learning.microbatches=1",
            ],
            "--replay.batch: got 66, expected a multiple of --group-size (4)",
        ),
        (
            ["--replay.token-capacity=4096"],
            "--replay.token-capacity: got 4096, expected None without --replay.storage packed",
        ),
        (
            ["--replay.storage=packed", "--replay.eviction=lowest_priority"],
            "--replay.eviction: got lowest_priority, expected oldest with --replay.storage packed",
        ),
        (
            ["--replay.storage=packed", "--replay.strategy=groups", "--group-size=4"],
            "--replay.strategy: got groups, expected any other with --replay.storage packed",
        ),
        (["--seed=-1"], "--seed"),
        (["--preset=huge"], "--preset: unknown preset 'huge', expected one of tiny, smollm2-135m"),
        (["--seed=4294967296"], "--seed: got 4294967296"),
    ],
)
def test_bad_values_are_refused_by_name(flags, message):
    with pytest.raises(OptionsError) as raised:
        parse_options(EXPERIMENT, flags)
    assert message in str(raised.value)


@pytest.mark.parametrize("flags", [["--replay.taus=3"], ["--iterations=many"]])
def test_unknown_flags_end_the_program(flags, capsys):
    with pytest.raises(SystemExit) as raised:
        parse_options(EXPERIMENT, flags)
    assert raised.value.code != 0
    output = "".join(capsys.readouterr())
    assert flags[0].lstrip("-").split("=")[0] in output


def test_an_unknown_task_preset_is_refused(tmp_path):
    with pytest.raises(OptionsError, match="--task: got 'impossible', expected one of simple"):
        run_small(tmp_path / "run", "--task=impossible")
    assert not (tmp_path / "run").exists()


def test_a_buffer_larger_than_memory_is_refused(tmp_path):
    with pytest.raises(OptionsError, match=r"--replay\.capacity: 1000000000 rows of 96 tokens"):
        run_small(tmp_path / "run", "--replay.capacity=1000000000")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--replay.token-capacity=95",), r"got 95, expected an integer from 96 \(one"),
        (
            ("--replay.token-capacity=767", "--replay.strategy=oldest"),
            r"got 767, expected an integer from 768 \(--replay\.batch trajectories of 96 tokens",
        ),
        (("--replay.capacity=100000000",), r"got 3200000000, expected .* to 2\^30 - 1"),
    ],
)
def test_packed_storage_of_too_few_or_too_many_tokens_is_refused(flags, message, tmp_path):
    with pytest.raises(OptionsError, match=rf"--replay\.token-capacity: {message}"):
        run_small(tmp_path / "run", "--replay.storage=packed", *flags)


def test_packed_storage_larger_than_memory_is_refused(tmp_path):
    flags = ("--replay.storage=packed", "--replay.token-capacity=1000000000")
    with pytest.raises(
        OptionsError, match=r"--replay\.capacity: 900000000 rows and 1000000000 tok"
    ):
        run_small(tmp_path / "run", *flags, "--replay.capacity=900000000")


def test_more_held_out_episodes_than_there_are_are_refused(tmp_path):
    with pytest.raises(OptionsError, match="final-episodes: got 2000, expected at most the 1024"):
        run_small(tmp_path / "run", "--evaluation.final-episodes=2000")


def test_more_devices_than_there_are_is_refused(tmp_path):
    with pytest.raises(OptionsError, match="16 devices asked for, 8 found"):
        run_small(tmp_path / "run", "--mesh.data=16", "--episodes=16", "--replay.batch=16")


def test_a_used_directory_needs_resume(finished):
    with pytest.raises(RunError, match="already holds a run; add --resume"):
        run_small(finished[0])


def test_resuming_where_there_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="--resume: there is no run in"):
        run_small(tmp_path / "mistyped", "--resume")


def test_a_directory_of_other_files_is_refused(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="holds other files"):
        run_small(tmp_path / "files")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        run_small(tmp_path / "file")


def test_a_checkpoint_of_another_configuration_is_refused(finished):
    with pytest.raises(CheckpointError, match=r"replay\.alpha was 0\.6, now 0\.5"):
        run_small(finished[0], "--resume", "--replay.alpha=0.5")


def test_a_cut_checkpoint_falls_back_to_the_one_before(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished[0], copy)
    newest = copy / "checkpoints" / "00000004"
    largest = max(newest.rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    largest.write_bytes(largest.read_bytes()[:-7])
    path, printed = run_small(copy, "--resume")
    assert "after iteration 2" in printed
    assert history(path) == history(finished[0])


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_the_run_with_one_line(tmp_path):
    """A limit on the size of files stands for the disk; the events file meets it first."""
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000)); "
        "runpy.run_module('experiments.sokoban', run_name='__main__')"
    )
    flags = command(tmp_path / "run", "--iterations=400", "--replay.capacity=8")[3:]
    done = subprocess.run(
        [sys.executable, "-c", limited, *flags, "--checkpoint-every=1"],
        capture_output=True,
        text=True,
        timeout=300,
        **subprocess_settings(),
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr


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
