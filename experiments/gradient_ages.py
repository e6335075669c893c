"""How long replay points where learning goes: `python -m experiments.gradient_ages`.

It trains as an experiment does and, now and then, sets the gradient of replayed rows of each
octave of age against the gradient of fresh ones. Where their cosine falls to half of what the
youngest rows have is the age at which they mislead, a rival of the age at which the ESS share
falls to a half, on which `--replay.tau auto` rests. It costs gradients of its own, so it is
measured here and not in training.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.build import Parts, build, init_run_state, settle_options
from experiments.command_line import experiment_named, split_flags
from experiments.drift_profile import CENTRES, crossing_age, drift_profile, growth
from experiments.language import make_language
from experiments.objective import make_loss, make_prepare
from experiments.options import Options, OptionsError
from experiments.progress import Console
from experiments.runner import parse_options
from experiments.task import Task
from experiments.warm_start import starting_params
from freshper_jax.replay import reweigh
from freshper_jax.training import (
    AGE_EDGES,
    Optimizer,
    RunState,
    age_bin_labels,
    init_train_state,
    make_update,
)

__all__ = ["Command", "Products", "cosines", "make_products", "measure", "shares"]

# Streams of the run's key, and episodes, apart from those of iterations.
_FRESH, _REPLAYED = 2**31 + 2, 2**31 + 3
_EPISODES = 2**31
_PART = 8  # rows that a gradient takes at a time


@dataclasses.dataclass(frozen=True)
class Command:
    """Measure the cosine of replayed and fresh gradients by age, over several seeds.

    Flags after a lone -- are given to the experiment: -- --iterations 100.
    """

    task: str = "sokoban"
    """Name of an experiment."""
    seeds: int = 3
    """Runs."""
    every: int = 20
    """Iterations between measurements."""
    rows: int = 512
    """Rows of each half of a gradient; fewer drown it in noise."""
    out: Path | None = None
    """Where the table goes; by default runs/gradient-ages-<task>."""


@dataclasses.dataclass(frozen=True)
class Products:
    """Inner products of gradients, each from rows that share nothing, so that noise adds none.

    fresh: of two halves of the fresh rows, an estimate of the squared norm.
    replayed: likewise of the rows of an octave, `[A]`.
    between: of fresh and replayed rows, `[A]`.
    known: `[A]` bool, whether the octave had rows.
    """

    fresh: float
    replayed: np.ndarray
    between: np.ndarray
    known: np.ndarray


def cosines(measured: Sequence[Products]) -> np.ndarray:
    """Return the cosine of replayed and fresh gradients by octave, `[A]`, NaN where unknown.

    Products are added up before they are divided: a single one is mostly noise.
    """
    known = np.stack([one.known for one in measured])
    fresh = (known * np.array([one.fresh for one in measured])[:, None]).sum(axis=0)
    return _ratio(measured) / np.sqrt(np.where(fresh > 0, fresh, np.nan))


def shares(measured: Sequence[Products]) -> np.ndarray:
    """Return the cosines as shares of that of the youngest octave known, `[A]`, NaN where unknown.

    The norm of the fresh gradient, the noisiest of all, cancels.
    """
    ratio = _ratio(measured)
    known = np.flatnonzero(np.isfinite(ratio))
    return ratio / ratio[known[0]] if len(known) else ratio


def _ratio(measured: Sequence[Products]) -> np.ndarray:
    """Return cosines times the norm of the fresh gradient, `[A]`."""
    known = np.stack([one.known for one in measured])
    replayed = np.where(known, [one.replayed for one in measured], 0).sum(axis=0)
    between = np.where(known, [one.between for one in measured], 0).sum(axis=0)
    return between / np.sqrt(np.where(replayed > 0, replayed, np.nan))


def _mean_product(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> float:
    """Return the mean inner product of gradients `first` with gradients `second`."""
    return float(np.mean([np.vdot(one, other) for one in first for other in second]))


def make_products(
    options: Options, task: Task, parts: Parts, rows: int
) -> Callable[[RunState], Products]:
    """Make the measurement of a state, which stays as it is.

    Args:
      options: of the run, settled.
      task: of the run.
      parts: of the run.
      rows: of each half of a gradient.
    """
    buffer = parts.buffer
    if buffer is None or options.learning.has_critic:
        raise OptionsError("gradients by age need replay, and no value head")
    prepare = make_prepare(options, parts.model, None, whole=lambda p: p, reference=None)
    # An optimizer whose updated parameters are the gradient.
    catch = Optimizer(
        init=lambda _: None,
        direction=lambda grads, state, _: (grads, state),
        learning_rate=lambda _: jnp.ones(()),
        apply=lambda _, direction, __: direction,
    )
    update = make_update(
        parts.model.token_log_probs,
        catch,
        loss=make_loss(options.learning),
        microbatches=max(rows // _PART, 1),
    )

    def gradient(params: Any, batch: Any) -> np.ndarray:
        start = init_train_state(jax.tree.map(jnp.copy, params), catch)
        caught, *_ = update(start, batch, np.ones(rows, np.float32))
        leaves = jax.tree.leaves(jax.device_get(caught.params))
        return np.concatenate([leaf.ravel() for leaf in leaves]).astype(np.float64)

    @jax.jit
    def draw(state: RunState, key: jax.Array, low: jax.Array, high: jax.Array) -> Any:
        assert state.replay is not None, "there is a buffer"

        def within(ages: jax.Array) -> jax.Array:
            return jnp.where((ages >= low) & (ages < high), 0.0, -1e4)

        aged = reweigh(state.replay, state.train.step, within)
        return buffer.sample(aged, key, rows, state.train.step, 0.0, tau=math.inf)

    def products(state: RunState) -> Products:
        params, number = state.train.params, int(state.iteration)
        key = jax.random.fold_in(state.key, number)
        fresh = []
        for half in range(2):
            trajectory, _ = parts.play(
                params,
                jax.random.fold_in(jax.random.fold_in(key, _FRESH), half),
                task.train_episodes(options.seed, _EPISODES + 2 * number + half, rows),
                split="train",
                temperature=options.temperature,
            )
            fresh.append(gradient(params, prepare(params, trajectory)))
        size = len(AGE_EDGES)
        replayed, between, known = np.zeros(size), np.zeros(size), np.zeros(size, bool)
        for octave, (low, high) in enumerate(
            zip(AGE_EDGES, (*AGE_EDGES[1:], 2**31 - 1), strict=True)
        ):
            stream = jax.random.fold_in(jax.random.fold_in(key, _REPLAYED), octave)
            samples = [draw(state, one, low, high) for one in jax.random.split(stream)]
            ages = np.concatenate([one.ages for one in samples])
            if not ((ages >= low) & (ages < high)).all():
                continue  # the buffer holds no row so old
            halves = [gradient(params, one.data) for one in samples]
            known[octave] = True
            replayed[octave] = _mean_product(halves[:1], halves[1:])
            between[octave] = _mean_product(fresh, halves)
        return Products(_mean_product(fresh[:1], fresh[1:]), replayed, between, known)

    return products


def measure(
    options: Options, task: Task, *, every: int, rows: int, console: Console
) -> tuple[list[Products], float]:
    """Train a run and measure it every so many iterations.

    Returns:
      The measurements, and the age at which the ESS share of the rows that it replayed fell to
      a half.
    """
    language = make_language(options, task)
    options = settle_options(options, task, language.renderer)
    parts = build(options, task, language)
    state = init_run_state(options, parts, starting_params(options, task, parts, console))
    iterate = parts.make_iterate(jax.tree.map(jnp.copy, state.train.params))
    products = make_products(options, task, parts, rows)
    measured, lines = [], []
    with console.counting("gradients by age", options.iterations) as progress:
        for number in range(1, options.iterations + 1):
            state, metrics = iterate(state)
            lines.append(metrics)
            if number % every == 0:
                measured.append(products(state))
            progress(number, options.iterations, f"success {metrics['rollout/success']:.2f}")
    profile = drift_profile(lines)
    return measured, math.nan if profile is None else growth(profile).half_ess_age


def _write(path: Path, runs: Sequence[Sequence[Products]], every: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "iteration", "age", "fresh", "replayed", "between"])
        for seed, measured in enumerate(runs):
            for index, one in enumerate(measured):
                for octave in np.flatnonzero(one.known):
                    values = (one.fresh, one.replayed[octave], one.between[octave])
                    place = (seed, (index + 1) * every, age_bin_labels()[octave])
                    writer.writerow([*place, *(f"{value:.6g}" for value in values)])


def _half_age(measured: Sequence[Products]) -> float:
    """Return the age at which the cosine falls to half of that of the youngest rows."""
    share = shares(measured)
    known = np.isfinite(share)
    return crossing_age(share[known], CENTRES[known], 0.5) if known.any() else math.nan


def main() -> None:
    """Measure what the command line names, print the table and write it."""
    words, flags = split_flags(sys.argv[1:])
    command = tyro.cli(Command, prog="python -m experiments.gradient_ages", args=words)
    console = Console()
    out = command.out or Path("runs") / f"gradient-ages-{command.task}"
    runs, half_ess = [], []
    try:
        for name in ("seeds", "every", "rows"):
            if (value := getattr(command, name)) < 1:
                raise OptionsError(f"--{name}: got {value}, expected an integer of at least 1")
        experiment = experiment_named(command.task)
        for seed in range(command.seeds):
            options = parse_options(experiment, (*flags, "--seed", str(seed)))
            task = experiment.make_task(options, console)
            measured, half = measure(
                options, task, every=command.every, rows=command.rows, console=console
            )
            runs.append(measured)
            half_ess.append(half)
    except OptionsError as error:
        sys.exit(f"error: {error}")
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "gradients.csv", runs, command.every)
    together = [one for measured in runs for one in measured]
    table = zip(age_bin_labels(), cosines(together), shares(together), strict=True)
    for label, cosine, share in table:
        if np.isfinite(share):
            console.say(f"age {label:>9}  cosine {cosine:.2f}  of the youngest {share:.2f}")
    for seed, (measured, half) in enumerate(zip(runs, half_ess, strict=True)):
        console.say(
            f"seed {seed}: the cosine falls to a half at age {_half_age(measured):.0f}, "
            f"the ESS share at {half:.0f}"
        )
    console.say(f"Table: {out / 'gradients.csv'}")


if __name__ == "__main__":
    main()
