"""The level bank: levels of a preset, built once from a seed, split and cached."""

import hashlib
import json
import math
import os
import re
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from envs.cache import cache_directory
from envs.sokoban.generation import Starts, carve_layouts, solvable_starts, start_cells
from envs.sokoban.levels import LevelSet
from envs.splits import SPLITS, is_held_out
from envs.symmetry import canonical_hashes

_FORMAT = 2  # raise it when the same preset and seed would give other levels
_BATCH = 256  # layouts of one box searched at once; each further box divides it by 4
_SUPPLY = 64  # layouts tried for each level wanted, before a bank settles for fewer

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Preset:
    """What the levels of a bank are like, and how long an episode on them may take.

    Lengths are those of shortest solutions, in actions, from `min_length` to `max_length`.
    Each is `length_decay` times as frequent as the one before it, so 1 makes them equally
    frequent, as far as the generator supplies them.
    """

    name: str
    height: int
    width: int
    boxes: int
    min_length: int
    max_length: int
    horizon: int
    length_decay: float = 1.0
    train_levels: int = 8192
    held_out_levels: int = 1024

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"name must be letters, digits, _, . or -, not {self.name!r}")
        for field, least in (("height", 5), ("width", 5), ("boxes", 1), ("horizon", 1)):
            if getattr(self, field) < least:
                raise ValueError(f"{field} must be at least {least}, not {getattr(self, field)}")
        if not 0 < self.length_decay < math.inf:
            raise ValueError(f"length_decay must be positive, not {self.length_decay}")
        if not 1 <= self.min_length <= self.max_length:
            raise ValueError(
                "min_length and max_length must satisfy 1 <= min <= max, "
                f"not {self.min_length} and {self.max_length}"
            )
        if min(self.train_levels, self.held_out_levels) < 1:
            raise ValueError(
                "train_levels and held_out_levels must be at least 1, "
                f"not {self.train_levels} and {self.held_out_levels}"
            )
        if 2 * self.boxes + 1 > (self.height - 2) * (self.width - 2):
            raise ValueError(f"boxes: {self.boxes} do not fit {self.height} x {self.width}")


PRESETS = {
    preset.name: preset
    for preset in (
        # A third takes at most two moves, as with the levels that the field calls simple.
        Preset("simple", 6, 6, boxes=1, min_length=1, max_length=10, horizon=10, length_decay=0.85),
        Preset("hard", 8, 8, boxes=2, min_length=4, max_length=10, horizon=20),
        Preset("long", 8, 8, boxes=2, min_length=8, max_length=20, horizon=30),
    )
}


@dataclass(frozen=True)
class LevelBank:
    """The levels of a preset; no level is in both splits, turned or mirrored or not."""

    train: LevelSet
    held_out: LevelSet

    def split(self, name: str) -> LevelSet:
        """Returns the split of that name; ValueError if there is none."""
        if name not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, not {name!r}")
        return self.train if name == "train" else self.held_out


def get_preset(preset: str | Preset) -> Preset:
    """Returns a preset by name, or the one given; ValueError if the name is unknown."""
    if isinstance(preset, Preset):
        return preset
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {tuple(PRESETS)}, not {preset!r}")
    return PRESETS[preset]


