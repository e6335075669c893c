"""One run from its command line to its final table."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro

from envs import TaskError
from experiments.build import Parts, build, init_run_state, run_shardings, settle_options
from experiments.experiment import Experiment
from experiments.language import make_language
from experiments.options import (
    Options,
    OptionsError,
    arm_defaults,
    check_options,
    fingerprint,
)
from experiments.plots import plot_ages, plot_learning
from experiments.progress import Console
from experiments.report import make_table, render_episodes, summarise, write_results
from experiments.run_directory import (
    RunDirectory,
    RunError,
    check_free,
    has_checkpoints,
    open_run,
)
from experiments.task import Task
from experiments.warm_start import starting_params
from freshper_jax.models import merge_adapters, without_value_head
from freshper_jax.rollout import EpisodeStats, RolloutError, Trajectory
from freshper_jax.training import (
    CheckpointError,
    RunState,
    TrainState,
    restore,
    save,
    saved_steps,
)
from freshper_jax.weights import save_pretrained

__all__ = ["parse_options", "run", "run_from_command_line"]

MakeTask = Callable[[Options, Console], Task]

# Streams of the run's key that are apart from those of iterations, which start at 0.
_EVALUATION = 2**31


def run_from_command_line(experiment: Experiment) -> None:
    """Parse the command line and run; an error that a person can mend is one line."""
    out = Path()
    try:
        options = parse_options(experiment, sys.argv[1:])
        out = options.out or out
        run(options, experiment.make_task)
    except (OptionsError, RunError, CheckpointError) as error:
        sys.exit(f"error: {error}")
    except (RolloutError, TaskError) as error:
        sys.exit(f"error: {error}{_how_to_go_on(out)}")
    except OSError as error:
        sys.exit(f"error: {error}{_how_to_go_on(out)}")
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        sys.exit(f"error: out of memory: {str(error).splitlines()[0]}{_how_to_go_on(out)}")
    except KeyboardInterrupt:
        sys.exit(f"stopped{_how_to_go_on(out)}")


def _how_to_go_on(out: Path) -> str:
    return "; continue with the same command and --resume" if has_checkpoints(out) else ""


def parse_options(experiment: Experiment, arguments: Sequence[str]) -> Options:
    """Return the options of a command line; preset and arm set defaults, every flag wins.

    Raises:
      OptionsError: a value cannot work. Unknown flags end the program with tyro's message.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--arm", default="freshper")
    first.add_argument("--preset", default="tiny")
    chosen = first.parse_known_args(list(arguments))[0]
    options = tyro.cli(
        Options[experiment.env],  # type: ignore[name-defined]
        prog=f"python -m experiments.{experiment.name}",
        args=list(arguments),
        default=arm_defaults(chosen.arm, experiment.options(chosen.preset)),
    )
    if options.out is None:
        model = "" if options.preset == "tiny" else f"{options.preset}-"
        folder = f"{experiment.name}-{options.task}-{model}{options.arm}-seed{options.seed}"
        options = dataclasses.replace(options, out=Path("runs") / folder)
    check_options(options)
    return options


def run(options: Options, make_task: MakeTask, console: Console | None = None) -> Path:
    """Train by the options, resume where they say so, and write the results.

    Returns:
      The run directory.

    Raises:
      OptionsError, RunError, CheckpointError, RolloutError, TaskError: with the reason; what was
        collected and trained before is kept.
    """
    console = console or Console()
    out = options.out
    assert out is not None, "parse_options fills it in"
    check_free(out, resume=options.resume)
    task = make_task(options, console)
    language = make_language(options, task)
    options = settle_options(options, task, language.renderer)
    parts = build(options, task, language)

    resuming = has_checkpoints(out)
    if resuming:
        state, reference = _load(options, parts, out, console)
        console.say(f"Resuming {out} after iteration {int(state.iteration)}")
    last_iteration = int(state.iteration) if resuming else -1
    directory = open_run(out, fingerprint(options), last_iteration=last_iteration)
    with contextlib.closing(directory):
        if not resuming:
            state, reference = _begin(options, task, parts, directory, console)
        state = _train(options, task, parts, directory, state, reference, console)
        _finish(options, task, parts, directory, state, reference, console)
    return directory.path


