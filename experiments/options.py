"""What a run can be told: frozen options, the arms of the comparison, and their checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from experiments.learning import LearningOptions, check_learning

__all__ = [
    "ONCE_EACH",
    "Arm",
    "EvaluationOptions",
    "LearningOptions",
    "MeshOptions",
    "ModelOptions",
    "NoEnvOptions",
    "Options",
    "OptionsError",
    "ReplayOptions",
    "WarmStartOptions",
    "arm_defaults",
    "check_options",
    "fingerprint",
    "override",
    "preset_defaults",
]

Arm = Literal[
    "freshper",
    "freshper_auto",
    "freshper_corrected",
    "per",
    "uniform",
    "fifo",
    "on_policy",
    "on_policy_epochs",
]
Preset = Literal["tiny", "smollm2-135m", "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-0.6b"]

# Strategies that take no row twice in a draw.
ONCE_EACH = ("prioritized_without_replacement", "newest", "oldest")


class OptionsError(ValueError):
    """An option has a value that cannot work; the message names it."""


@dataclasses.dataclass(frozen=True)
class ReplayOptions:
    """The extra updates of an iteration and where their batches come from."""

    source: Literal["buffer", "fresh", "none"] = "buffer"
    """buffer: draws from replay; fresh: as many further passes over the fresh batch; none."""
    strategy: Literal[
        "prioritized",
        "prioritized_without_replacement",
        "uniform",
        "newest",
        "oldest",
        "groups",
    ] = "prioritized"
    """How rows are drawn; groups draws all episodes of a --group-size group together."""
    tau: float | Literal["auto", "profile"] | None = 10.0
    """Decay constant in optimiser updates; None keeps priorities from ageing; auto sets it from the
    divergence that the replay updates measure; profile replaces exp(-age/tau) by the ESS share that
    they measure at each age."""
    tau_prior: float = 10.0
    """With tau auto or profile: its value until something was measured."""
    tau_multiple: float = 3.0
    """With tau auto: tau over the age at which the ESS share of replayed rows falls to a half."""
    tau_forgetting: float = 0.98
    """With tau auto or profile: what an observation is still worth after another update."""
    alpha: float = 0.6
    """Priority exponent: 0 draws uniformly."""
    beta: tuple[float, float] = (0.4, 1.0)
    """Importance exponent at the first and the last iteration."""
    updates: int = 2
    """Extra updates an iteration."""
    batch: int = 64
    """Trajectories an extra update draws."""
    capacity: int = 16_384
    """Trajectories held."""
    eviction: Literal["oldest", "lowest_priority"] = "oldest"
    """Which trajectories leave a full buffer first."""
    storage: Literal["dense", "packed"] = "dense"
    """dense: every trajectory takes --max-tokens; packed: only as many tokens as it has."""
    token_capacity: int | None = None
    """Tokens that packed storage holds; by default --replay.capacity times a third of --max-tokens,
    for few trajectories are as long as the longest. The oldest leave when tokens run out."""
    group_priority: Literal["mean", "max"] = "mean"
    """What of its members' priorities is the priority of a group."""
    priority: Literal["return", "advantage", "td_error", "length", "constant"] = "return"
    """Base priority of a trajectory; td_error is set anew whenever it is replayed."""
    insertion: Literal["base", "max"] = "base"
    """Priority of a new row: its own base, or the largest base held."""
    weights: Literal["batch_max", "buffer_max", "mean", "raw", "off"] = "off"
    """Normaliser of the importance weights; raw leaves them as they are, off makes them all 1."""

    @property
    def measures_drift(self) -> bool:
        """Whether rows age by the divergence that replay updates measure."""
        return self.source == "buffer" and self.tau in ("auto", "profile")

    @property
    def first_tau(self) -> float | None:
        """The tau of the first draw."""
        return self.tau_prior if isinstance(self.tau, str) else self.tau


