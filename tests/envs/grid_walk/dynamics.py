"""The transitions of a game in the form of gymnasium's toy tasks, and plain searches over them."""

from collections import deque

import numpy as np

from envs.grid_walk import Walks, step
from envs.grid_walk.rules import enter


def transitions(rules, ground, start, cell, action):
    """Returns gymnasium's list for a state and an action: probability, next, reward, ended."""
    found = []
    for turn, share in rules.headings:
        heading = np.array([action + turn])
        lands, kind = enter(rules, ground[None], np.array([start]), [0], np.array([cell]), heading)
        reward, ended = rules.rewards[kind[0]], bool(rules.ends[kind[0]])
        found.append((share, int(lands[0]), reward, ended))
    return found


def sample(rules, ground, start, cell, action, *, rows, seed=0):
    """Takes one step from a state in many rows of different seeds: next cells and rewards."""
    seeds = np.arange(seed, seed + rows, dtype=np.uint64)
    here = np.full(rows, cell)
    walks = Walks(np.zeros(rows, int), here, seeds, np.zeros(rows, int))
    walks, rewards, _ = step(
        rules, ground[None], np.array([start]), walks, np.full(rows, action), np.ones(rows, bool)
    )
    return walks.cell, rewards


def merge(listed):
    """Adds up the probabilities of equal outcomes of a list as gymnasium's."""
    merged = {}
    for share, state, reward, ended in listed:
        outcome = (int(state), float(reward), bool(ended))
        merged[outcome] = merged.get(outcome, 0.0) + share
    return merged


def chi_square(cells, listed):
    """Returns the statistic of next cells against a list of outcomes, and the degrees."""
    shares = {}
    for share, state, _, _ in listed:
        shares[int(state)] = shares.get(int(state), 0.0) + share
    assert set(np.unique(cells).tolist()) <= set(shares)
    expected = np.array(list(shares.values())) * len(cells)
    counts = np.array([(cells == state).sum() for state in shares])
    return ((counts - expected) ** 2 / expected).sum(), len(shares) - 1


def search(rows, start):
    """Returns the steps from the start to G over rows of letters by breadth-first search."""
    depth = {start: 0}
    queue = deque(depth)
    while queue:
        row, column = queue.popleft()
        if rows[row][column] == "G":
            return depth[row, column]
        for following in (
            (row + 1, column),
            (row - 1, column),
            (row, column + 1),
            (row, column - 1),
        ):
            inside = 0 <= following[0] < len(rows) and 0 <= following[1] < len(rows[0])
            if inside and following not in depth and rows[following[0]][following[1]] not in "HC":
                depth[following] = depth[row, column] + 1
                queue.append(following)
    return None


def letters(ground):
    """Returns rows of F, H and G of kinds of ground [H, W]."""
    return ["".join("FHG"[kind] for kind in row) for row in ground]
