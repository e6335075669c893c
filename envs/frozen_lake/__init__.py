"""FrozenLake on the host: its presets and environments."""

from typing import Any

from envs.frozen_lake.task import ACTIONS, FIXED_MAPS, FROZEN_LAKE, PRESETS, SYMBOLS
from envs.frozen_lake.tiles import draw_tiles
from envs.grid_walk.game import load_game, make_single
from envs.grid_walk.task import Preset
from envs.single_env import GameEnv
from envs.vector_env import GameVectorEnv

__all__ = [
    "ACTIONS",
    "FIXED_MAPS",
    "FROZEN_LAKE",
    "PRESETS",
    "SYMBOLS",
    "draw_tiles",
    "make_frozen_lake",
    "make_single_frozen_lake",
]


def make_frozen_lake(
    preset: str | Preset = "4x4",
    num_envs: int = 1,
    *,
    seed: int | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> GameVectorEnv:
    """Makes the vector environment of a preset; `options` are those of `grid_walk.load_game`."""
    game = load_game(FROZEN_LAKE, preset, **options)
    return GameVectorEnv(game, num_envs, seed=seed, render_mode=render_mode)


def make_single_frozen_lake(preset: str | Preset = "4x4", **options: Any) -> GameEnv:
    """Makes the single environment of a preset; `options` are those of `grid_walk.make_single`."""
    return make_single(FROZEN_LAKE, preset, **options)