@dataclasses.dataclass(frozen=True)
class WarmStartOptions:
    """Cloning of short solver traces: the pretraining that a tiny policy lacks, or, if asked for,
    a pretrained one's lesson in the form of replies."""

    traces: int = 400
    """Training starts whose solutions are cloned."""
    longest: int = 6
    """Turns of the longest solution cloned."""
    target: float = 0.3
    """Success on further training episodes at which cloning stops."""
    max_updates: int = 1_500
    """Optimiser updates after which cloning stops in any case."""
    batch: int = 64
    learning_rate: float = 2e-3
    check_every: int = 25
    """Optimiser updates between measurements of success."""


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
    """Measurement on held-out episodes."""

    every: int = 20
    """Iterations between evaluations; 0 evaluates at the end only."""
    episodes: int = 128
    """Held-out episodes of an evaluation on the way."""
    final_episodes: int = 1024
    """Held-out episodes of the final table."""


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The weights of a pretrained preset, what of them is trained, and in which numbers."""

    weights: str | None = None
    """Folder, .gguf file or hub name; by default the preset's own. The tiny preset has none."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of matrix products; norms, softmax, logits and the loss are float32 always."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the parameters; those in bfloat16 are rounded stochastically."""
    moment_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the optimiser's moments."""
    remat: Literal["none", "dots", "full"] | None = None
    """What the backward pass computes again; by default none for tiny and dots for all others."""
    lora_rank: int = 0
    """Inner size of the low-rank adapters that are trained in place of the model; 0 for none."""
    lora_alpha: float = 32.0
    """The adapters change a kernel by lora-alpha / lora-rank times their product."""


@dataclasses.dataclass(frozen=True)
class MeshOptions:
    """Device mesh; 1 along every axis is one device."""

    data: int = 1
    fsdp: int = 1
    tp: int = 1


@dataclasses.dataclass(frozen=True)
class NoEnvOptions:
    """A task that is told nothing but its name."""


Env = TypeVar("Env")


@dataclasses.dataclass(frozen=True)
class Options(Generic[Env]):
    """Train an agent with freshness-aware prioritized replay and report on held-out episodes."""

    arm: Arm = "freshper"
    """Named setting of --replay.*; flags given beside it win."""
    preset: Preset = "tiny"
    """Model; all but tiny are pretrained, and change the defaults to what suits their size."""
    task: str = "simple"
    """Difficulty or data preset of the task."""
    prompt: str | None = None
    """Style in which the task shows itself; by default what suits the preset."""
    seed: int = 0
    iterations: int = 400
    episodes: int = 64
    """Fresh episodes an iteration."""
    group_size: int = 1
    """Fresh episodes that share a start; with more than one, their mean return is the baseline."""
    max_tokens: int | None = None
    """Tokens a trajectory can hold; by default as many as the longest episode takes."""
    max_new_tokens: int = 4
    """Tokens of one reply."""
    temperature: float = 1.0
    replay: ReplayOptions = dataclasses.field(default_factory=ReplayOptions)
    learning: LearningOptions = dataclasses.field(default_factory=LearningOptions)
    warm_start: WarmStartOptions = dataclasses.field(default_factory=WarmStartOptions)
    evaluation: EvaluationOptions = dataclasses.field(default_factory=EvaluationOptions)
    model: ModelOptions = dataclasses.field(default_factory=ModelOptions)
    mesh: MeshOptions = dataclasses.field(default_factory=MeshOptions)
    env: Env = dataclasses.field(default_factory=NoEnvOptions)  # type: ignore[assignment]
    """What the task alone is told."""
    checkpoint_every: int = 10
    """Iterations between checkpoints."""
    out: Path | None = None
    """Run directory; by default runs/<task>-<arm>-seed<seed>."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint."""


_ARMS: dict[str, dict[str, Any]] = {
    "freshper": {},
    "freshper_auto": {"tau": "auto"},
    "freshper_corrected": {"weights": "batch_max"},
    "per": {"tau": None},
    "uniform": {"strategy": "uniform", "tau": None},
    "fifo": {"strategy": "uniform", "tau": None, "capacity": 512},
    "on_policy": {"source": "none", "updates": 0},
    "on_policy_epochs": {"source": "fresh"},
}


def arm_defaults(arm: str, options: Options | None = None) -> Options:
    """Return `options` with the replay settings that an arm stands for.

    Raises:
      OptionsError: the arm is unknown.
    """
    options = options or Options()
    if arm not in _ARMS:
        raise OptionsError(f"--arm: unknown arm {arm!r}, expected one of {', '.join(_ARMS)}")
    return dataclasses.replace(
        options,
        arm=arm,  # type: ignore[arg-type]
        replay=dataclasses.replace(options.replay, **_ARMS[arm]),
    )


