"""Walking over a grid to a goal: what FrozenLake and CliffWalking have in common."""

from envs.grid_walk.bank import Bank, Scatter, build_bank
from envs.grid_walk.game import WalkState, load_game, make_game, make_single
from envs.grid_walk.maps import MapSet, distances, make_map_set, read_map, show_player, turn_maps
from envs.grid_walk.rules import GOAL, HAZARD, PLAIN, Rules, Walks, step
from envs.grid_walk.scores import plan_walks, reference_score
from envs.grid_walk.task import Preset, WalkTask, adapt

__all__ = [
    "GOAL",
    "HAZARD",
    "PLAIN",
    "Bank",
    "MapSet",
    "Preset",
    "Rules",
    "Scatter",
    "WalkState",
    "WalkTask",
    "Walks",
    "adapt",
    "build_bank",
    "distances",
    "load_game",
    "make_game",
    "make_map_set",
    "make_single",
    "plan_walks",
    "read_map",
    "reference_score",
    "show_player",
    "step",
    "turn_maps",
]
