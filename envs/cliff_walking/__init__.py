"""CliffWalking on the host: its presets and environments."""

from typing import Any

from envs.cliff_walking.task import ACTIONS, CLIFF_WALKING, PRESETS, STANDARD_MAP, SYMBOLS
from envs.cliff_walking.tiles import draw_tiles
from envs.grid_walk.game import load_game, make_single
from envs.grid_walk.task import Preset
from envs.single_env import GameEnv
from envs.vector_env import GameVectorEnv

__all__ = [
    "ACTIONS",
    "CLIFF_WALKING",
    "PRESETS",
    "STANDARD_MAP",
    "SYMBOLS",
    "draw_tiles",
    "make_cliff_walking",
    "make_single_cliff_walking",
]


def make_cliff_walking(
    preset: str | Preset = "standard",
    num_envs: int = 1,
    *,
    seed: int | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> GameVectorEnv:
    """Makes the vector environment of a preset; `options` are those of `grid_walk.load_game`."""
    game = load_game(CLIFF_WALKING, preset, **options)
    return GameVectorEnv(game, num_envs, seed=seed, render_mode=render_mode)


def make_single_cliff_walking(preset: str | Preset = "standard", **options: Any) -> GameEnv:
    """Makes the single environment of a preset; `options` are those of `grid_walk.make_single`."""
    return make_single(CLIFF_WALKING, preset, **options)