# A pretrained model needs no warm start, small steps and room for words; at 135 million parameters
# few enough rows that two CPU cores make an iteration in minutes.
_SMALL = {
    "episodes": 8,
    "max_tokens": 512,
    "max_new_tokens": 24,
    "replay": {"batch": 8, "capacity": 1024},
    "learning": {"learning_rate": 3e-6, "microbatches": 4, "discount": 1.0},
    "warm_start": {"traces": 0, "batch": 8, "learning_rate": 1e-5, "max_updates": 100},
    "evaluation": {"every": 10, "episodes": 8, "final_episodes": 16},
}
_LARGE = {
    "max_new_tokens": 64,
    "replay": {"capacity": 4096},
    "learning": {"learning_rate": 1e-6, "microbatches": 16, "discount": 1.0},
    "warm_start": {"traces": 0, "batch": 8, "learning_rate": 1e-5, "max_updates": 100},
    "evaluation": {"final_episodes": 256},
}
_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "smollm2-135m": _SMALL,
    "qwen2.5-0.5b": _LARGE,
    "qwen2.5-7b": _LARGE,
    "qwen3-0.6b": _LARGE,
}


def preset_defaults(preset: str, options: Options | None = None) -> Options:
    """Return `options` with the settings that suit the size of a model.

    Raises:
      OptionsError: the preset is unknown.
    """
    options = options or Options()
    if preset not in _PRESETS:
        raise OptionsError(
            f"--preset: unknown preset {preset!r}, expected one of {', '.join(_PRESETS)}"
        )
    return override(options, {"preset": preset, **_PRESETS[preset]})


