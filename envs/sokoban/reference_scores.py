"""What a random and an optimal player reach on a set of levels."""

import numpy as np

from envs.reference_score import ReferenceScore
from envs.sokoban.levels import LevelSet
from envs.sokoban.rules import ACTIONS, NOOP, make_boards, step
from envs.sokoban.solver import solve


def random_reference(
    levels: LevelSet, horizon: int, *, seed: int = 0, episodes_per_level: int = 8
) -> ReferenceScore:
    """Plays every level with uniformly random, always valid actions."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    cells = np.repeat(levels.cells, episodes_per_level, axis=0)
    return _play(cells, rng.integers(0, len(ACTIONS), (len(cells), horizon)))


def optimal_reference(levels: LevelSet, horizon: int) -> ReferenceScore:
    """Plays a shortest solution of every level, cut off at the horizon."""
    actions = np.full((len(levels), horizon), NOOP)
    for row, level in enumerate(levels.cells):
        solution = (solve(level) or ())[:horizon]
        actions[row, : len(solution)] = solution
    return _play(levels.cells, actions)


def _play(cells: np.ndarray, actions: np.ndarray) -> ReferenceScore:
    """Plays actions [B, horizon] on boards [B, H, W] until each is solved."""
    boards = make_boards(cells)
    score = np.zeros(len(cells))
    for move in actions.T:
        acting = (boards.off_target > 0) & (move != NOOP)
        boards, rewards, _ = step(boards, np.where(acting, move, NOOP))
        score += np.where(acting, rewards, 0.0)
    return ReferenceScore(float(np.mean(boards.off_target == 0)), float(score.mean()))
