import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from envs.cliff_walking import PRESETS as CLIFFS
from envs.frozen_lake import PRESETS as LAKES
from envs.grid_walk import Scatter, build_bank
from tests.envs.grid_walk.dynamics import letters, search

PRESETS = {**LAKES, **{f"cliff {name}": preset for name, preset in CLIFFS.items()}}
DRAWN = {name: p for name, p in PRESETS.items() if isinstance(p.source, Scatter)}
SMALL = Scatter(4, 4, train_maps=300, held_out_maps=60)


@pytest.fixture(scope="module")
def banks():
    return {name: build_bank(preset.source) for name, preset in DRAWN.items()}


def orbit(cells):
    """Returns the board's rotations and reflections as bytes."""
    boards = [np.rot90(board, q) for board in (cells, cells[:, ::-1]) for q in range(4)]
    return {(board.shape, board.tobytes()) for board in boards}


@pytest.mark.parametrize("name", DRAWN)
def test_no_map_comes_twice_however_turned(banks, name):
    splits = (banks[name].train, banks[name].held_out)
    canonical = [[min(orbit(cells)) for cells in maps.cells[:1500]] for maps in splits]
    together = [*canonical[0], *canonical[1]]
    assert len(set(together)) == len(together)


@pytest.mark.parametrize("name", DRAWN)
def test_every_map_can_be_walked_within_the_horizon(banks, name):
    source, horizon = DRAWN[name].source, DRAWN[name].horizon
    for maps in (banks[name].train, banks[name].held_out):
        for row in range(0, len(maps), 20):
            place = divmod(int(maps.start[row]), source.width)
            steps = search(letters(maps.ground[row]), place)
            assert steps == maps.shortest[row]
            assert source.min_path <= steps <= min(source.max_path, horizon)


@pytest.mark.parametrize("name", DRAWN)
def test_banks_are_as_large_as_wanted_and_quick_to_build(name):
    source = DRAWN[name].source
    start = time.process_time()
    bank = build_bank(source)
    assert time.process_time() - start < 5  # it takes a second at most
    if not (source.corners and source.width == 4):  # of which there are few
        assert (len(bank.train), len(bank.held_out)) == (8192, 1024)
    assert min(len(bank.train), len(bank.held_out)) > 100


def test_maps_are_drawn_as_asked_for(banks):
    for name, maps in ((name, bank.train) for name, bank in banks.items()):
        source = DRAWN[name].source
        goal = (maps.ground.reshape(len(maps), -1) == 2).argmax(axis=1)
        if source.corners:
            assert (maps.start == 0).all()
            assert (goal == source.height * source.width - 1).all()
        else:
            assert len(np.unique(maps.start)) == len(np.unique(goal)) == maps.ground[0].size
        if name != "corners-4x4":  # nearly all there are, the rare ones with many holes included
            share = (maps.ground == 1).sum() / (maps.ground[0].size - 2) / len(maps)
            assert 0.1 < share < 0.25  # of 0.2 drawn: those that can be walked, and distinct ones


def test_prefixes_are_fair_samples(banks):
    maps = banks["4x4"].train
    whole, part = maps.shortest.mean(), maps.shortest[:1000].mean()
    assert abs(part - whole) < 4 * maps.shortest.std() / np.sqrt(1000)


def test_bank_is_a_function_of_source_and_seed():
    first, again, other = build_bank(SMALL), build_bank(SMALL), build_bank(SMALL, seed=1)
    np.testing.assert_array_equal(first.train.hashes, again.train.hashes)
    np.testing.assert_array_equal(first.held_out.cells, again.held_out.cells)
    assert set(first.train.hashes.tolist()) != set(other.train.hashes.tolist())
    # Which side a map is on is the map's own, whatever the seed.
    for one, two in ((first, other), (other, first)):
        assert set(one.train.hashes.tolist()).isdisjoint(two.held_out.hashes.tolist())


def test_bank_and_slips_are_the_same_in_every_process():
    code = (
        "from envs.frozen_lake import make_frozen_lake\n"
        "env = make_frozen_lake('slippery-4x4', 6, prompt='minimal')\n"
        "print(env.reset(seed=3)[0])\n"
        "for _ in range(6): print(env.step(['<answer>Up</answer>'] * 6)[0])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            check=True,
        ).stdout
        for salt in ("0", "77")
    }
    assert len(outputs) == 1


def test_a_lone_map_is_for_training_and_held_out():
    bank = build_bank(LAKES["fixed-4x4"].source)
    assert len(bank.train) == len(bank.held_out) == 1
    assert bank.split("train") is bank.train
    assert bank.split("held_out") is bank.held_out


def test_few_maps_leave_the_bank_smaller():
    bank = build_bank(Scatter(3, 3, min_path=2))
    assert 10 < len(bank.held_out) < 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": 0}, "height must be at least 1, not 0"),
        ({"height": 1, "width": 1}, "a map needs two cells"),
        ({"plain": 1.5}, "plain must be from 0 to 1, not 1.5"),
        ({"plain": float("nan")}, "plain must be from 0 to 1, not nan"),
        ({"min_path": 0}, "min_path must be at least 1, not 0"),
        ({"min_path": 5, "max_path": 4}, r"max_path must be at least min_path \(5\), not 4"),
        ({"held_out_maps": 0}, "held_out_maps must be at least 1"),
    ],
)
def test_bad_sources_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="seed must not be negative: -1"):
        build_bank(SMALL, seed=-1)
    with pytest.raises(ValueError, match="no train map was found"):
        build_bank(replace(SMALL, min_path=99, train_maps=1, held_out_maps=1))
    with pytest.raises(ValueError, match=r"split must be one of .*, not 'test'"):
        build_bank(SMALL).split("test")
