"""From options and a task to the parts of a run: model, rollouts, update, replay, iteration."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.language import Language
from experiments.objective import BASE_PRIORITIES, make_loss, make_prepare
from experiments.options import ONCE_EACH, Options, OptionsError
from experiments.task import Task
from freshper_jax import replay
from freshper_jax.generate import SamplingParams, make_generator
from freshper_jax.models import (
    VALUE_HEAD,
    LanguageModel,
    Params,
    add_value_head,
    init_value_head,
    make_mesh,
    param_shardings,
    row_sharding,
)
from freshper_jax.rollout import (
    ChatRenderer,
    Episodes,
    EpisodeStats,
    ModelPolicy,
    Trajectory,
    collect,
)
from freshper_jax.training import (
    IterationConfig,
    Metrics,
    Optimizer,
    OptimizerConfig,
    RunState,
    halvings,
    in_length_order,
    init_train_state,
    make_iteration,
    make_optimizer,
    make_update,
)

__all__ = ["Parts", "build", "init_run_state", "row_width", "run_shardings", "settle_options"]

Play = Callable[..., tuple[Trajectory, EpisodeStats]]


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a run.

    play: `(params, key, episodes, split, temperature, policy_version) -> (trajectory, statistics)`.
    base: the parameters that adapters leave as they are; None without adapters.
    make_iterate: from the parameters that a KL penalty refers to, one iteration, see
      `freshper_jax.training.make_iteration`.
    """

    language: Language
    optimizer: Optimizer
    buffer: replay.ReplayBuffer | None
    mesh: Mesh | None
    play: Play
    base: Params | None
    make_iterate: Callable[[Any], Callable[[RunState], tuple[RunState, Metrics]]]

    @property
    def renderer(self) -> ChatRenderer:
        """The chat format."""
        return self.language.renderer

    @property
    def model(self) -> LanguageModel:
        """The functions of the model."""
        return self.language.model


