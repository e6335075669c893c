import os
import subprocess
import sys
from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from envs.sokoban import PRESETS, Preset, build_bank, load_bank, render_text
from tests.envs.sokoban import oracle

TINY = Preset("tiny", 6, 6, 1, 1, 4, horizon=6, train_levels=48, held_out_levels=16)


@pytest.mark.parametrize("name", PRESETS)
def test_every_level_is_solvable_in_exactly_its_length(banks, name):
    bank = banks[name]
    stride = {"simple": 4, "hard": 1, "long": 3}[name]
    for levels in (bank.train, bank.held_out):
        lengths = [oracle.shortest(text) for text in render_text(levels.cells[::stride])]
        assert lengths == levels.optimal_lengths[::stride].tolist()


@pytest.mark.parametrize("name", PRESETS)
def test_lengths_are_as_frequent_as_the_preset_says(banks, presets, name):
    preset = presets[name]
    shares = preset.length_decay ** np.arange(preset.max_length - preset.min_length + 1)
    shares /= shares.sum()
    wanted = (preset.train_levels, preset.held_out_levels)
    for levels, total in zip((banks[name].train, banks[name].held_out), wanted, strict=True):
        lengths, counts = np.unique(levels.optimal_lengths, return_counts=True)
        assert len(levels) == total
        assert lengths.tolist() == list(range(preset.min_length, preset.max_length + 1))
        assert np.abs(counts - total * shares).max() < 1
        part = total // 3  # and so is every prefix
        prefix = np.bincount(levels.optimal_lengths[:part])[preset.min_length :]
        assert np.abs(prefix - part * shares).max() <= 1.5


@pytest.mark.parametrize("name", PRESETS)
def test_boards_are_as_the_preset_says(banks, presets, name):
    preset = presets[name]
    assert banks[name].train.cells.shape[1:] == (preset.height, preset.width)
    for text in render_text(banks[name].train.cells[:200]):
        _, targets, boxes, player = oracle.parse(text)
        assert len(targets) == len(boxes) == preset.boxes
        assert player is not None


@pytest.mark.parametrize("name", PRESETS)
def test_no_level_is_in_both_splits_however_turned(banks, name):
    train = render_text(banks[name].train.cells)
    held_out = {min(oracle.orbit(text)) for text in render_text(banks[name].held_out.cells)}
    canonical = [min(oracle.orbit(text)) for text in train]
    assert held_out.isdisjoint(canonical)
    assert len(set(canonical)) == len(train)
    assert len(held_out) == len(banks[name].held_out)


def test_rooms_are_varied(banks):
    walls = banks["simple"].train.cells[:1000] == 0
    assert len(np.unique(walls, axis=0)) > 500


def test_default_presets_are_those_of_the_task():
    found = {
        name: (p.height, p.width, p.boxes, p.min_length, p.max_length, p.horizon)
        for name, p in PRESETS.items()
    }
    assert found == {
        "simple": (6, 6, 1, 1, 10, 10),
        "hard": (8, 8, 2, 4, 10, 20),
        "long": (8, 8, 2, 8, 20, 30),
    }
    assert all(p.train_levels >= 4096 and p.held_out_levels >= 512 for p in PRESETS.values())


def equal(first, second):
    return all(
        np.array_equal(value, getattr(second.split(split), field))
        for split in ("train", "held_out")
        for field, value in vars(first.split(split)).items()
    )


def test_the_cache_gives_back_what_was_built(tmp_path):
    calls = []
    built = load_bank(TINY, cache_dir=tmp_path, progress=lambda *counts: calls.append(counts))
    assert calls[-1] == (64, 64)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    again = load_bank(TINY, cache_dir=tmp_path, progress=lambda *_: pytest.fail("built again"))
    assert equal(built, again)
    assert equal(built, build_bank(TINY))
    assert len(list(tmp_path.iterdir())) == 1


