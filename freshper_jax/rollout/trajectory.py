"""The trajectory: one row is a whole multi-turn episode, token by token."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

__all__ = ["Trajectory"]

# Host arrays as they are collected, device arrays once they are learnt from.
Array = jax.Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trajectory:
    """A batch of finished episodes as append-only token rows.

    `B` rows, `T` tokens. A row holds the prompt, every observation and every reply in the
    order in which the policy met them; ids are never rendered again from text.

    | field               | shape, dtype  | meaning                                             |
    | ------------------- | ------------- | --------------------------------------------------- |
    | tokens              | `[B, T]` i32  | token ids, padded on the right                      |
    | response_mask       | `[B, T]` bool | tokens that the policy sampled                      |
    | behaviour_log_probs | `[B, T]` f32  | under the distribution sampled from; else 0         |
    | rewards             | `[B, T]` f32  | on the last token of each turn, penalties included  |
    | advantages          | `[B, T]` f32  | as computed at collection; 0 until then             |
    | return_             | `[B]` f32     | undiscounted sum of rewards                         |
    | length              | `[B]` i32     | tokens held                                         |
    | group_id            | `[B]` i32     | rows that share a start share an id                 |
    | policy_version      | `[B]` i32     | optimiser updates applied to the behaviour policy   |
    | temperature         | `[B]` f32     | sampling temperature                                |
    | log_probs_t1        | `[B, T]` f32  | untruncated, at temperature 1; None where the same  |
    | values              | `[B, T]` f32  | a critic's, as of collection; None without          |
    | value_targets       | `[B, T]` f32  | what they should be; None without                   |
    """

    tokens: Array
    response_mask: Array
    behaviour_log_probs: Array
    rewards: Array
    advantages: Array
    return_: Array
    length: Array
    group_id: Array
    policy_version: Array
    temperature: Array
    log_probs_t1: Array | None = None
    values: Array | None = None
    value_targets: Array | None = None

    def replace(self, **changes: object) -> Trajectory:
        """Return a copy with some fields replaced."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
