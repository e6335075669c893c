"""The warm start of a tiny policy: it clones short solver traces before learning begins.

A pretrained model finds the reply format by itself; a random one never does. The cloned
parameters are cached, since every arm and run of the same seed starts from them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import jax

from envs.cache import cache_directory
from experiments.build import Parts, row_width
from experiments.options import Options, OptionsError
from experiments.progress import Console
from experiments.task import Task
from freshper_jax.models import init_adapters
from freshper_jax.rollout import ScriptedPolicy, Trajectory, collect
from freshper_jax.training import (
    CheckpointError,
    CloningConfig,
    OptimizerConfig,
    clone,
    init_train_state,
    make_cloning_update,
    make_optimizer,
    restore,
    save,
)

__all__ = ["starting_params"]

_STREAM = 2**31 + 1  # of the run's key, apart from those of iterations, which start at 0
_FORMAT = 4  # raise it when the same options would give other parameters


def starting_params(options: Options, task: Task, parts: Parts, console: Console) -> Any:
    """Return the parameters that learning starts from, cloned now or read from the cache.

    Raises:
      OptionsError: a batch takes more traces than there are.
    """
    key = jax.random.fold_in(jax.random.key(options.seed), _STREAM)
    language = parts.language
    if language.lora is not None:
        console.say(f"Warm start: none, adapters of rank {language.lora.rank} on {language.source}")
        return init_adapters(language.model.config, language.lora, jax.random.fold_in(key, 0))
    params = language.load(jax.random.fold_in(key, 0), parts.mesh)
    settings = options.warm_start
    if settings.traces == 0:
        start = "starts at random" if language.source is None else f"is {language.source}"
        console.say(f"Warm start: none, the policy {start}.")
        return params
    folder = cache_directory() / f"warm-start-{_identity(options, task, parts)}"
    try:
        cached = restore(folder, {"policy": params})
        console.say(f"Warm start: cloned before, success {cached.meta['success']:.2f} ({folder})")
        return cached.items["policy"]
    except CheckpointError:
        pass  # not cloned yet, or damaged: clone

    demonstrations = demonstrate(options, task, parts)
    if (rows := len(demonstrations.length)) < settings.batch:
        raise OptionsError(
            f"--warm-start.batch: got {settings.batch}, expected at most the {rows} traces, "
            "mirror images included, that --warm-start.traces leaves"
        )
    console.say(
        f"Warm start: cloning {rows} solutions of at most {settings.longest} turns, mirror images "
        f"included, until {settings.target:.0%} of other training episodes succeed"
    )
    checks = task.check_episodes(4 * options.episodes)

    def measure(params: Any) -> float:
        _, episodes = parts.play(
            params, jax.random.fold_in(key, 1), checks, split="train", temperature=1.0
        )
        return float(episodes.success.mean())

    optimizer = make_optimizer(
        OptimizerConfig(learning_rate=settings.learning_rate, warmup_steps=20, weight_decay=0.01)
    )
    with console.counting("Warm start", settings.max_updates) as progress:
        state, success = clone(
            init_train_state(params, optimizer),
            demonstrations,
            update=make_cloning_update(parts.model.token_log_probs, optimizer),
            measure=measure,
            config=CloningConfig(
                target=settings.target,
                max_updates=settings.max_updates,
                check_every=settings.check_every,
                batch=settings.batch,
            ),
            seed=options.seed,
            report=lambda done, loss, share: progress(
                done, settings.max_updates, f"loss {loss:.3f}  success {share:.2f}"
            ),
        )
    done = int(state.step)
    missed = "" if success >= settings.target else f", short of the {settings.target:.0%} aimed at"
    console.say(f"Warm start: success {success:.2f} after {done} updates{missed}")
    try:
        save(folder, 0, {"policy": state.params}, meta={"success": success})
    except CheckpointError as error:
        console.say(f"Warm start: it could not be cached: {error}")
    return state.params


def demonstrate(options: Options, task: Task, parts: Parts) -> Trajectory:
    """Return solver traces as trajectories, trimmed to the longest one's multiple of 32 tokens."""
    settings = options.warm_start
    shown = task.demonstrations(settings.traces, settings.longest, options.episodes)
    policy = ScriptedPolicy(parts.renderer, shown.replies, options.max_new_tokens)
    trajectory, _ = collect(
        policy,
        shown.env,
        parts.renderer,
        shown.episodes,
        max_tokens=row_width(options),
        max_new_tokens=options.max_new_tokens,
    )
    width = -(-int(trajectory.length.max()) // 32) * 32
    return jax.tree.map(lambda leaf: leaf[:, :width] if leaf.ndim == 2 else leaf, trajectory)


def _identity(options: Options, task: Task, parts: Parts) -> str:
    """Return a digest of all that decides the cloned parameters."""
    facts = {
        "format": _FORMAT,
        "task": task.identity,
        "words": task.words,
        "source": parts.language.source,
        "seed": options.seed,
        "warm_start": dataclasses.asdict(options.warm_start),
        "model": dataclasses.asdict(parts.model.config),
        "episodes": options.episodes,
        "max_tokens": options.max_tokens,
        "max_new_tokens": options.max_new_tokens,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
