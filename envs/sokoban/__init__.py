"""Sokoban on the host: rules, levels, rendering and environments."""

from envs.sokoban.bank import PRESETS, LevelBank, Preset, build_bank, get_preset, load_bank
from envs.sokoban.game import SokobanState, load_game, make_game, make_single_sokoban, make_sokoban
from envs.sokoban.levels import LevelSet, make_level_set, read_boxoban
from envs.sokoban.reference_scores import ReferenceScore, optimal_reference, random_reference
from envs.sokoban.render import (
    coordinate_words,
    render_coordinates,
    render_rgb,
    render_text,
)
from envs.sokoban.rules import ACTIONS, NOOP, SYMBOLS, Boards, make_boards, step
from envs.sokoban.solver import solve
from envs.symmetry import canonical_hashes

__all__ = [
    "ACTIONS",
    "NOOP",
    "PRESETS",
    "SYMBOLS",
    "Boards",
    "LevelBank",
    "LevelSet",
    "Preset",
    "ReferenceScore",
    "SokobanState",
    "build_bank",
    "canonical_hashes",
    "coordinate_words",
    "get_preset",
    "load_bank",
    "load_game",
    "make_boards",
    "make_game",
    "make_level_set",
    "make_single_sokoban",
    "make_sokoban",
    "optimal_reference",
    "random_reference",
    "read_boxoban",
    "render_coordinates",
    "render_rgb",
    "render_text",
    "solve",
    "step",
]