def _begin(
    options: Options, task: Task, parts: Parts, directory: RunDirectory, console: Console
) -> tuple[RunState, Any]:
    """Make, measure and save the state before the first iteration; also return its parameters."""
    _save_tokenizer(parts, directory)
    params = starting_params(options, task, parts, console)
    state = init_run_state(options, parts, params)
    state = jax.device_put(state, run_shardings(parts, state))
    # Updates give the parameters away, so those that the run started from are a copy.
    reference = jax.tree.map(jnp.copy, state.train.params)
    measured, _ = _evaluate(task, parts, state, options.evaluation.episodes)
    directory.log(0, _evaluation_metrics(task, measured))
    _save(options, directory, state, reference)
    return state, reference


def _save_tokenizer(parts: Parts, directory: RunDirectory) -> None:
    try:
        parts.renderer.tokenizer.save_pretrained(directory.path / "tokenizer")
    except Exception as error:  # the library raises nothing narrower
        raise RunError(f"--out: cannot write the tokenizer to {directory.path}: {error}") from error


def _train(
    options: Options,
    task: Task,
    parts: Parts,
    directory: RunDirectory,
    state: RunState,
    reference: Any,
    console: Console,
) -> RunState:
    """Iterate to the end, with evaluations and checkpoints on the way."""
    iterate = parts.make_iterate(reference)
    every = options.evaluation.every
    held_out = next(
        (
            line["held_out/success"]
            for line in reversed(directory.history())
            if "held_out/success" in line
        ),
        float("nan"),
    )
    with console.counting(options.arm, options.iterations) as progress:
        for number in range(int(state.iteration) + 1, options.iterations + 1):
            start = time.perf_counter()
            try:
                state, metrics = iterate(state)
            except BaseException:
                _rescue(options, directory, state, reference)
                raise
            metrics["time/iteration"] = time.perf_counter() - start
            if every and number % every == 0:
                start = time.perf_counter()
                try:
                    measured, _ = _evaluate(task, parts, state, options.evaluation.episodes)
                except BaseException:
                    directory.log(number, metrics)
                    _save(options, directory, state, reference)
                    raise
                metrics |= _evaluation_metrics(task, measured)
                metrics["time/evaluation"] = time.perf_counter() - start
                held_out = metrics["held_out/success"]
            directory.log(number, metrics)
            if number % options.checkpoint_every == 0 or number == options.iterations:
                _save(options, directory, state, reference)
            progress(number, options.iterations, _line(metrics, held_out))
    return state


def _rescue(options: Options, directory: RunDirectory, state: RunState, reference: Any) -> None:
    """Save the last complete iteration, if what broke off the next one has left it whole."""
    arrays = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
    if any(leaf.is_deleted() for leaf in arrays):
        return  # given away to an update already; the newest checkpoint stands
    if int(state.iteration) not in saved_steps(directory.checkpoints):
        _save(options, directory, state, reference)


def _line(metrics: dict[str, Any], held_out: float) -> str:
    """Return the live line of an iteration."""
    replayed = ""
    if "replay/kl_k3" in metrics:
        replayed = (
            f"  age {metrics['replay/age_mean']:.0f}"
            f"  KL {metrics['replay/kl_k3']:.3f}  ESS {metrics['replay/ess_fraction']:.2f}"
        )
    return (
        f"held-out {held_out:.2f}  success {metrics['rollout/success']:.2f}"
        f"  score {metrics['rollout/score']:.1f}  valid {metrics['rollout/valid_actions']:.2f}"
        f"{replayed}  {metrics['time/iteration']:.1f} s"
    )


def _evaluate(
    task: Task,
    parts: Parts,
    state: RunState,
    count: int,
    *,
    temperature: float = 1.0,
) -> tuple[EpisodeStats, Trajectory]:
    """Play held-out episodes, the same and with the same noise at every call."""
    trajectory, episodes = parts.play(
        state.train.params,
        jax.random.fold_in(state.key, _EVALUATION),
        task.held_out_episodes(count),
        split="held_out",
        temperature=temperature,
    )
    return episodes, trajectory


def _evaluation_metrics(task: Task, episodes: EpisodeStats) -> dict[str, float]:
    estimates = summarise(episodes, task.metrics)
    success, score = estimates["success"], estimates["score"]
    return {
        "held_out/success": success.value,
        "held_out/success_low": success.low,
        "held_out/success_high": success.high,
        "held_out/score": score.value,
        "held_out/valid_actions": float(episodes.valid.mean()),
        **{f"held_out/{name}": estimates[name].value for name in task.metrics},
    }


