"""AdamW under a schedule that counts optimiser updates, replay updates included."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax

from freshper_jax.training.rounding import round_stochastically

Schedule = Literal["constant", "linear", "cosine"]
MomentDtype = Literal["float32", "bfloat16"]
Rounding = Literal["nearest", "stochastic"]

# Streams of the rounding's key.
_PARAMS, _MOMENTS = 0, 1


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Settings of the optimizer.

    learning_rate: the peak, reached after the warm-up.
    schedule: how it falls from there until `total_steps`; it stays at its last value after.
    warmup_steps: updates of linear warm-up; the first update already takes a step.
    total_steps: optimiser updates of the whole run, fresh and replayed together; unused by
        the constant schedule.
    final_fraction: the last learning rate as a share of the peak.
    weight_decay: decoupled, a unit of learning rate.
    b1, b2, eps: of Adam.
    max_grad_norm: gradients are scaled down to this global norm; None for no limit.
    moment_dtype: in which Adam's moments are kept. bfloat16 takes half the memory; the moments
        are then rounded stochastically, because one update changes the second by less than
        half a step of bfloat16, and rounding to nearest would leave it where it is.
    rounding: how bfloat16 parameters take up a step, "nearest" or "stochastic". To nearest, a
        step below 1/512 of a parameter is lost; stochastically, its mean is exact. Float32
        parameters take up any step.
    rounding_seed: of the stochastic rounding, whose noise is a function of it and the step.
    """

    learning_rate: float = 1e-3
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    final_fraction: float = 0.0
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    max_grad_norm: float | None = 1.0
    _: dataclasses.KW_ONLY
    moment_dtype: MomentDtype = "float32"
    rounding: Rounding = "nearest"
    rounding_seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a field out of range, naming it."""

        def require(field: str, *, holds: bool, expected: str) -> None:
            if not holds:
                raise ValueError(f"{field} must be {expected}, got {getattr(self, field)!r}")

        require("learning_rate", holds=self.learning_rate > 0, expected="positive")
        require(
            "schedule",
            holds=self.schedule in get_args(Schedule),
            expected=f"one of {', '.join(get_args(Schedule))}",
        )
        require("warmup_steps", holds=self.warmup_steps >= 0, expected="at least 0")
        if self.schedule != "constant":
            require(
                "total_steps",
                holds=self.total_steps is not None and self.total_steps > self.warmup_steps,
                expected=f"above warmup_steps ({self.warmup_steps}) for a falling schedule",
            )
        require("final_fraction", holds=0 <= self.final_fraction <= 1, expected="in [0, 1]")
        require("weight_decay", holds=self.weight_decay >= 0, expected="at least 0")
        require("b1", holds=0 <= self.b1 < 1, expected="in [0, 1)")
        require("b2", holds=0 <= self.b2 < 1, expected="in [0, 1)")
        require("eps", holds=self.eps > 0, expected="positive")
        require(
            "max_grad_norm",
            holds=self.max_grad_norm is None or self.max_grad_norm > 0,
            expected="positive or None",
        )
        for field, names in (
            ("moment_dtype", get_args(MomentDtype)),
            ("rounding", get_args(Rounding)),
        ):
            holds = getattr(self, field) in names
            require(field, holds=holds, expected=f"one of {', '.join(names)}")
        seed = self.rounding_seed
        require(
            "rounding_seed",
            holds=isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**32,
            expected="an int in [0, 2**32)",
        )


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A record of pure functions.

    init: `params -> opt_state`.
    direction: `(grads, opt_state, params) -> (direction, opt_state)`, a float32 step of unit
        learning rate to be added to the parameters.
    learning_rate: `step -> float32 []`, of the update that follows `step` applied ones.
    apply: `(params, direction, step) -> params`, the step taken at that learning rate, summed
        in float32 and rounded to the dtypes of the parameters.
    """

    init: Callable[[Any], Any]
    direction: Callable[[Any, Any, Any], tuple[Any, Any]]
    learning_rate: Callable[[jax.Array], jax.Array]
    apply: Callable[[Any, Any, jax.Array], Any]


def make_optimizer(
    config: OptimizerConfig, *, decay_mask: Callable[[Any], Any] | None = None
) -> Optimizer:
    """Makes AdamW with a global-norm clip (Loshchilov and Hutter, 2019).

    The learning rate is kept outside the transformation and read off `TrainState.step`, so
    that a single counter drives it.

    Args:
        config: the settings.
        decay_mask: `params -> pytree of bool`, which leaves decay; all by default.
    """
    parts = []
    if config.max_grad_norm is not None:
        parts.append(optax.clip_by_global_norm(config.max_grad_norm))
    parts.append(optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps))
    if config.weight_decay > 0:
        parts.append(optax.add_decayed_weights(config.weight_decay, decay_mask))
    parts.append(optax.scale(-1.0))
    transformation = optax.chain(*parts)

    learning_rate = make_schedule(config)

    def stream(number: int, step: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(config.rounding_seed), number)
        return jax.random.fold_in(key, step)

    def store(opt_state: Any) -> Any:
        if config.moment_dtype == "float32":
            return opt_state
        key = stream(_MOMENTS, optax.tree.get(opt_state, "count"))
        return round_stochastically(key, opt_state, _cast(opt_state, jnp.bfloat16))

    def init(params: Any) -> Any:
        return store(transformation.init(_as_float32(params)))

    def direction(grads: Any, opt_state: Any, params: Any) -> tuple[Any, Any]:
        # optax raises a float to an integer count, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            step, opt_state = transformation.update(
                *(_as_float32(tree) for tree in (grads, opt_state, params))
            )
        return step, store(opt_state)

    def apply(params: Any, direction: Any, step: jax.Array) -> Any:
        rate = learning_rate(step)
        moved = jax.tree.map(lambda leaf, d: leaf + rate * d, _as_float32(params), direction)
        if config.rounding == "stochastic":
            return round_stochastically(stream(_PARAMS, step), moved, params)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), moved, params)

    return Optimizer(init=init, direction=direction, learning_rate=learning_rate, apply=apply)


def _as_float32(tree: Any) -> Any:
    """Casts the floats of a tree, and no counter."""
    return _cast(tree, jnp.float32)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


def make_schedule(config: OptimizerConfig) -> Callable[[jax.Array], jax.Array]:
    """Makes the learning rate a function of the optimiser updates already applied.

    Returns:
        `step -> float32 []`; constant past `total_steps`, never rising again.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    falling_steps = (config.total_steps or 0) - warmup
    match config.schedule:
        case "constant":
            after = optax.constant_schedule(peak)
        case "linear":
            after = optax.linear_schedule(peak, peak * config.final_fraction, falling_steps)
        case "cosine":
            after = optax.cosine_decay_schedule(peak, falling_steps, config.final_fraction)

    def learning_rate(step: jax.Array) -> jax.Array:
        count = jnp.asarray(step, jnp.float32)
        rising = peak * (count + 1) / max(warmup, 1)
        later = jnp.asarray(after(jnp.maximum(count - warmup, 0)), jnp.float32)
        return jnp.where(count < warmup, rising, later)

    return learning_rate
