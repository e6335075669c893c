"""Banks of maps: drawn from a seed, distinct, and split by a hash that no symmetry changes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs.grid_walk.maps import MapSet, distances, make_map_set, read_map
from envs.grid_walk.rules import GOAL, HAZARD, PLAIN
from envs.splits import SPLITS, is_held_out

_BATCH = 8192  # maps drawn at once
_SUPPLY = 32  # maps drawn for each one wanted, before a bank settles for fewer


@dataclass(frozen=True)
class Scatter:
    """Maps with hazards scattered over them at random.

    height, width: their size.
    plain: the probability that a cell is no hazard.
    corners: whether walks lead from the top left corner to the bottom right one; if not,
        start and goal are any two cells.
    min_path, max_path: bounds on the steps of a shortest way to the goal.
    train_maps, held_out_maps: how many are wanted; of small maps there may be fewer.
    """

    height: int
    width: int
    plain: float = 0.8
    corners: bool = False
    min_path: int = 1
    max_path: int = 2**31 - 1
    train_maps: int = 8192
    held_out_maps: int = 1024

    def __post_init__(self) -> None:
        for field in ("height", "width", "min_path", "train_maps", "held_out_maps"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, not {getattr(self, field)}")
        if self.height * self.width < 2:
            raise ValueError("height, width: a map needs two cells at least")
        if not (0 <= self.plain <= 1 and math.isfinite(self.plain)):
            raise ValueError(f"plain must be from 0 to 1, not {self.plain}")
        if self.max_path < self.min_path:
            raise ValueError(
                f"max_path must be at least min_path ({self.min_path}), not {self.max_path}"
            )


@dataclass(frozen=True)
class Bank:
    """The maps of a preset: no two alike under symmetry, each in one split; a lone map in both."""

    train: MapSet
    held_out: MapSet

    def split(self, name: str) -> MapSet:
        """Returns the split of that name; ValueError if there is none."""
        if name not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, not {name!r}")
        return self.train if name == "train" else self.held_out


def build_bank(source: Scatter | Sequence[str], *, seed: int = 0) -> Bank:
    """Draws the maps of a bank, or reads its only map, which then is for training and held out.

    It takes a second at most, so nothing is cached.

    Raises:
        ValueError: the seed is negative, or no map for a split was found.
    """
    if seed < 0:
        raise ValueError(f"seed must not be negative: {seed}")
    if not isinstance(source, Scatter):
        ground, start = read_map(source)
        only = make_map_set(ground[None], np.array([start]))
        return Bank(only, only)
    wanted = {"train": source.train_maps, "held_out": source.held_out_maps}
    found: dict[str, list[MapSet]] = {name: [] for name in SPLITS}
    counts = dict.fromkeys(SPLITS, 0)
    seen = np.zeros(0, np.uint64)
    for batch in range(1 + _SUPPLY * sum(wanted.values()) // _BATCH):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(batch,)))
        maps = _scatter(rng, source)
        _, first = np.unique(maps.hashes, return_index=True)
        maps = maps.take(np.sort(first[~np.isin(maps.hashes[first], seen)]))
        seen = np.concatenate([seen, maps.hashes])
        held_out = is_held_out(maps.hashes)
        for name, side in zip(SPLITS, (~held_out, held_out), strict=True):
            found[name].append(maps.take(np.flatnonzero(side)))
            counts[name] += int(side.sum())
        if all(counts[name] >= wanted[name] for name in SPLITS):
            break
    splits = {}
    for place, name in enumerate(SPLITS):
        if not counts[name]:
            raise ValueError(f"no {name} map was found that is as asked for: {source}")
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(place, 0)))
        # Common maps are found first, so the order is drawn anew: every prefix is a fair sample.
        order = rng.permutation(counts[name])[: wanted[name]]
        splits[name] = _concatenate(found[name]).take(order)
    return Bank(**splits)


def _scatter(rng: np.random.Generator, source: Scatter) -> MapSet:
    """Draws maps and keeps those whose shortest way is as long as wanted."""
    size = source.height * source.width
    ground = np.where(rng.random((_BATCH, size)) < source.plain, PLAIN, HAZARD).astype(np.uint8)
    rows = np.arange(_BATCH)
    start = np.zeros(_BATCH, np.int64)
    goal = np.full(_BATCH, size - 1)
    if not source.corners:
        start = rng.integers(size, size=_BATCH)
        goal = (start + rng.integers(1, size, size=_BATCH)) % size
    ground[rows, start] = PLAIN
    ground[rows, goal] = GOAL
    ground = ground.reshape(_BATCH, source.height, source.width)
    steps = distances(ground).reshape(_BATCH, size)[rows, start]
    kept = (steps >= source.min_path) & (steps <= source.max_path)
    if not kept.any():
        return MapSet(ground[:0], start[:0], steps[:0], np.zeros(0, np.uint64))
    return make_map_set(ground[kept], start[kept])


def _concatenate(parts: Sequence[MapSet]) -> MapSet:
    return MapSet(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in MapSet.__dataclass_fields__
        )
    )
