import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import models
from freshper_jax.training import (
    CheckpointError,
    OptimizerConfig,
    checkpoint,
    complete_steps,
    init_train_state,
    latest_step,
    make_optimizer,
    make_update,
    read_meta,
    restore,
    save,
)
from tests.training import toy

OPTIMIZER = make_optimizer(OptimizerConfig(schedule="cosine", total_steps=10, warmup_steps=2))
REPOSITORY = Path(__file__).parents[2]


def small(value=0.0):
    return {"policy": {"w": jnp.full(3, value)}, "rng": {"key": jax.random.key(7)}}


def newest(directory):
    return restore(directory, {"policy": small()["policy"]}).items["policy"]["w"][0]


def damage(folder):
    """Cuts the largest file of a checkpoint's arrays short."""
    files = [path for path in (folder / "items").rglob("*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    os.truncate(path, path.stat().st_size // 2)


def test_everything_comes_back_bit_for_bit(tmp_path, get_key):
    params = toy.init_params(get_key())
    items = {
        "policy": params,
        "optimizer": init_train_state(toy.copy(params), OPTIMIZER),
        "replay": {
            "rows": toy.random_rows(get_key()),
            "odd": jnp.array([jnp.nan, -jnp.inf, -0.0, 1e-42]),
            "half": jnp.arange(3, dtype=jnp.bfloat16),
            "clock": jnp.int32(-5),
            "missing": None,
        },
        "rng": {"key": jax.random.key(3), "many": jax.random.split(jax.random.key(1), 4)},
        "environment": {"levels": np.arange(3, dtype=np.int64) * 2**40},
    }
    save(tmp_path, 17, items, meta={"note": "ü", "list": [1, 2]}, config={"seed": 0})
    found = restore(tmp_path, items, config={"seed": 0})
    assert (found.step, found.passed_over) == (17, ())
    assert found.meta == {"note": "ü", "list": [1, 2]}
    assert read_meta(tmp_path) == {"step": 17, "config": {"seed": 0}, "meta": found.meta}
    assert jax.tree.structure(found.items) == jax.tree.structure(items)

    def bits(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()

    for before, after in zip(jax.tree.leaves(items), jax.tree.leaves(found.items), strict=True):
        assert bits(before) == bits(after)
    keys = found.items["rng"]
    np.testing.assert_array_equal(
        jax.random.normal(keys["key"]), jax.random.normal(jax.random.key(3))
    )


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, get_key):
    update = make_update(toy.token_log_probs, OPTIMIZER, microbatches=2)
    stream = get_key()

    def advance(state, steps):
        for _ in range(steps):
            rows = toy.random_rows(jax.random.fold_in(stream, int(state.step)))
            state, metrics, _ = update(state, rows, jnp.ones(toy.ROWS))
        return state, metrics

    first = init_train_state(toy.init_params(get_key()), OPTIMIZER)
    through, through_metrics = advance(toy.copy(first), 10)
    half, _ = advance(toy.copy(first), 5)
    save(tmp_path, 5, {"train": half})
    abstract = jax.eval_shape(lambda: first)
    resumed, resumed_metrics = advance(restore(tmp_path, {"train": abstract}).items["train"], 5)
    chex.assert_trees_all_equal((through, through_metrics), (resumed, resumed_metrics))
    assert int(resumed.step) == 10


def test_items_are_read_separately(tmp_path):
    save(tmp_path, 1, small(2.0))
    found = restore(tmp_path, {"policy": small()["policy"]})
    assert list(found.items) == ["policy"]
    with pytest.raises(CheckpointError, match=r"holds no item 'replay', only policy, rng"):
        restore(tmp_path, {"replay": small()["policy"]})


def test_arrays_are_restored_to_the_shardings_asked_for(tmp_path):
    saved = {"policy": {"w": jnp.arange(8.0)}}
    save(tmp_path, 1, saved)
    sharding = jax.NamedSharding(models.make_mesh(data=4), jax.P("data"))
    wanted = {"policy": {"w": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)}}
    found = restore(tmp_path, wanted).items["policy"]["w"]
    assert found.sharding == sharding
    np.testing.assert_array_equal(found, np.arange(8.0))
    save(tmp_path, 2, {"policy": {"w": found}})
    back = restore(tmp_path, saved).items["policy"]["w"]
    assert len(back.sharding.device_set) == 1
    np.testing.assert_array_equal(back, np.arange(8.0))


def test_only_the_newest_are_kept(tmp_path):
    for step in (3, 10, 200):
        save(tmp_path, step, small(float(step)), keep=2)
    assert complete_steps(tmp_path) == [10, 200]
    assert latest_step(tmp_path) == 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000010", "00000200"]
    assert restore(tmp_path, {"policy": small()["policy"]}, step=10).items["policy"]["w"][0] == 10


@pytest.mark.parametrize("how", ["truncated", "no marker", "bad marker", "missing file"])
def test_a_cut_short_checkpoint_is_passed_over(tmp_path, how):
    save(tmp_path, 1, small(1.0))
    last = save(tmp_path, 2, small(2.0))
    if how == "truncated":
        damage(last)
    elif how == "no marker":
        (last / "manifest.json").unlink()
    elif how == "bad marker":
        os.truncate(last / "manifest.json", 20)
    else:
        (last / "meta.json").unlink()
    assert latest_step(tmp_path) == 1
    found = restore(tmp_path, {"policy": small()["policy"]})
    assert (found.step, float(found.items["policy"]["w"][0])) == (1, 1.0)
    assert len(found.passed_over) == 1
    assert str(last) in found.passed_over[0]
    with pytest.raises(CheckpointError, match=r"00000002 is cut short"):
        restore(tmp_path, {"policy": small()["policy"]}, step=2)
    save(tmp_path, 2, small(3.0))  # the run comes to that step again
    assert newest(tmp_path) == 3.0


def test_a_lone_cut_short_checkpoint_is_named(tmp_path):
    folder = save(tmp_path, 1, small())
    damage(folder)
    with pytest.raises(
        CheckpointError, match=f"no complete checkpoint: {folder} is cut short: .* bytes"
    ):
        newest(tmp_path)
    assert latest_step(tmp_path) is None


def test_absence_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=f"there is no checkpoint directory {tmp_path}/run"):
        newest(tmp_path / "run")
    with pytest.raises(CheckpointError, match=f"there is no checkpoint in {tmp_path}"):
        newest(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        read_meta(tmp_path)
    save(tmp_path, 4, small())
    with pytest.raises(CheckpointError, match="has no checkpoint of step 5; it has 4"):
        restore(tmp_path, small(), step=5)
    assert complete_steps(tmp_path / "run") == []


def test_another_configuration_is_refused_by_its_keys(tmp_path):
    config = {"seed": 0, "replay": {"tau": 500.0, "alpha": 0.6}, "layers": (1, 2), "old": None}
    save(tmp_path, 1, small(), config=config)
    assert restore(tmp_path, small(), config=config).step == 1
    other = {"seed": 0, "replay": {"tau": 30.0, "alpha": 0.6}, "layers": (1, 3), "new": 1}
    with pytest.raises(CheckpointError, match="another configuration") as caught:
        restore(tmp_path, small(), config=other)
    for difference in (
        "replay.tau was 500.0, now 30.0",
        "layers was [1, 2], now [1, 3]",
        "new was 'absent', now 1",
        "old was None, now 'absent'",
    ):
        assert difference in str(caught.value)
    assert "seed" not in str(caught.value)
    assert "alpha" not in str(caught.value)


def test_other_shapes_are_refused_by_their_leaves(tmp_path):
    save(tmp_path, 1, small())
    wanted = {"policy": {"w": jax.ShapeDtypeStruct((4,), jnp.float32), "v": jnp.zeros(1)}}
    with pytest.raises(CheckpointError, match="shaped otherwise") as caught:
        restore(tmp_path, wanted)
    assert "['w'] is float32[3], expected float32[4]" in str(caught.value)
    assert "['v'] is absent, expected float32[1]" in str(caught.value)


def test_damage_within_a_file_of_right_size_is_one_error(tmp_path):
    folder = save(tmp_path, 1, small())
    for path in (folder / "items" / "policy").rglob("*"):
        if path.is_file():
            path.write_bytes(b"?" * path.stat().st_size)
    with pytest.raises(CheckpointError, match=f"cannot read item 'policy' of {folder}"):
        newest(tmp_path)


@pytest.mark.parametrize("where", ["arrays", "marker"])
def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path, where, monkeypatch):
    save(tmp_path, 1, small(1.0), keep=1)
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*args, **kwargs):
        raise full

    with monkeypatch.context() as patch:
        if where == "arrays":
            patch.setattr(checkpoint.ocp, "save_checkpointables", refuse)
        else:
            patch.setattr(checkpoint, "_file_sizes", refuse)
        with pytest.raises(
            CheckpointError,
            match=rf"step 2 to {tmp_path} \(step 1 stays valid\): .*No space left on device",
        ):
            save(tmp_path, 2, small(2.0), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]
    assert newest(tmp_path) == 1.0
    save(tmp_path, 2, small(2.0), keep=1)  # once there is room again
    assert newest(tmp_path) == 2.0