def settle_options(options: Options, task: Task, renderer: ChatRenderer) -> Options:
    """Return the options with what the task decides filled in, in tokens of the renderer.

    Raises:
      OptionsError: an evaluation wants more held-out episodes than there are, or the replay's
        tokens are too few for the trajectories, or too many.
    """
    for name in ("episodes", "final_episodes"):
        count = getattr(options.evaluation, name)
        if count > task.held_out_count:
            raise OptionsError(
                f"--evaluation.{name.replace('_', '-')}: got {count}, expected at most the "
                f"{task.held_out_count} held-out episodes"
            )
    if options.max_tokens is None:
        width = -(-task.max_tokens(options.max_new_tokens, renderer) // 16) * 16
        options = dataclasses.replace(options, max_tokens=width)
    if options.replay.source != "buffer" or options.replay.storage != "packed":
        return options
    return _settle_token_capacity(options)


def _settle_token_capacity(options: Options) -> Options:
    """Return the options with the tokens of packed storage filled in."""
    settings, width = options.replay, row_width(options)
    least, reason = width, f"one trajectory of {width} tokens"
    if settings.strategy in ONCE_EACH:
        least = settings.batch * width
        reason = f"--replay.batch trajectories of {width} tokens, none drawn twice"
    tokens = settings.token_capacity
    if tokens is None:
        tokens = max(least, -(-settings.capacity * width // 3))
    if not least <= tokens < 2**30:
        raise OptionsError(
            f"--replay.token-capacity: got {tokens}, expected an integer from {least} ({reason}) "
            "to 2^30 - 1"
        )
    return dataclasses.replace(options, replay=dataclasses.replace(settings, token_capacity=tokens))


def build(options: Options, task: Task, language: Language) -> Parts:
    """Make the parts of a run from settled options; nothing is computed yet.

    Of a model with adapters the base is read.

    Raises:
      OptionsError: the mesh needs more devices than there are, or the buffer more memory.
    """
    mesh = _make_mesh(options)
    slots = row_width(options)
    renderer, model = language.renderer, language.model
    critic = None
    if options.learning.has_critic:
        critic = add_value_head(model, detached=options.learning.value_detached)
        model = critic.policy
    base = language.load(jax.random.key(0), mesh) if language.lora else None
    generator = make_generator(model)
    pretrained = language.source is not None
    environments = {
        split: task.make_env(split, options.episodes, renderer) for split in ("train", "held_out")
    }

    def whole(params: Any) -> Any:
        """Return the params that the model's functions take, from those that are trained."""
        return params if base is None else (base, params)

    def play(
        params: Any,
        key: jax.Array,
        episodes: Episodes,
        *,
        split: str,
        temperature: float,
        policy_version: int = 0,
    ) -> tuple[Trajectory, EpisodeStats]:
        policy = ModelPolicy(
            model=model,
            generator=generator,
            params=whole(params),
            key=key,
            sampling=SamplingParams(temperature=temperature),
            stop_ids=renderer.stop_ids,
            slots=slots,
            max_new_tokens=options.max_new_tokens,
            capacities=_capacities(slots) if pretrained else (),
            stop_strings=task.stop_strings if pretrained else (),
            text_of=renderer.tokenizer.decode,
        )
        return collect(
            policy,
            environments[split],
            renderer,
            episodes,
            max_tokens=slots,
            max_new_tokens=options.max_new_tokens,
            policy_version=policy_version,
            temperature=temperature,
        )

    def rollout(
        params: Any, key: jax.Array, iteration: int, policy_version: int
    ) -> tuple[Trajectory, EpisodeStats]:
        return play(
            params,
            key,
            task.train_episodes(
                options.seed, iteration, options.episodes // options.group_size
            ).repeat(options.group_size),
            split="train",
            temperature=options.temperature,
            policy_version=policy_version,
        )

    learning, source = options.learning, options.replay.source
    extra = options.replay.updates if source != "none" else 0
    corrects = options.replay.weights != "off"
    optimizer = make_optimizer(
        OptimizerConfig(
            learning_rate=learning.learning_rate,
            schedule=learning.schedule,
            warmup_steps=learning.warmup,
            total_steps=max(options.iterations * (1 + extra) * learning.steps, learning.warmup + 1),
            weight_decay=learning.weight_decay,
            max_grad_norm=learning.max_grad_norm,
            moment_dtype=options.model.moment_dtype,
            rounding="stochastic" if options.model.param_dtype == "bfloat16" else "nearest",
            rounding_seed=options.seed,
        )
    )
    update = make_update(
        model.token_log_probs if critic is None else critic.token_scores,
        optimizer,
        loss=make_loss(learning),
        microbatches=learning.microbatches,
        widths=halvings(slots),
        steps=learning.steps,
    )
    if base is not None:
        update = functools.partial(update, frozen=base)
    buffer = _make_buffer(options) if source == "buffer" else None
    rows = None if mesh is None else row_sharding(mesh)

    def place(batch: Any) -> Any:
        return jax.device_put(batch, rows)

    update = in_length_order(update, learning.microbatches, place)

    def make_iterate(reference: Any) -> Callable[[RunState], tuple[RunState, Metrics]]:
        return make_iteration(
            rollout=rollout,
            prepare=make_prepare(options, model, critic, whole=whole, reference=reference),
            update=update,
            buffer=buffer,
            base_priority=BASE_PRIORITIES[options.replay.priority],
            reprioritise=options.replay.priority == "td_error",
            config=IterationConfig(
                iterations=options.iterations,
                source=source,
                updates=options.replay.updates,
                batch=options.replay.batch,
                beta=options.replay.beta if corrects else (0.0, 0.0),
            ),
            auto_tau=make_auto_tau(options),
            by_profile=options.replay.tau == "profile",
            place=place,
        )

    return Parts(language, optimizer, buffer, mesh, play, base, make_iterate)


def init_run_state(options: Options, parts: Parts, params: Any) -> RunState:
    """Return the state before the first iteration, wherever `params`, of the policy, are."""
    if options.learning.has_critic:
        params = {**params, VALUE_HEAD: init_value_head(parts.model.config)}
    auto_tau = make_auto_tau(options)
    return RunState(
        train=init_train_state(params, parts.optimizer),
        replay=None if parts.buffer is None else parts.buffer.init(_example_row(options)),
        key=jax.random.key(options.seed),
        iteration=jnp.zeros((), jnp.int32),
        tau=None if auto_tau is None else auto_tau.init(),
    )


def make_auto_tau(options: Options) -> replay.AutoTau | None:
    """Return how tau follows from the measured divergence; None where it is fixed."""
    settings = options.replay
    if not settings.measures_drift:
        return None
    return replay.AutoTau(
        prior=settings.tau_prior,
        multiple=settings.tau_multiple,
        forgetting=settings.tau_forgetting,
    )


def run_shardings(parts: Parts, state: RunState) -> RunState:
    """Return where each array of a state lives, as a tree like the state or its shapes.

    On a mesh parameters lie as the rules say, what the optimizer keeps of a parameter lies
    with it, and all else is on every device.
    """
    if parts.mesh is None:
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.tree.map(lambda _: here, state)
    params = param_shardings(parts.mesh, state.train.params)
    by_path = {
        jax.tree_util.keystr(path): sharding
        for path, sharding in jax.tree_util.tree_leaves_with_path(params)
    }
    everywhere = NamedSharding(parts.mesh, PartitionSpec())

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path)
        found = (s for p, s in by_path.items() if name.endswith(p) and np.ndim(leaf) > 0)
        return next(found, everywhere)

    train = jax.tree_util.tree_map_with_path(place, state.train)
    shardings = jax.tree.map(lambda _: everywhere, state)
    return dataclasses.replace(shardings, train=train)


def _capacities(slots: int) -> tuple[int, ...]:
    """Return the powers of two, from 256, below the slots of a full row."""
    sizes = (256 << power for power in range(slots.bit_length()))
    return tuple(itertools.takewhile(lambda size: size < slots, sizes))


def _make_mesh(options: Options) -> Mesh | None:
    sizes = dataclasses.asdict(options.mesh)
    count = int(np.prod(list(sizes.values())))
    if count == 1:
        return None
    if count > jax.device_count():
        raise OptionsError(
            f"--mesh: {count} devices asked for, {jax.device_count()} found; on a CPU, "
            f"JAX_NUM_CPU_DEVICES={count} simulates them"
        )
    return make_mesh(**sizes)


def row_width(options: Options) -> int:
    """Return the tokens that a trajectory can hold, by settled options."""
    assert options.max_tokens is not None, "options are settled first"
    return options.max_tokens


def _make_buffer(options: Options) -> replay.ReplayBuffer:
    settings = options.replay
    packed = settings.storage == "packed"
    buffer = replay.make_buffer(
        capacity=settings.capacity,
        alpha=settings.alpha,
        tau=settings.first_tau,
        strategy=settings.strategy,
        insertion=settings.insertion,
        eviction=settings.eviction,
        group_size=options.group_size if settings.strategy == "groups" else 1,
        group_priority=settings.group_priority,
        storage=settings.storage,
        token_capacity=settings.token_capacity,
        ragged=_ragged(_example_row(options)) if packed else None,
        weight_normaliser={"raw": "none", "off": "none"}.get(settings.weights, settings.weights),
    )
    needed = replay.state_nbytes(jax.eval_shape(buffer.init, _example_row(options)))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if jax.default_backend() == "cpu" and needed > memory:
        held = f"and {settings.token_capacity}" if packed else f"of {row_width(options)}"
        raise OptionsError(
            f"--replay.capacity: {settings.capacity} rows {held} tokens take "
            f"{needed / 2**30:.1f} GiB, expected less than the machine's {memory / 2**30:.1f} GiB"
        )
    return buffer


def _example_row(options: Options) -> Trajectory:
    """Return one row of zeros in the shapes and dtypes that rollouts give."""
    width = row_width(options)
    wide, number = np.zeros(width, np.float32), np.zeros((), np.int32)
    return Trajectory(
        tokens=np.zeros(width, np.int32),
        response_mask=np.zeros(width, bool),
        behaviour_log_probs=wide,
        rewards=wide,
        advantages=wide,
        return_=np.zeros((), np.float32),
        length=number,
        group_id=number,
        policy_version=number,
        temperature=np.zeros((), np.float32),
        log_probs_t1=None if options.temperature == 1.0 else wide,
        values=None if options.learning.value_clip is None else wide,
        value_targets=wide if options.learning.advantage == "gae" else None,
    )


def _ragged(example: Trajectory) -> Trajectory:
    """Say which fields of a trajectory have one value a token."""
    return jax.tree.map(lambda leaf: leaf.ndim > 0, example)
