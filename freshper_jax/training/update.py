"""One jitted optimiser update, donated in place: the same for fresh and replayed batches.

In the shape descriptions, `B` denotes rows (trajectories) and `T` tokens.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from freshper_jax.objectives import (
    Aggregation,
    RowStatistics,
    aggregate,
    clipped_token_losses,
    loss_normaliser,
    row_statistics,
    summarise_rows,
    validate_aggregation,
    validate_clipping,
)
from freshper_jax.training.optimizer import Optimizer
from freshper_jax.training.state import Params, TrainState

Metrics = dict[str, jax.Array]


class TokenLogProbs(Protocol):
    """Scores given tokens under a policy."""

    def __call__(
        self, params: Params, tokens: jax.Array, temperature: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns log-probabilities and entropies, both float32 `[B, T]`, nats.

        Args:
            params: pytree of float arrays.
            tokens: int32 `[B, T]`.
            temperature: float32 `[B]`, that the rows were sampled at.
        """


class Batch(Protocol):
    """What an update reads of a batch of trajectories; any registered pytree will do.

    tokens: `[B, T]` int32. response_mask: `[B, T]` bool, the tokens the policy produced.
    behaviour_log_probs: `[B, T]` float32, under the distribution sampled from, nats.
    advantages: `[B, T]` float32, as computed at collection. temperature: `[B]` float32.
    """

    @property
    def tokens(self) -> jax.Array:
        """`[B, T]` int32."""

    @property
    def response_mask(self) -> jax.Array:
        """`[B, T]` bool."""

    @property
    def behaviour_log_probs(self) -> jax.Array:
        """`[B, T]` float32."""

    @property
    def advantages(self) -> jax.Array:
        """`[B, T]` float32."""

    @property
    def temperature(self) -> jax.Array:
        """`[B]` float32."""


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """Settings of the policy loss.

    clip_low, clip_high: the ratio is clipped to `[1 - clip_low, 1 + clip_high]`.
    dual_clip: bounds the loss of a token of negative advantage; None for no bound, which
        stale data can make arbitrarily large.
    aggregation: how token losses become a scalar, see `objectives.aggregate`.
    entropy_coefficient: the mean entropy times this is subtracted from the loss; replay
        weights do not apply to it.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0
    aggregation: Aggregation = "token-mean"
    entropy_coefficient: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError for a field out of range, naming it."""
        validate_clipping(self.clip_low, self.clip_high, self.dual_clip)
        validate_aggregation(self.aggregation)
        if not self.entropy_coefficient >= 0.0:
            raise ValueError(
                f"entropy_coefficient must be at least 0, got {self.entropy_coefficient}"
            )