def load_bank(
    preset: str | Preset,
    *,
    seed: int = 0,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> LevelBank:
    """Returns the bank of a preset and seed from the cache, or builds and caches it.

    A cache file that cannot be read, or that another version wrote, is rebuilt with a
    warning. A cache that cannot be written costs a warning and the build next time.

    Args:
        preset: a name in `PRESETS`, or a preset of your own.
        seed: the bank is a function of preset and seed alone.
        cache_dir: by default $FRESHPER_CACHE, else ~/.cache/freshper_jax.
        progress: called with the levels found and the levels wanted as a build goes on.
    """
    preset = get_preset(preset)
    identity = {"format": _FORMAT, "seed": seed, **asdict(preset)}
    del identity["horizon"]  # no level depends on it
    digest = hashlib.blake2b(json.dumps(identity).encode(), digest_size=4).hexdigest()
    folder = cache_directory(cache_dir)
    path = folder / f"sokoban-{preset.name}-{seed}-{digest}.npz"
    try:
        return _read(path, identity)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        warnings.warn(f"{path}: rebuilding the level bank: {error}", stacklevel=2)
    bank = build_bank(preset, seed=seed, progress=progress)
    try:
        _write(path, identity, bank)
    except OSError as error:
        warnings.warn(f"{path}: the level bank could not be cached: {error}", stacklevel=2)
    return bank


def build_bank(preset: Preset, *, seed: int = 0, progress: Progress | None = None) -> LevelBank:
    """Builds the bank of a preset: at most one level a layout, no two alike under symmetry.

    Raises:
        ValueError: the seed is negative, or the preset admits no level for a split.
    """
    if seed < 0:
        raise ValueError(f"seed must not be negative: {seed}")
    wanted = _quotas(preset)
    left = wanted.copy()
    seen: set[int] = set()
    chosen: list[tuple[np.ndarray, ...]] = []
    count = max(4, _BATCH >> 2 * (preset.boxes - 1))
    for batch in range(1 + _SUPPLY * int(wanted.sum()) // count):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(batch,)))
        layouts = carve_layouts(rng, count, preset.height, preset.width, preset.boxes)
        starts = solvable_starts(layouts, preset.max_length)
        one_each = _one_a_layout(rng, starts, left.sum(axis=0) > 0)
        cells = start_cells(layouts, starts, one_each)
        lengths, hashes = starts.length[one_each], canonical_hashes(cells)
        facts = zip(is_held_out(hashes).astype(int), lengths.tolist(), hashes.tolist(), strict=True)
        kept = []
        for place, (side, length, code) in enumerate(facts):
            if left[side, length] and code not in seen:
                seen.add(code)
                left[side, length] -= 1
                kept.append(place)
        chosen.append((cells[kept], lengths[kept], hashes[kept]))
        if progress is not None:
            progress(int(wanted.sum() - left.sum()), int(wanted.sum()))
        if not left.any():
            break
    cells, lengths, hashes = (np.concatenate(part) for part in zip(*chosen, strict=True))
    levels = LevelSet(cells, lengths.astype(np.int16), hashes)
    held_out = is_held_out(levels.hashes)
    splits = {}
    for name, side in zip(SPLITS, (~held_out, held_out), strict=True):
        if not side.any():
            raise ValueError(f"preset {preset.name!r} admits no {name} level")
        splits[name] = _interleave(levels.take(np.flatnonzero(side)))
    return LevelBank(**splits)


def _quotas(preset: Preset) -> np.ndarray:
    """Returns the levels wanted, by split and length: [2, max_length + 1]."""
    lengths = np.arange(preset.min_length, preset.max_length + 1)
    wanted = np.zeros((len(SPLITS), preset.max_length + 1), int)
    shares = preset.length_decay ** np.arange(len(lengths), dtype=float)
    for side, total in enumerate((preset.train_levels, preset.held_out_levels)):
        exact = total * shares / shares.sum()
        counts = np.floor(exact).astype(int)
        rest = total - counts.sum()  # goes to the largest remainders, the first ones first
        counts[np.argsort(counts - exact, kind="stable")[:rest]] += 1
        wanted[side, lengths] = counts
    return wanted


def _one_a_layout(rng: np.random.Generator, starts: Starts, wanted: np.ndarray) -> np.ndarray:
    """Draws one start of each layout: first a wanted length it offers, then one of that length."""
    order = rng.permutation(np.flatnonzero(wanted[starts.length]))
    lottery = rng.random((1 + starts.layout.max(initial=0), len(wanted)))[
        starts.layout[order], starts.length[order]
    ]
    order = order[np.lexsort((lottery, starts.layout[order]))]
    return order[np.unique(starts.layout[order], return_index=True)[1]]


def _interleave(levels: LevelSet) -> LevelSet:
    """Orders levels so that every prefix holds the lengths in the shares of the whole."""
    by_length = np.argsort(levels.optimal_lengths, kind="stable")
    counts = np.bincount(levels.optimal_lengths)
    turn = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in counts])
    return levels.take(by_length[np.argsort(turn, kind="stable")])


def _write(path: Path, identity: dict, bank: LevelBank) -> None:
    """Writes the cache so that no reader ever sees half a file."""
    arrays = {
        f"{split}_{field}": value
        for split in SPLITS
        for field, value in vars(bank.split(split)).items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, identity=json.dumps(identity), **arrays)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(path: Path, identity: dict) -> LevelBank:
    """Reads a cached bank; raises ValueError unless it is of this identity."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        found = json.loads(str(stored["identity"]))
        if found != identity:
            raise ValueError("it was made from other settings or by another version")
        fields = LevelSet.__dataclass_fields__
        return LevelBank(
            *(
                LevelSet(**{field: stored[f"{split}_{field}"] for field in fields})
                for split in SPLITS
            )
        )
