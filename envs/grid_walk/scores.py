"""What random and optimal play reach, exactly: backward induction over the steps left.

The value of a cell with h steps left follows from the values with h - 1 left (Bellman, 1957).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from envs.grid_walk.maps import MapSet
from envs.grid_walk.rules import GOAL, Rules, Walks, enter, step
from envs.reference_score import ReferenceScore

# What settles ties, far below any reward and far above rounding.
_HASTE = 1e-6  # a planner pays it for a step, so that of equally good ways it takes the shortest
_GOAL = 1e-9  # what the goal is worth beside its reward

Play = Literal["random", "optimal"]


@dataclass(frozen=True)
class _Values:
    """With some number of steps left: expected rewards and probability of the goal, [N, H * W]."""

    score: np.ndarray
    success: np.ndarray


def reference_score(rules: Rules, maps: MapSet, horizon: int, play: Play) -> ReferenceScore:
    """Returns the expected success and score of a way to play, averaged over the maps.

    Args:
        rules: how the task walks.
        maps: the maps, each as likely.
        horizon: steps a walk may take.
        play: `random` takes each action as often; `optimal` has the highest expected score and,
            of plays of one score, the highest success.
    """
    for values, _ in _backward(rules, maps, horizon, play):  # noqa: B007 - the last one counts
        pass
    rows = np.arange(len(maps))
    return ReferenceScore(
        float(values.success[rows, maps.start].mean()), float(values.score[rows, maps.start].mean())
    )


def plan_walks(
    rules: Rules, maps: MapSet, seeds: np.ndarray, horizon: int
) -> tuple[tuple[int, ...], ...]:
    """Plays each map optimally with the slips of its seed, [N] uint64; returns the actions taken.

    They are optimal for one who does not know the slips beforehand, and of equally good ones
    they lead to the shortest walk. With the same seeds they lead the environment the same way.
    """
    plain, hazard, goal = rules.rewards
    hasty = replace(rules, rewards=(plain - _HASTE, hazard - _HASTE, goal - _HASTE))
    best = [actions for _, actions in _backward(hasty, maps, horizon, "optimal")][::-1]
    rows = np.arange(len(maps))
    walks = Walks(rows, maps.start, seeds, np.zeros(len(maps), np.int64))
    ground = maps.ground.reshape(len(maps), -1)
    taken: list[list[int]] = [[] for _ in rows]
    for choice in best:
        active = ~rules.ends[ground[rows, walks.cell]]
        actions = choice[rows, walks.cell]
        walks, _, _ = step(rules, maps.ground, maps.start, walks, actions, active)
        for row in np.flatnonzero(active):
            taken[row].append(int(actions[row]))
    return tuple(map(tuple, taken))


def _backward(
    rules: Rules, maps: MapSet, horizon: int, play: Play
) -> Iterator[tuple[_Values, np.ndarray]]:
    """Yields, for 1 to `horizon` steps left, values and best actions, [N, H * W] each."""
    ground = maps.ground.reshape(len(maps), -1)
    rows, cells = np.indices(ground.shape, sparse=True)
    ways = []  # of each direction: where it leads, what it pays, whether one walks on
    for heading in range(len(rules.actions)):
        lands, kind = enter(rules, maps.ground, maps.start, rows, cells, np.asarray(heading))
        ways.append((lands, np.array(rules.rewards)[kind], ~rules.ends[kind], kind == GOAL))

    def expect(outcomes: list[np.ndarray]) -> np.ndarray:
        """Mixes what follows each direction into what follows each action, [4, N, H * W]."""
        mixed = np.zeros((len(outcomes), *ground.shape))
        for turn, share in rules.headings:
            mixed += share * np.roll(outcomes, -turn, axis=0)
        return mixed

    values = _Values(*np.zeros((2, *ground.shape)))
    for _ in range(horizon):
        score = expect([pays + on * values.score[rows, lands] for lands, pays, on, _ in ways])
        success = expect([goal + on * values.success[rows, lands] for lands, _, on, goal in ways])
        best = (score + _GOAL * success).argmax(axis=0)
        if play == "random":
            values = _Values(score.mean(axis=0), success.mean(axis=0))
        else:
            chosen = best[None]
            values = _Values(
                np.take_along_axis(score, chosen, 0)[0], np.take_along_axis(success, chosen, 0)[0]
            )
        yield values, best