def make_update(
    token_log_probs: TokenLogProbs,
    optimizer: Optimizer,
    *,
    loss: LossConfig | None = None,
    microbatches: int = 1,
) -> Callable[..., tuple[TrainState, Metrics, RowStatistics]]:
    """Makes the policy update `update(state, batch, weights, frozen=None)`.

    It returns `(state, metrics, rows)`.

    It is jitted and `state` is donated. `weights` is float32 `[B]`: the replay's, or ones for
    a fresh batch, so that both share one compilation. It runs unchanged on a mesh: shard the
    rows of `batch` and `weights`, and the result follows the shardings of `state`.

    `frozen` is what the scorer needs and no update changes, such as the base of adapters:
    where it is given, the scorer is given the pair `(frozen, state.params)` as params. It is
    neither donated nor differentiated, and has no optimizer state.

    The metrics are float32 scalars taken from the update's own forward pass, before the step:
    those of `objectives.summarise_rows`, `loss`, `policy_loss`, `grad_norm` before clipping,
    `learning_rate`, `skipped` (1 where the loss or a gradient was not finite and the state
    kept but for its count), `weight_mean`, `weight_min`, `weight_max`. `rows` holds the
    statistics of each row, in the order of the batch, to be set against its age.

    Args:
        token_log_probs: scores tokens, see the protocol.
        optimizer: from `make_optimizer`.
        loss: settings of the loss.
        microbatches: the batch is worked off in this many equal parts, to save memory; the
            gradient is that of the whole batch.

    Raises:
        ValueError: `microbatches` is below 1, or (at the first call) does not divide `B`.
    """
    config = LossConfig() if loss is None else loss
    _validate_microbatches(microbatches)

    def update(state: TrainState, batch: Batch, weights: jax.Array, frozen: Params | None = None):
        normaliser = loss_normaliser(batch.response_mask, config.aggregation)

        def part_loss(params: Params, part: tuple[Batch, jax.Array]):
            rows, row_weights = part
            log_probs, entropy = token_log_probs(
                _whole(frozen, params), rows.tokens, rows.temperature
            )
            token_losses, clipped = clipped_token_losses(
                log_probs,
                rows.behaviour_log_probs,
                rows.advantages,
                rows.response_mask,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
                dual_clip=config.dual_clip,
            )

            def reduce(values: jax.Array, scale: jax.Array | None) -> jax.Array:
                return aggregate(
                    values,
                    rows.response_mask,
                    scale,
                    aggregation=config.aggregation,
                    normaliser=normaliser,
                )

            policy = reduce(token_losses, row_weights)
            total = policy
            if config.entropy_coefficient > 0.0:
                total = total - config.entropy_coefficient * reduce(entropy, None)
            statistics = row_statistics(
                log_probs,
                rows.behaviour_log_probs,
                rows.response_mask,
                clipped=clipped,
                entropy=entropy,
            )
            return total, (policy, statistics)

        fields = _fields_read(batch)
        total, grads, (policy, statistics) = _accumulate(
            part_loss, state.params, (fields, weights), microbatches
        )
        state, metrics = _apply(state, optimizer, total, grads)
        metrics |= summarise_rows(statistics)
        metrics |= {
            "policy_loss": policy,
            "weight_mean": jnp.mean(weights),
            "weight_min": jnp.min(weights),
            "weight_max": jnp.max(weights),
        }
        return state, metrics, statistics

    return jax.jit(update, donate_argnames=("state",))