def _finish(
    options: Options,
    task: Task,
    parts: Parts,
    directory: RunDirectory,
    state: RunState,
    reference: Any,
    console: Console,
) -> None:
    """Measure the final policy and the one it started from; write table, pictures, episodes."""
    count = options.evaluation.final_episodes
    start = dataclasses.replace(state, train=dataclasses.replace(state.train, params=reference))
    before, _ = _evaluate(task, parts, start, count)
    sampled, trajectory = _evaluate(task, parts, state, count)
    greedy, _ = _evaluate(task, parts, state, count, temperature=0.0)
    began = "random start" if parts.language.source is None else "pretrained"
    began = "warm start" if options.warm_start.traces else began
    measured = {
        f"{began}, sampled": summarise(before, task.metrics),
        f"{options.arm}, sampled": summarise(sampled, task.metrics),
        f"{options.arm}, greedy": summarise(greedy, task.metrics),
    }
    references = task.references(count)
    write_results(directory.path / "results.json", measured, references)
    title = f"{task.name}, arm {options.arm}, seed {options.seed}, {count} held-out episodes"
    console.out.print(make_table(title, measured, references, task.metrics))
    history = directory.history()
    plot_learning(
        history,
        directory.path / "learning_curve.png",
        title=title,
        episodes=options.episodes,
        references={one.name: one.success for one in references},
    )
    plot_ages(history, directory.path / "ages.png", title=title, tau=_tau_in_use(options, history))
    render_episodes(directory.path / "episodes.md", parts.renderer, trajectory, sampled, 8)
    if parts.language.source is not None:
        _export(parts, directory, state.train.params)
    console.say(f"Table, pictures and episodes: {directory.path}")


def _tau_in_use(options: Options, history: Sequence[dict[str, Any]]) -> float | None:
    """Return the decay constant in use in the end."""
    logged = (line["tau/tau"] for line in reversed(history) if "tau/tau" in line)
    return next(logged, options.replay.first_tau)


def _export(parts: Parts, directory: RunDirectory, params: Any) -> None:
    """Write the final policy as transformers and `load_pretrained` read it, adapters merged."""
    language, folder = parts.language, directory.path / "model"
    params = without_value_head(params)
    config = language.model.config
    if language.lora is not None and parts.base is not None:
        params = merge_adapters(config, language.lora, parts.base, params)
    shutil.rmtree(folder, ignore_errors=True)  # of the same run, finished before
    save_pretrained(
        folder,
        config,
        params,
        tokenizer=language.renderer.tokenizer,
        generation_config={"eos_token_id": list(language.renderer.stop_ids)},
    )


def _items(state: RunState, reference: Any) -> dict[str, Any]:
    """Return a run's state as the named items of a checkpoint."""
    items = {
        "policy": state.train.params,
        "optimizer": (state.train.opt_state, state.train.step, state.train.skipped),
        "rng": (state.key, state.iteration),
        "reference": reference,
    }
    if state.replay is not None:
        items["replay"] = state.replay
    if state.tau is not None:
        items["tau"] = state.tau
    return items


def _save(options: Options, directory: RunDirectory, state: RunState, reference: Any) -> None:
    save(
        directory.checkpoints,
        int(state.iteration),
        _items(state, reference),
        config=fingerprint(options),
    )


def _abstract_params(parts: Parts) -> Any:
    """Return parameters of the shapes of those that are trained; to be traced only."""
    params: Any = parts.model.init(jax.random.key(0))
    return params if parts.base is None else params[1]


def _load(options: Options, parts: Parts, out: Path, console: Console) -> tuple[RunState, Any]:
    """Return the newest complete checkpoint's state, and the parameters learning began from."""
    like = jax.eval_shape(lambda: init_run_state(options, parts, _abstract_params(parts)))
    like = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        like,
        run_shardings(parts, like),
    )
    found = restore(
        out / "checkpoints", _items(like, like.train.params), config=fingerprint(options)
    )
    for fault in found.passed_over:
        console.say(f"Passing over a newer checkpoint: {fault}")
    items = found.items
    opt_state, step, skipped = items["optimizer"]
    key, iteration = items["rng"]
    state = RunState(
        train=TrainState(items["policy"], opt_state, step, skipped),
        replay=items.get("replay"),
        key=key,
        iteration=iteration,
        tau=items.get("tau"),
    )
    return state, items["reference"]