def test_bank_depends_on_seed_and_levels_not_on_horizon(tmp_path):
    bank = load_bank(TINY, cache_dir=tmp_path)
    assert equal(bank, load_bank(replace(TINY, horizon=9), cache_dir=tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    assert not equal(bank, load_bank(TINY, seed=1, cache_dir=tmp_path))
    load_bank(replace(TINY, max_length=5), cache_dir=tmp_path)  # same name, other levels
    assert equal(bank, load_bank(TINY, cache_dir=tmp_path))
    assert len(list(tmp_path.iterdir())) == 3


def test_the_cache_folder_can_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FRESHPER_CACHE", str(tmp_path / "deep" / "folder"))
    load_bank(TINY)
    assert len(list((tmp_path / "deep" / "folder").iterdir())) == 1
    monkeypatch.delenv("FRESHPER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    load_bank(TINY)
    assert len(list((tmp_path / ".cache" / "freshper_jax").iterdir())) == 1


@pytest.mark.parametrize(
    "damage", ["cut", "empty", "noise", "flipped", "foreign", "older", "pickle"]
)
def test_a_damaged_cache_is_rebuilt_with_a_warning(tmp_path, damage):
    bank = load_bank(TINY, cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    if damage == "foreign":
        np.savez(path, something=np.arange(3))
    elif damage == "older":
        arrays = dict(np.load(path))
        arrays["identity"] = np.array(str(arrays["identity"]).replace('"format": 2', '"format": 1'))
        np.savez(path, **arrays)
    elif damage == "pickle":
        np.savez(path, identity=np.array([{}], object))
    else:
        middle = len(good) // 2
        path.write_bytes(
            {
                "cut": good[:middle],
                "empty": b"",
                "noise": b"\x00\xff" * 500,
                "flipped": good[:200] + bytes([good[200] ^ 255]) + good[201:],
            }[damage]
        )
    with pytest.warns(UserWarning, match=rf"{path.name}: rebuilding the level bank"):
        assert equal(bank, load_bank(TINY, cache_dir=tmp_path))
    assert equal(bank, load_bank(TINY, cache_dir=tmp_path))  # and the cache is whole again


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flips")
    bank = load_bank(TINY, cache_dir=folder)
    (path,) = folder.iterdir()
    return folder, path, path.read_bytes(), bank


@hypothesis.given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
@hypothesis.settings(max_examples=60)
@pytest.mark.filterwarnings("ignore:.*rebuilding:UserWarning")
def test_one_flipped_bit_never_gives_other_levels(cached, place, bit):
    folder, path, good, bank = cached
    damaged = bytearray(good)
    damaged[place % len(good)] ^= 1 << bit
    path.write_bytes(damaged)
    assert equal(bank, load_bank(TINY, cache_dir=folder))


def test_a_cache_that_cannot_be_written_costs_only_a_warning(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.warns(UserWarning, match="could not be cached"):
        bank = load_bank(TINY, cache_dir=blocked / "folder")
    assert equal(bank, build_bank(TINY))


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.warns(UserWarning, match="could not be cached.*No space left"):
        load_bank(TINY, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bank_is_the_same_in_every_process():
    code = (
        "from envs.sokoban import Preset, build_bank, make_game\n"
        "from envs import GameVectorEnv\n"
        "bank = build_bank(Preset('tiny', 6, 6, 1, 1, 4, horizon=6,"
        " train_levels=48, held_out_levels=16))\n"
        "env = GameVectorEnv(make_game(bank.train, horizon=6), 5)\n"
        "print(bank.train.hashes.tolist(), env.reset(seed=7)[0], env.reset()[0])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            check=True,
        ).stdout
        for salt in ("0", "1", "4242")
    }
    assert len(outputs) == 1
    assert str(build_bank(TINY).train.hashes.tolist()).encode() in outputs.pop()


def test_scarce_lengths_leave_the_bank_smaller():
    scarce = Preset("scarce", 5, 5, 1, 1, 12, horizon=12, train_levels=96, held_out_levels=24)
    bank = build_bank(scarce)
    assert 0 < len(bank.held_out) < 24
    assert bank.train.optimal_lengths.max() <= 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": 4}, "height must be at least 5, not 4"),
        ({"boxes": 0}, "boxes must be at least 1, not 0"),
        ({"boxes": 8}, "boxes: 8 do not fit 6 x 6"),
        ({"min_length": 5}, "1 <= min <= max, not 5 and 4"),
        ({"min_length": 0}, "1 <= min <= max, not 0 and 4"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"held_out_levels": 0}, "at least 1, not 48 and 0"),
        ({"name": "../x"}, "name must be"),
    ],
)
def test_bad_presets_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)


def test_bad_arguments_are_refused(tmp_path, banks):
    with pytest.raises(ValueError, match=r"preset must be one of .*'simple'.*, not 'easy'"):
        load_bank("easy", cache_dir=tmp_path)
    with pytest.raises(ValueError, match="seed must not be negative: -1"):
        load_bank(TINY, seed=-1, cache_dir=tmp_path)
    with pytest.raises(ValueError, match=r"split must be one of .*, not 'test'"):
        banks["simple"].split("test")
    with pytest.raises(ValueError, match="admits no"):
        build_bank(Preset("none", 5, 5, 1, 60, 60, horizon=1, train_levels=1, held_out_levels=1))