def make_cloning_update(
    token_log_probs: TokenLogProbs, optimizer: Optimizer, *, microbatches: int = 1
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Makes the supervised update `update(state, tokens, response_mask, frozen=None)`.

    It returns `(state, metrics)`; `frozen` is as in `make_update`. The loss is the mean
    cross-entropy of the response tokens at temperature 1. It is jitted and `state` is donated;
    non-finite gradients are skipped as in `make_update`. The metrics are `loss`, `grad_norm`,
    `learning_rate`, `skipped`, and `entropy`, a mean over response tokens.

    Args:
        token_log_probs: scores tokens, see the protocol.
        optimizer: from `make_optimizer`.
        microbatches: see `make_update`.

    Raises:
        ValueError: `microbatches` is below 1, or (at the first call) does not divide `B`.
    """
    _validate_microbatches(microbatches)

    def update(
        state: TrainState,
        tokens: jax.Array,
        response_mask: jax.Array,
        frozen: Params | None = None,
    ):
        normaliser = loss_normaliser(response_mask, "token-mean")

        def part_loss(params: Params, part: tuple[jax.Array, jax.Array]):
            part_tokens, part_mask = part
            temperature = jnp.ones(part_tokens.shape[0], jnp.float32)
            log_probs, entropy = token_log_probs(_whole(frozen, params), part_tokens, temperature)

            def reduce(values: jax.Array) -> jax.Array:
                return aggregate(
                    values, part_mask, None, aggregation="token-mean", normaliser=normaliser
                )

            return reduce(-log_probs), (reduce(jax.lax.stop_gradient(entropy)), ())

        total, grads, (entropy, _) = _accumulate(
            part_loss, state.params, (tokens, response_mask), microbatches
        )
        state, metrics = _apply(state, optimizer, total, grads)
        return state, metrics | {"entropy": entropy}

    return jax.jit(update, donate_argnames=("state",))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Fields:
    """The fields of a `Batch`, without whatever else the batch carries."""

    tokens: jax.Array
    response_mask: jax.Array
    behaviour_log_probs: jax.Array
    advantages: jax.Array
    temperature: jax.Array


def _fields_read(batch: Batch) -> _Fields:
    return _Fields(
        **{field.name: getattr(batch, field.name) for field in dataclasses.fields(_Fields)}
    )


def _whole(frozen: Params | None, params: Params) -> Params:
    return params if frozen is None else (frozen, params)


def _validate_microbatches(microbatches: int) -> None:
    if microbatches < 1:
        raise ValueError(f"microbatches must be at least 1, got {microbatches}")


def _accumulate(
    part_loss: Callable[[Params, Any], tuple[jax.Array, tuple[jax.Array, Any]]],
    params: Params,
    rows: Any,
    microbatches: int,
) -> tuple[jax.Array, Params, tuple[jax.Array, Any]]:
    """Adds up the loss and the gradient of the parts of a batch.

    Args:
        part_loss: `(params, rows of the part) -> (loss, (scalar, per-row pytree))`; the losses
            and the scalars add up to those of the batch.
        params: pytree of float arrays.
        rows: pytree of arrays with a leading axis `B`.
        microbatches: number of parts.

    Returns:
        `(loss, grads, (scalar, per-row pytree))` of the whole batch, rows in their order.
    """
    gradient = jax.value_and_grad(part_loss, has_aux=True)
    if microbatches == 1:
        (loss, aux), grads = gradient(params, rows)
        return loss, grads, aux

    size = jax.tree.leaves(rows)[0].shape[0]
    if size % microbatches:
        raise ValueError(f"microbatches ({microbatches}) must divide the batch of {size} rows")

    # Part m takes the rows m, m + M, m + 2M, ...: where rows are sharded over devices, each
    # part then has its share of rows on each device.
    def split(leaf: jax.Array) -> jax.Array:
        parts = leaf.reshape(size // microbatches, microbatches, *leaf.shape[1:])
        return jnp.moveaxis(parts, 1, 0)

    def join(leaf: jax.Array) -> jax.Array:
        return jnp.moveaxis(leaf, 0, 1).reshape(size, *leaf.shape[2:])

    def step(totals, part):
        loss, scalar, grads = totals
        (part_value, (part_scalar, part_rows)), part_grads = gradient(params, part)
        grads = jax.tree.map(lambda total, g: total + g.astype(total.dtype), grads, part_grads)
        return (loss + part_value, scalar + part_scalar, grads), part_rows

    zero = jnp.zeros((), jnp.float32)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    (loss, scalar, grads), aux = jax.lax.scan(step, (zero, zero, zeros), jax.tree.map(split, rows))
    grads = jax.tree.map(lambda g, leaf: g.astype(leaf.dtype), grads, params)
    return loss, grads, (scalar, jax.tree.map(join, aux))


def _apply(
    state: TrainState, optimizer: Optimizer, loss: jax.Array, grads: Params
) -> tuple[TrainState, Metrics]:
    """Takes one optimiser step, unless the loss or the gradient is not finite."""
    grad_norm = optax.tree.norm(grads).astype(jnp.float32)
    learning_rate = optimizer.learning_rate(state.step)
    direction, opt_state = optimizer.direction(grads, state.opt_state, state.params)
    params = optimizer.apply(state.params, direction, state.step)
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    applied = finite.astype(jnp.int32)

    def keep(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(finite, new, old)

    state = TrainState(
        params=jax.tree.map(keep, params, state.params),
        opt_state=jax.tree.map(keep, opt_state, state.opt_state),
        step=state.step + applied,
        skipped=state.skipped + (1 - applied),
    )
    return state, {
        "loss": loss,
        "grad_norm": grad_norm,
        "learning_rate": learning_rate,
        "skipped": (1 - applied).astype(jnp.float32),
    }
