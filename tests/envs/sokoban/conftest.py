"""Banks shared by the tests of the environments; built once a session."""

from dataclasses import replace

import pytest

from envs.sokoban import PRESETS, load_bank

SMALL = {
    "simple": {},
    "hard": {"train_levels": 700, "held_out_levels": 140},
    "long": {"train_levels": 260, "held_out_levels": 52},
}


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("banks")


@pytest.fixture(scope="session")
def presets():
    """The three presets, the larger two with fewer levels."""
    return {name: replace(PRESETS[name], **size) for name, size in SMALL.items()}


@pytest.fixture(scope="session")
def banks(presets, cache_dir):
    return {name: load_bank(preset, cache_dir=cache_dir) for name, preset in presets.items()}
