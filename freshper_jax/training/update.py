"""One jitted optimiser update, donated in place: the same for fresh and replayed batches.

In the shape descriptions, `B` denotes rows (trajectories) and `T` tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from freshper_jax.objectives import (
    RowStatistics,
    aggregate,
    loss_normaliser,
    masked_sum,
    row_statistics,
    summarise_rows,
)
from freshper_jax.training.loss import (
    Batch,
    CriticLosses,
    Fields,
    LossConfig,
    critic_losses,
    policy_token_losses,
    read_fields,
)
from freshper_jax.training.optimizer import Optimizer
from freshper_jax.training.state import Params, TrainState

Metrics = dict[str, jax.Array]


class TokenLogProbs(Protocol):
    """Scores given tokens under a policy."""

    def __call__(
        self, params: Params, tokens: jax.Array, temperature: jax.Array, mask: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Returns log-probabilities and entropies, both float32 `[B, T]`, nats.

        Of both only those of the mask are read.

        With a critic also values, float32 `[B, T]`, each of the state in which the token is
        chosen.

        Args:
            params: pytree of float arrays.
            tokens: int32 `[B, T]`.
            temperature: float32 `[B]`, that the rows were sampled at.
            mask: bool `[B, T]`, the response tokens.
        """


def make_update(
    token_log_probs: TokenLogProbs,
    optimizer: Optimizer,
    *,
    loss: LossConfig | None = None,
    microbatches: int = 1,
    widths: Sequence[int] = (),
    steps: int = 1,
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
    kept but for its count), `weight_mean`, `weight_min`, `weight_max`. With a critic also
    `value_loss`, a mean over response tokens without weights, `value_explained`, the share of
    the targets' variance that the values explain (0 where the targets are all equal), and
    `td_error`, the mean `|TD error|`. `rows` holds the statistics of each row, in the order of
    the batch, to be set against its age.

    Of several steps all these are of the first, but for `skipped`, which counts them all.

    Args:
        token_log_probs: scores tokens, see the protocol.
        optimizer: from `make_optimizer`.
        loss: settings of the loss.
        microbatches: the batch is worked off in this many equal parts, to save memory; the
            gradient is that of the whole batch.
        widths: lengths to which a part may be cut: of those, and `T`, the least that holds all
            its response tokens is what is scored of it. The scorer is compiled once for each.
            What is cut off could change nothing; `in_length_order` makes parts of rows alike.
        steps: gradient steps on the batch, each an optimiser update of its own. The proximal
            policy of the decoupled objective is the one before the first: its scores are those
            of the first step's forward pass, so that they take no pass of their own.

    Raises:
        ValueError: `microbatches`, `steps` or a width is below 1, or (at the first call)
            `microbatches` does not divide `B`, the batch lacks a field that the loss needs, or
            the scorer has no values for a critic.
    """
    config = LossConfig() if loss is None else loss
    _validate_microbatches(microbatches)
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if any(width < 1 for width in widths):
        raise ValueError(f"widths must be at least 1, got {tuple(widths)}")
    remembers = config.objective == "decoupled" and steps > 1

    def part_loss(
        params: Params,
        part: tuple[Fields, jax.Array, tuple[jax.Array, jax.Array] | None],
        normalisers: tuple[jax.Array, jax.Array],
        frozen: Params | None,
        width: int,
    ):
        rows, row_weights, proximal = part
        mask = rows.response_mask
        cut = ((0, 0), (0, mask.shape[1] - width))
        scores = token_log_probs(
            _whole(frozen, params), rows.tokens[:, :width], rows.temperature, mask[:, :width]
        )
        scores = tuple(jnp.pad(values, cut) for values in scores)
        log_probs, entropy = scores[:2]
        critic = None
        if config.critic is not None:
            if len(scores) < 3:
                raise ValueError("token_log_probs must return values too where there is a critic")
            critic = critic_losses(config.critic, rows, log_probs, scores[2])
        proximal_log_probs = None
        if proximal is not None:
            held, earlier = proximal
            proximal_log_probs = jnp.where(held[:, None], earlier, log_probs)
        token_losses, clipped = policy_token_losses(
            config,
            rows,
            log_probs,
            proximal_log_probs,
            rows.advantages if critic is None else critic.advantages,
        )

        def reduce(values: jax.Array, scale: jax.Array | None) -> jax.Array:
            return aggregate(
                values, mask, scale, aggregation=config.aggregation, normaliser=normalisers[0]
            )

        policy = reduce(token_losses, row_weights)
        total = policy
        if config.entropy_coefficient > 0.0:
            total = total - config.entropy_coefficient * reduce(entropy, None)
        if critic is not None and config.critic is not None:
            total = total + config.critic.coefficient * aggregate(
                critic.losses,
                mask,
                row_weights,
                aggregation="token-mean",
                normaliser=normalisers[1],
            )
        statistics = row_statistics(
            log_probs,
            rows.behaviour_log_probs,
            mask,
            clipped=clipped,
            entropy=entropy,
            td_error=None if critic is None else critic.td_errors,
        )
        kept = jax.lax.stop_gradient(log_probs) if remembers else None
        return total, (policy, (statistics, _fit(critic, mask), kept))

    def one_step(state, fields, weights, frozen, proximal):
        normalisers = (
            loss_normaliser(fields.response_mask, config.aggregation),
            loss_normaliser(fields.response_mask, "token-mean"),
        )

        def gradient(width: int):
            def loss_of(params: Params, part: Any):
                return part_loss(params, part, normalisers, frozen, width)

            return jax.value_and_grad(loss_of, has_aux=True)

        total, grads, (policy, (statistics, fit, kept)) = _accumulate(
            _by_width(gradient, fields.tokens.shape[1], widths),
            state.params,
            (fields, weights, proximal),
            microbatches,
        )
        state, metrics = _apply(state, optimizer, total, grads)
        metrics |= summarise_rows(statistics)
        metrics |= {
            "policy_loss": policy,
            "weight_mean": jnp.mean(weights),
            "weight_min": jnp.min(weights),
            "weight_max": jnp.max(weights),
        }
        if fit is not None:
            metrics |= _critic_metrics(fit, statistics)
        return state, metrics, statistics, kept

    def update(state: TrainState, batch: Batch, weights: jax.Array, frozen: Params | None = None):
        fields = read_fields(batch, config)
        if steps == 1:
            return one_step(state, fields, weights, frozen, None)[:3]

        def step(carry, index):
            state, earlier = carry
            proximal = None
            if earlier is not None:
                proximal = (jnp.broadcast_to(index > 0, weights.shape), earlier)
            state, metrics, rows, kept = one_step(state, fields, weights, frozen, proximal)
            if earlier is not None and proximal is not None:
                kept = jnp.where(index > 0, earlier, kept)
            return (state, kept), (metrics, rows)

        earlier = jnp.zeros_like(fields.behaviour_log_probs) if remembers else None
        (state, _), every = jax.lax.scan(step, (state, earlier), jnp.arange(steps))
        metrics, rows = jax.tree.map(lambda leaf: leaf[0], every)
        return state, metrics | {"skipped": jnp.sum(every[0]["skipped"])}, rows

    return jax.jit(update, donate_argnames=("state",))


def _fit(critic: CriticLosses | None, mask: jax.Array) -> tuple[jax.Array, ...] | None:
    """Sums over each row `[B]` the losses, the targets and their squares; None without critic."""
    if critic is None:
        return None
    parts = (jax.lax.stop_gradient(critic.losses), critic.targets, jnp.square(critic.targets))
    return tuple(masked_sum(part, mask, axis=1) for part in parts)


def _critic_metrics(fit: tuple[jax.Array, ...], rows: RowStatistics) -> Metrics:
    tokens = jnp.maximum(jnp.sum(rows.token_count), 1)
    loss, target, square = (jnp.sum(part) / tokens for part in fit)
    variance = square - jnp.square(target)
    differ = variance > 1e-6 * square  # beyond rounding
    return {
        "value_loss": loss,
        "value_explained": jnp.where(differ, 1 - 2 * loss / jnp.where(differ, variance, 1.0), 0.0),
        "td_error": jnp.sum(rows.td_error) / tokens,
    }


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
            log_probs, entropy = token_log_probs(
                _whole(frozen, params), part_tokens, temperature, part_mask
            )

            def reduce(values: jax.Array) -> jax.Array:
                return aggregate(
                    values, part_mask, None, aggregation="token-mean", normaliser=normaliser
                )

            return reduce(-log_probs), (reduce(jax.lax.stop_gradient(entropy)), ())

        total, grads, (entropy, _) = _accumulate(
            jax.value_and_grad(part_loss, has_aux=True),
            state.params,
            (tokens, response_mask),
            microbatches,
        )
        state, metrics = _apply(state, optimizer, total, grads)
        return state, metrics | {"entropy": entropy}

    return jax.jit(update, donate_argnames=("state",))


def _whole(frozen: Params | None, params: Params) -> Params:
    return params if frozen is None else (frozen, params)


def _validate_microbatches(microbatches: int) -> None:
    if microbatches < 1:
        raise ValueError(f"microbatches must be at least 1, got {microbatches}")


def _by_width(
    gradient: Callable[[int], Callable[..., Any]], length: int, widths: Sequence[int]
) -> Callable[[Params, Any], Any]:
    """Makes the gradient of a part that scores no more of it than the responses need."""
    widths = sorted({*(width for width in widths if width < length), length})
    if len(widths) == 1:
        return gradient(length)

    def choose(params: Params, part: Any):
        ends = jnp.where(part[0].response_mask, jnp.arange(1, length + 1, dtype=jnp.int32), 0)
        fitting = jnp.searchsorted(jnp.asarray(widths, jnp.int32), jnp.max(ends))
        return jax.lax.switch(fitting, [gradient(width) for width in widths], params, part)

    return choose


def _accumulate(
    gradient: Callable[[Params, Any], Any],
    params: Params,
    rows: Any,
    microbatches: int,
) -> tuple[jax.Array, Params, tuple[jax.Array, Any]]:
    """Adds up the loss and the gradient of the parts of a batch.

    Args:
        gradient: `(params, rows of the part) -> ((loss, (scalar, per-row pytree)), grads)`; all
            but the last add up to those of the batch.
        params: pytree of float arrays.
        rows: pytree of arrays with a leading axis `B`.
        microbatches: number of parts.

    Returns:
        `(loss, grads, (scalar, per-row pytree))` of the whole batch, rows in their order.
    """
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