def test_a_file_size_limit_stops_orbax_cleanly(tmp_path):
    # A real write error from the storage engine itself, with nothing patched.
    script = """
        import resource, signal, sys
        import jax
        from freshper_jax.training import CheckpointError, latest_step, save
        directory = sys.argv[1]
        save(directory, 1, {"policy": {"w": jax.numpy.ones(3)}})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        noise = jax.random.bits(jax.random.key(0), (500_000,))
        try:
            save(directory, 2, {"policy": {"w": noise}})
        except CheckpointError as error:
            print("refused:", error)
        print("latest:", latest_step(directory))
    """
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "step 1 stays valid" in done.stdout
    assert "latest: 1" in done.stdout
    assert "Traceback" not in done.stderr  # one clear error, and no pages of them
    assert "ERROR" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]


def run_script(script, directory, **arguments):
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(directory)]
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, **arguments
    )


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    script = """
        import sys
        import jax, jax.numpy as jnp
        from freshper_jax.training import save
        for step in range(1000):
            save(sys.argv[1], step, {"policy": {"w": jnp.full(200_000, step)}}, keep=1)
            print(step, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    abstract = {"policy": {"w": jax.ShapeDtypeStruct((200_000,), jnp.int32)}}
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) == 5:
                break
        process.send_signal(signal.SIGKILL)
    found = restore(tmp_path, abstract)
    assert found.step >= 5
    np.testing.assert_array_equal(found.items["policy"]["w"], found.step)


@pytest.mark.parametrize("stage", ["arrays", "marker", "rename", "discard"])
def test_a_kill_at_each_stage_is_harmless(tmp_path, stage, monkeypatch):
    class Killed(BaseException):
        """Like SIGKILL, it is caught by nothing."""

    def die(*args, **kwargs):
        raise Killed

    save(tmp_path, 1, small(1.0), keep=1)
    with monkeypatch.context() as patch:
        if stage == "arrays":
            real = checkpoint.ocp.save_checkpointables

            def write_and_die(*args, **kwargs):
                real(*args, **kwargs)
                raise Killed

            patch.setattr(checkpoint.ocp, "save_checkpointables", write_and_die)
        elif stage == "marker":
            patch.setattr(checkpoint, "_file_sizes", die)
        elif stage == "rename":
            patch.setattr(checkpoint.Path, "rename", die)
        else:
            patch.setattr(checkpoint.shutil, "rmtree", die)
        with pytest.raises(Killed):
            save(tmp_path, 2, small(2.0), keep=1)
    assert newest(tmp_path) == (2.0 if stage == "discard" else 1.0)
    assert any(path.name.startswith(".") for path in tmp_path.iterdir())
    save(tmp_path, 3, small(3.0), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["00000003"]
    assert newest(tmp_path) == 3.0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"step": -1}, ValueError, "step must be at least 0, got -1"),
        ({"keep": 0}, ValueError, "keep must be at least 1, got 0"),
        ({"items": {}}, ValueError, "items must hold at least one"),
        (
            {"items": {"a": {"w": jnp.zeros((0, 3))}}},
            ValueError,
            r"'a' has an array without elements at \['w'\]",
        ),
        ({"items": {"a": {"w": "text"}}}, TypeError, r"'a' must hold arrays, got str at \['w'\]"),
        ({"meta": {"x": {1}}}, TypeError, "set is not JSON"),
    ],
)
def test_bad_arguments_are_named(tmp_path, arguments, error, message):
    arguments = {"step": 1, "items": small(), **arguments}
    with pytest.raises(error, match=message):
        save(tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_a_saved_step_is_not_overwritten(tmp_path):
    save(tmp_path, 1, small(1.0))
    with pytest.raises(CheckpointError, match="step 1 is already saved at"):
        save(tmp_path, 1, small(2.0))
    assert newest(tmp_path) == 1.0


def test_the_metadata_is_readable_by_a_person(tmp_path):
    folder = save(tmp_path, 2, small(), config={"seed": 1})
    assert json.loads((folder / "meta.json").read_text())["config"] == {"seed": 1}