def override(options: Any, values: Mapping[str, Any]) -> Any:
    """Return options with fields replaced; a mapping replaces fields of the group it names."""
    changes = {
        name: override(getattr(options, name), value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    return dataclasses.replace(options, **changes)


def check_options(options: Options) -> None:
    """Refuse values that cannot work.

    Raises:
      OptionsError: names the flag, its value and what was expected.
    """
    replay, learning = options.replay, options.learning

    def expect(good: bool, flag: str, value: object, expected: str) -> None:
        if not good:
            raise OptionsError(f"--{flag}: got {value}, expected {expected}")

    def positive(flag: str, value: float) -> None:
        expect(math.isfinite(value) and value > 0, flag, value, "a number above 0")

    def count(flag: str, value: int, least: int = 1) -> None:
        expect(value >= least, flag, value, f"an integer of at least {least}")

    named = {
        "": options,
        "replay.": replay,
        "learning.": learning,
        "model.": options.model,
        "env.": options.env,
    }
    for prefix, group in named.items():
        for name, hint in get_type_hints(type(group)).items():
            if get_origin(hint) is Literal:
                value, flag = getattr(group, name), prefix + name.replace("_", "-")
                expect(value in get_args(hint), flag, value, f"one of {', '.join(get_args(hint))}")
    count("iterations", options.iterations)
    count("episodes", options.episodes)
    count("max-new-tokens", options.max_new_tokens)
    if options.max_tokens is not None:
        count("max-tokens", options.max_tokens, options.max_new_tokens + 1)
    count("checkpoint-every", options.checkpoint_every)
    expect(0 <= options.seed < 2**32, "seed", options.seed, "an integer from 0 to 2^32 - 1")
    expect(
        math.isfinite(options.temperature) and options.temperature > 0,
        "temperature",
        options.temperature,
        "a number above 0 (training needs samples; greedy replies are part of the final table)",
    )
    expect(
        replay.tau in (None, "auto", "profile")
        or (isinstance(replay.tau, int | float) and 1e-30 <= replay.tau <= 1e30),
        "replay.tau",
        replay.tau,
        "a number above 0, from 1e-30 to 1e30, auto, profile, or None",
    )
    expect(
        replay.tau not in ("auto", "profile")
        or replay.strategy not in ("uniform", "newest", "oldest"),
        "replay.tau",
        replay.tau,
        f"None with --replay.strategy {replay.strategy}, which knows no ages",
    )
    expect(1 <= replay.tau_prior <= 1e6, "replay.tau-prior", replay.tau_prior, "1 to 1e6")
    positive("replay.tau-multiple", replay.tau_multiple)
    expect(
        0 < replay.tau_forgetting < 1,
        "replay.tau-forgetting",
        replay.tau_forgetting,
        "a number between 0 and 1",
    )
    expect(0 <= replay.alpha <= 4, "replay.alpha", replay.alpha, "a number from 0 to 4")
    expect(
        all(0 <= b <= 1 for b in replay.beta),
        "replay.beta",
        replay.beta,
        "two numbers from 0 to 1",
    )
    count("replay.updates", replay.updates, 0)
    count("replay.batch", replay.batch)
    expect(
        1 <= replay.capacity < 2**30,
        "replay.capacity",
        replay.capacity,
        "an integer from 1 to 2^30 - 1",
    )
    if replay.source == "buffer":
        expect(
            replay.capacity >= replay.batch,
            "replay.capacity",
            replay.capacity,
            f"at least --replay.batch ({replay.batch})",
        )
        _check_buffer(options, expect)
    count("group-size", options.group_size)
    check_learning(learning, group_size=options.group_size, expect=expect)
    expect(
        replay.priority != "td_error" or learning.has_critic,
        "replay.priority",
        replay.priority,
        "any other without --learning.advantage gae or vtrace, which bring a value head",
    )
    expect(
        replay.priority != "advantage" or learning.advantage != "vtrace",
        "replay.priority",
        replay.priority,
        "any other with --learning.advantage vtrace, whose advantages are made anew at every "
        "update; td_error is closest",
    )
    expect(
        options.episodes % options.group_size == 0,
        "episodes",
        options.episodes,
        f"a multiple of --group-size ({options.group_size})",
    )
    for flag, rows in (("episodes", options.episodes), ("replay.batch", replay.batch)):
        parts = learning.microbatches * options.mesh.data * options.mesh.fsdp
        expect(
            rows % parts == 0,
            flag,
            rows,
            f"a multiple of microbatches x data shards ({parts})",
        )
    expect(
        options.model.weights is None or options.preset != "tiny",
        "model.weights",
        options.model.weights,
        "None with --preset tiny, which is trained from the start",
    )
    expect(
        options.warm_start.traces == 0 or options.model.lora_rank == 0,
        "warm-start.traces",
        options.warm_start.traces,
        "0 with --model.lora-rank, since cloning trains all weights",
    )
    count("model.lora-rank", options.model.lora_rank, 0)
    positive("model.lora-alpha", options.model.lora_alpha)
    expect(
        options.model.lora_rank == 0 or options.preset != "tiny",
        "model.lora-rank",
        options.model.lora_rank,
        "0 with --preset tiny, which has nothing to adapt",
    )
    count("warm-start.traces", options.warm_start.traces, 0)
    for name in ("longest", "max_updates", "batch", "check_every"):
        count(f"warm-start.{name.replace('_', '-')}", getattr(options.warm_start, name))
    positive("warm-start.learning-rate", options.warm_start.learning_rate)
    expect(
        0 <= options.warm_start.target <= 1,
        "warm-start.target",
        options.warm_start.target,
        "a share from 0 to 1",
    )
    count("evaluation.every", options.evaluation.every, 0)
    count("evaluation.episodes", options.evaluation.episodes)
    count("evaluation.final-episodes", options.evaluation.final_episodes)
    for axis in ("data", "fsdp", "tp"):
        count(f"mesh.{axis}", getattr(options.mesh, axis))


def _check_buffer(options: Options, expect: Callable[[bool, str, object, str], None]) -> None:
    """Refuse settings of the buffer that do not go with each other or with the rollouts."""
    replay, group_size = options.replay, options.group_size
    if replay.strategy in ONCE_EACH:
        expect(
            replay.batch <= options.episodes,
            "replay.batch",
            replay.batch,
            f"at most --episodes ({options.episodes}) with --replay.strategy {replay.strategy}: "
            "it takes no trajectory twice, and the first draw has no others",
        )
    if replay.strategy == "groups":
        expect(
            group_size >= 2,
            "group-size",
            group_size,
            "an integer of at least 2 with --replay.strategy groups",
        )
        for flag, rows in (("replay.capacity", replay.capacity), ("replay.batch", replay.batch)):
            expect(
                rows % group_size == 0,
                flag,
                rows,
                f"a multiple of --group-size ({group_size}) with --replay.strategy groups",
            )
    if replay.storage == "dense":
        expect(
            replay.token_capacity is None,
            "replay.token-capacity",
            replay.token_capacity,
            "None without --replay.storage packed",
        )
        return
    expect(
        replay.eviction == "oldest",
        "replay.eviction",
        replay.eviction,
        "oldest with --replay.storage packed, whose ring of tokens overwrites the oldest ones",
    )
    expect(
        replay.strategy != "groups",
        "replay.strategy",
        replay.strategy,
        "any other with --replay.storage packed, which cannot keep a group together",
    )


def fingerprint(options: Options) -> dict[str, Any]:
    """Return what a resumed run must share with the run it continues, as JSON values."""
    values = dataclasses.asdict(options)
    for name in ("out", "resume", "checkpoint_every"):
        values.pop(name)
    return _plain(values)


def _plain(value: Any) -> Any:
    """Return a value as JSON knows it."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
