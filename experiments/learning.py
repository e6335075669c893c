"""How a run learns: the options of objective and optimiser, and what of them goes together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

__all__ = ["LearningOptions", "check_learning"]


@dataclasses.dataclass(frozen=True)
class LearningOptions:
    """Objective and optimiser."""

    objective: Literal["ppo", "tis", "decoupled", "gspo"] = "ppo"
    """What becomes of the ratio to the behaviour policy. ppo clips it, tis truncates it, decoupled
    splits it at the policy before the update and does one to each half, gspo clips that of whole
    trajectories."""
    advantage: Literal["reinforce++", "grpo", "gae", "vtrace"] = "reinforce++"
    """Returns whitened over the batch; compared within a group; or by a value head, which gae and
    vtrace add to the model."""
    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """Shape after the warm-up; it counts optimiser updates, replay updates included."""
    warmup: int = 10
    """Optimiser updates of linear warm-up."""
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    steps: int = 1
    """Optimiser updates on each batch, fresh or drawn."""
    clip: float = 0.2
    """Half-width of the ratio clip."""
    dual_clip: float | None = 3.0
    """Bound on the ratio where the advantage is negative; None leaves it open."""
    ratio_cap: float | None = 2.0
    """Where tis and decoupled truncate the ratio; None nowhere."""
    aggregation: Literal[
        "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = "token-mean"
    """How token losses become one number."""
    discount: float = 0.97
    """Discount a response token."""
    trace: float = 0.95
    """Lambda of gae and vtrace: 0 trusts the values, 1 the rewards alone."""
    trace_caps: tuple[float, float] = (1.0, 1.0)
    """Caps of vtrace on the ratio: of a TD error, and of how far it reaches back."""
    advantage_clip: float | None = None
    """Bound on the whitened advantage."""
    group_std: bool = True
    """Whether grpo divides by the deviation of the group."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    value_detached: bool = True
    """Whether the value loss trains the value head alone, and not the policy below it."""
    value_clip: float | None = None
    """Bound on how far a value moves from that at collection, in units of reward; for gae."""
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    """Weight of the KL to the starting policy in the reward."""
    microbatches: int = 8
    """Parts into which an update splits its batch to save memory."""

    @property
    def has_critic(self) -> bool:
        """Whether the model has a value head."""
        return self.advantage in ("gae", "vtrace")


Expect = Callable[[bool, str, object, str], None]


def check_learning(learning: LearningOptions, *, group_size: int, expect: Expect) -> None:
    """Refuse values that cannot work, by `expect(good, flag, value, expected)`."""

    def check(name: str, good: Callable[..., bool], expected: str) -> None:
        value = getattr(learning, name)
        expect(good(value), f"learning.{name.replace('_', '-')}", value, expected)

    def positive(value: float) -> bool:
        return math.isfinite(value) and value > 0

    def positive_or_none(value: float | None) -> bool:
        return value is None or positive(value)

    for name in ("learning_rate", "max_grad_norm", "value_coefficient"):
        check(name, positive, "a number above 0")
    for name in ("advantage_clip", "ratio_cap", "value_clip"):
        check(name, positive_or_none, "a number above 0, or None")
    for name in ("weight_decay", "entropy_coefficient", "kl_coefficient"):
        check(name, lambda v: math.isfinite(v) and v >= 0, "a number of at least 0")
    for name in ("microbatches", "steps"):
        check(name, lambda v: v >= 1, "an integer of at least 1")
    check("warmup", lambda v: v >= 0, "an integer of at least 0")
    check("clip", lambda v: 0 < v < 1, "a number between 0 and 1")
    check("dual_clip", lambda v: v is None or v > 1, "a number above 1, or None")
    check("discount", lambda v: 0 < v <= 1, "in (0, 1]")
    check("trace", lambda v: 0 <= v <= 1, "in [0, 1]")
    check(
        "trace_caps",
        lambda v: len(v) == 2 and positive(v[1]) and v[0] >= v[1],
        "two numbers above 0, the first not below the second",
    )
    _check_advantage(learning, group_size, expect)


def _check_advantage(learning: LearningOptions, group_size: int, expect: Expect) -> None:
    """Refuse what does not go with the advantage estimator."""
    estimator = learning.advantage
    if estimator == "grpo":
        expect(
            group_size >= 2,
            "group-size",
            group_size,
            "an integer of at least 2 with --learning.advantage grpo, which compares episodes of "
            "one start: a single one would have no advantage at all",
        )
    if estimator in ("grpo", "vtrace"):
        expect(
            learning.advantage_clip is None,
            "learning.advantage-clip",
            learning.advantage_clip,
            f"None with --learning.advantage {estimator}, which whitens nothing",
        )
    expect(
        learning.value_clip is None or estimator == "gae",
        "learning.value-clip",
        learning.value_clip,
        "None without --learning.advantage gae, which alone keeps the values of collection",
    )
