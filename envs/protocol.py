"""What a rollout asks of an environment: text in, text out, many episodes at once."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Infos = Mapping[str, np.ndarray]


class TextVectorEnv(Protocol):
    """A vector environment whose observations and actions are strings.

    The methods are those of `gymnasium.vector.VectorEnv` with autoreset disabled: a row that
    has ended stays as it is, at reward 0, until the caller resets it.

    Every info is an array with one entry a row. All tasks report `success`, `score`,
    `action_is_valid`, `action_is_effective`, `num_actions` and `format_penalty`; the
    penalty is kept apart and is not part of the rewards.
    """

    num_envs: int

    @property
    def system_prompt(self) -> str:
        """The text that opens every conversation."""

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Starts new episodes; returns observations and infos of all rows."""

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Gives each row one reply.

        Returns observations, rewards, terminations, truncations and infos of all rows.
        """
