"""Tau from the measured divergence: a multiple of the age at which replayed rows lose worth.

In the shape descriptions, `R` denotes the rows of a replayed batch and `A` the octaves of age:
0, 1, 2 to 3, 4 to 7 and so on; the last one is open.
"""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp

__all__ = ["AutoTau", "AutoTauState"]

OCTAVES = 24
_MAX_LOG_RATIO = 20.0  # exp(40), its square, still adds up in float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AutoTauState:
    """What has been seen of replayed rows by octave of age, the older the less it counts.

    | field   | shape | dtype   | content                                        |
    | ------- | ----- | ------- | ---------------------------------------------- |
    | count   | [A]   | float32 | rows                                           |
    | ratios  | [A]   | float32 | sum of rho, policy over behaviour, of rows     |
    | squares | [A]   | float32 | sum of rho^2                                   |
    """

    count: jax.Array
    ratios: jax.Array
    squares: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoTau:
    """Sets tau to `multiple` times the age at which the ESS share first falls to `threshold`.

    The ESS share of an octave is Kong's `(sum rho)^2 / (n sum rho^2)` over the rows drawn at
    such ages; between octaves the age is interpolated, in its logarithm. An age fitted to a
    rate of KL would come out far too long where KL is concave in age, as it was measured to
    be; the crossing needs no such law.

    While nothing was measured, tau is `prior`. While no octave has fallen so low, the policy
    drifts more slowly than the ages drawn so far can show: tau is then `multiple` times the
    end of the oldest octave measured, or `prior` if that is longer, which lets older rows be
    drawn next. Where the youngest octave measured is below already, its beginning counts.

    All functions are pure and may be traced; none looks at the buffer, so nothing has to be
    refreshed when tau moves.

    prior: tau before there is evidence, in the unit of the clock.
    multiple: tau over the age of the crossing.
    threshold: the ESS share that marks it, in (0, 1).
    forgetting: what an observation is still worth after another update, in (0, 1).
    least_rows: rows, counted with forgetting, below which an octave is not looked at.
    bounds: the least and the largest tau.

    Raises:
      ValueError: a field is out of range.
    """

    prior: float = 10.0
    multiple: float = 3.0
    threshold: float = 0.5
    forgetting: float = 0.98
    least_rows: float = 32.0
    bounds: tuple[float, float] = (1.0, 1e6)

    def __post_init__(self) -> None:
        """Checks the fields."""
        for name in ("prior", "multiple", "least_rows"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)!r}")
        for name in ("threshold", "forgetting"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in (0, 1), got {getattr(self, name)!r}")
        low, high = self.bounds
        if not 0 < low <= high < math.inf:
            raise ValueError(f"bounds must satisfy 0 < low <= high < inf, got {self.bounds!r}")

    def init(self) -> AutoTauState:
        """Returns the state in which nothing was measured."""
        return AutoTauState(*(jnp.zeros(OCTAVES, jnp.float32) for _ in range(3)))

    def update(
        self,
        state: AutoTauState,
        ages: jax.Array,
        log_ratios: jax.Array,
        where: jax.Array | None = None,
    ) -> AutoTauState:
        """Adds a replayed batch, after the earlier ones were forgotten a little.

        Args:
          state: what was measured so far.
          ages: `[R]` int, in units of the clock, not negative.
          log_ratios: `[R]` float, log rho of whole rows, nats, from the update's own forward
            pass; beyond plus or minus 20 they count as that.
          where: `[R]` bool, the rows that count; all of them if None.
        """
        chex.assert_rank([ages, log_ratios], 1)
        chex.assert_equal_shape([ages, log_ratios])
        counts = jnp.ones(ages.shape, bool) if where is None else where
        weight = (counts & jnp.isfinite(log_ratios)).astype(jnp.float32)
        bounded = jnp.clip(
            jnp.nan_to_num(log_ratios.astype(jnp.float32)), -_MAX_LOG_RATIO, _MAX_LOG_RATIO
        )
        ratio = jnp.exp(bounded) * weight
        octave = jnp.searchsorted(_starts(), jnp.asarray(ages, jnp.float32), side="right") - 1

        def add(held: jax.Array, values: jax.Array) -> jax.Array:
            fresh = jax.ops.segment_sum(values, octave, num_segments=OCTAVES)
            return jnp.float32(self.forgetting) * held + fresh

        return AutoTauState(
            count=add(state.count, weight),
            ratios=add(state.ratios, ratio),
            squares=add(state.squares, jnp.square(ratio)),
        )

    def ess_shares(self, state: AutoTauState) -> jax.Array:
        """Computes the ESS share of each octave, `[A]` float32; 0 where none was drawn."""
        some = (state.count > 0) & (state.squares > 0)
        below = jnp.where(some, state.count * state.squares, 1.0)
        return jnp.where(some, jnp.square(state.ratios) / below, 0.0)

    def tau(self, state: AutoTauState) -> jax.Array:
        """Computes tau from what was measured, a float32 scalar within the bounds."""
        age, crossed = self._crossing(state)
        longer = jnp.maximum(jnp.float32(self.prior), self.multiple * age)
        tau = jnp.where(crossed, self.multiple * age, longer)
        return jnp.clip(tau, *map(jnp.float32, self.bounds))

    def log_freshness(self, state: AutoTauState, ages: jax.Array) -> jax.Array:
        """Computes the logarithm of the measured ESS share at ages, in place of `-age / tau`.

        It is interpolated between octaves in the logarithm of age, made to fall with age, and
        level beyond the octaves measured; while nothing was measured it is `-age / prior`.

        Args:
          state: what was measured so far.
          ages: `[...]` int, in units of the clock.
        """
        measured = state.count >= self.least_rows
        shares = jnp.where(measured, self.ess_shares(state), 1.0)
        # An octave that was not measured is taken to be like the next younger one.
        shares = jax.lax.cummin(jnp.maximum(shares, jnp.float32(1e-6)))
        ages = jnp.maximum(ages, 0).astype(jnp.float32)
        curve = jnp.interp(jnp.log(jnp.maximum(ages, 0.5)), jnp.log(_centres()), jnp.log(shares))
        return jnp.where(jnp.any(measured), curve, -ages / jnp.float32(self.prior))

    def _crossing(self, state: AutoTauState) -> tuple[jax.Array, jax.Array]:
        """Computes the age of the crossing, and whether there is one; else the oldest measured."""
        shares, octaves = self.ess_shares(state), jnp.arange(OCTAVES)
        measured = state.count >= self.least_rows
        low = measured & (shares <= self.threshold)
        crossed = jnp.any(low)
        first = jnp.argmax(low)
        before = jnp.max(jnp.where(measured & (octaves < first), octaves, -1))
        centre = jnp.log(_centres())
        above, under = shares[jnp.maximum(before, 0)], shares[first]
        part = (above - self.threshold) / jnp.maximum(above - under, 1e-6)
        between = jnp.exp(
            centre[jnp.maximum(before, 0)] + part * (centre[first] - centre[jnp.maximum(before, 0)])
        )
        start = jnp.maximum(_starts()[first], 1.0)
        oldest = jnp.max(jnp.where(measured, octaves, -1))
        end = jnp.where(oldest >= 0, 2.0 ** oldest.astype(jnp.float32), 0.0)
        return jnp.where(crossed, jnp.where(before >= 0, between, start), end), crossed


def _starts() -> jax.Array:
    """Returns the youngest age of each octave, `[A]` float32: 0, 1, 2, 4..."""
    return jnp.where(
        jnp.arange(OCTAVES) == 0, 0.0, 2.0 ** (jnp.arange(OCTAVES, dtype=jnp.float32) - 1.0)
    )


def _centres() -> jax.Array:
    """Returns an age within each octave, `[A]` float32: the geometric mean of its ends."""
    starts = _starts()
    return jnp.where(starts < 1, 0.5, starts * jnp.float32(math.sqrt(2.0)))
