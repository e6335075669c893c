"""Multi-turn episodes: a policy and a vectorised text environment make trajectories."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from freshper_jax.rollout.chat import ChatRenderer
from freshper_jax.rollout.trajectory import Trajectory

__all__ = [
    "EpisodeStats",
    "Episodes",
    "Policy",
    "Replies",
    "RolloutError",
    "TextVectorEnv",
    "collect",
]


class RolloutError(ValueError):
    """A prompt or a reply does not fit; the message names the limit."""


class TextVectorEnv(Protocol):
    """What rollouts need of an environment: gymnasium's vector API with text both ways.

    A finished row that is stepped again before its reset stays as it is and earns nothing.
    """

    num_envs: int

    @property
    def system_prompt(self) -> str:
        """The system message of every episode."""
        ...

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Sequence[str], dict[str, Any]]:
        """Start the rows of `options["reset_mask"]`, each from its own seed."""
        ...

    def step(
        self, actions: Sequence[str]
    ) -> tuple[Sequence[str], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Play one reply a row."""
        ...


@dataclasses.dataclass(frozen=True)
class Replies:
    """One reply a row: `tokens [B, M]` i32, `counts [B]` i32, `log_probs [B, M]` f32 under the
    distribution sampled from, and `log_probs_t1 [B, M]` f32 or None where they are the same."""

    tokens: np.ndarray
    counts: np.ndarray
    log_probs: np.ndarray
    log_probs_t1: np.ndarray | None = None


class Policy(Protocol):
    """What rollouts need of a policy: pure functions over a memory of each row's conversation."""

    def init(self, rows: int) -> Any:
        """Return the memory of `rows` rows that have read nothing."""
        ...

    def respond(
        self,
        memory: Any,
        pending: Sequence[Sequence[int]],
        starts: np.ndarray,
        episodes: np.ndarray,
        budgets: np.ndarray,
    ) -> tuple[Any, Replies]:
        """Read `pending[b]` new tokens and reply; `starts[b]` first forgets the row's past.

        `episodes[b]` numbers the row's episode (its samples depend on nothing else of the
        batch); a row of budget 0 is idle: it reads nothing and replies nothing.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Episodes:
    """The `E` episodes to play.

    `seeds [E]` decide their starts; `group_ids [E]` are shared by equal starts; `options`
    holds further arrays `[E]` for the environment's `reset`, such as the
    places `start_indices` among a task's starts.
    """

    seeds: np.ndarray
    group_ids: np.ndarray
    options: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, seeds: Sequence[int] | np.ndarray, **options: np.ndarray) -> Episodes:
        """Play each start once; every episode is a group of its own."""
        starts = np.asarray(seeds, np.int64)
        return cls(starts, np.arange(len(starts), dtype=np.int32), options)

    def repeat(self, group_size: int) -> Episodes:
        """Play each start `group_size` times as one group."""
        return Episodes(
            np.repeat(self.seeds, group_size),
            np.repeat(self.group_ids, group_size),
            {name: np.repeat(values, group_size) for name, values in self.options.items()},
        )


@dataclasses.dataclass(frozen=True)
class EpisodeStats:
    """What the environment says of each episode, and how many tokens it took.

    `score [E]` is the sum of the task's own rewards; the format penalty is apart in
    `penalty [E]`. `valid` and `effective` are shares of an episode's turns. `cut [E]` marks
    episodes ended because their row was full. `infos` holds the environment's own numbers as
    they were after each episode's last turn, `[E]` each.
    """

    score: np.ndarray
    penalty: np.ndarray
    success: np.ndarray
    turns: np.ndarray
    valid: np.ndarray
    effective: np.ndarray
    cut: np.ndarray
    sampled_tokens: int
    read_tokens: int
    infos: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def collect(
    policy: Policy,
    env: TextVectorEnv,
    renderer: ChatRenderer,
    episodes: Episodes,
    *,
    max_tokens: int,
    max_new_tokens: int,
    policy_version: int = 0,
    temperature: float = 1.0,
) -> tuple[Trajectory, EpisodeStats]:
    """Play every episode to its end over the environment's rows, refilling rows as they finish.

    Args:
      policy: replies to all rows at once.
      env: `num_envs` rows, played in step by turn.
      renderer: the chat format.
      episodes: `E` starts; `E` may be larger or smaller than `num_envs`.
      max_tokens: `T`, the capacity of a row; an episode that cannot take another turn of
        `max_new_tokens` ends there.
      max_new_tokens: budget of one reply.
      policy_version: optimiser updates applied to the policy, recorded with each row.
      temperature: sampling temperature, recorded with each row.

    Returns:
      A `Trajectory` of numpy arrays with leading axis `E` and zero advantages, and the
      episodes' statistics, both in the order of `episodes`.

    Raises:
      RolloutError: the first prompt and one reply do not fit into a row.
    """
    total, rows = len(episodes.seeds), env.num_envs
    record = _Record.empty(total, max_tokens)
    slots = np.full(rows, -1)
    pending: list[list[int]] = [[] for _ in range(rows)]
    starts = np.zeros(rows, bool)
    memory = policy.init(rows)
    queue = iter(range(total))
    keeps_t1 = False

    def refill(free: np.ndarray) -> None:
        """Give each free row the next episode, if one is left."""
        taken = [(row, episode) for row, episode in zip(free, queue, strict=False)]
        slots[free] = -1
        if not taken:
            return
        chosen, numbers = (np.array(part) for part in zip(*taken, strict=True))
        # The first reset covers every row, as environments ask; spare rows then stay idle.
        mask = np.full(rows, len(free) == rows)
        mask[chosen] = True

        def spread(values: np.ndarray) -> np.ndarray:
            wide = np.zeros(rows, values.dtype)
            wide[chosen] = values[numbers]
            return wide

        options = {name: spread(values) for name, values in episodes.options.items()}
        observations, _ = env.reset(
            seed=spread(episodes.seeds).tolist(), options={"reset_mask": mask, **options}
        )
        slots[chosen], starts[chosen] = numbers, True
        for row, ids in zip(
            chosen,
            renderer.open(env.system_prompt, [observations[r] for r in chosen]),
            strict=True,
        ):
            if len(ids) + max_new_tokens > max_tokens:
                raise RolloutError(
                    f"max_tokens: {max_tokens} is too small: the first prompt takes {len(ids)} "
                    f"tokens and a reply up to {max_new_tokens}"
                )
            pending[row] = ids

    refill(np.arange(rows))
    while (active := slots >= 0).any():
        live = np.flatnonzero(active)
        for row in live:
            record.append(slots[row], pending[row])
        budgets = np.where(active, max_new_tokens, 0).astype(np.int32)
        memory, replies = policy.respond(
            memory,
            [ids if on else [] for ids, on in zip(pending, active, strict=True)],
            starts,
            slots,
            budgets,
        )
        starts[:] = False
        keeps_t1 = keeps_t1 or replies.log_probs_t1 is not None
        words: list[list[int]] = [[] for _ in range(rows)]
        for row in live:
            count = replies.counts[row]
            words[row] = replies.tokens[row, :count].tolist()
            t1 = replies.log_probs if replies.log_probs_t1 is None else replies.log_probs_t1
            record.append_reply(
                slots[row], words[row], replies.log_probs[row, :count], t1[row, :count]
            )

        texts = renderer.decode_replies(words)
        observations, rewards, terminated, truncated, infos = env.step(texts)
        penalties = np.asarray(infos.get("format_penalty", np.zeros(rows)))
        record.append_turn(
            slots[live],
            rewards[live],
            penalties[live],
            {k: np.asarray(v)[live] for k, v in infos.items() if k in _FLAGS},
        )
        record.keep_infos(slots[live], live, infos)

        closed = [bool(ids) and ids[-1] in renderer.stop_ids for ids in words]
        done = terminated | truncated
        going = live[~done[live]]
        follow = renderer.follow([observations[r] for r in going], [closed[r] for r in going])
        for row, ids in zip(going, follow, strict=True):
            pending[row] = ids
            if record.length[slots[row]] + len(ids) + max_new_tokens > max_tokens:
                record.cut[slots[row]] = done[row] = True
        refill(np.flatnonzero(done & active))

    return record.finish(episodes, policy_version, temperature, keeps_t1)


_FLAGS = ("success", "action_is_valid", "action_is_effective")
_KNOWN = {*_FLAGS, "score", "format_penalty"}  # kept as fields of their own


@dataclasses.dataclass(frozen=True)
class _Record:
    """The rows being written, numpy arrays changed in place; fields as in `Trajectory`."""

    tokens: np.ndarray
    response_mask: np.ndarray
    log_probs: np.ndarray
    log_probs_t1: np.ndarray
    rewards: np.ndarray
    length: np.ndarray
    score: np.ndarray
    penalty: np.ndarray
    success: np.ndarray
    turns: np.ndarray
    valid: np.ndarray
    effective: np.ndarray
    cut: np.ndarray
    infos: dict[str, np.ndarray]

    @classmethod
    def empty(cls, rows: int, width: int) -> _Record:
        wide, narrow = (rows, width), (rows,)
        return cls(
            np.zeros(wide, np.int32),
            np.zeros(wide, bool),
            np.zeros(wide, np.float32),
            np.zeros(wide, np.float32),
            np.zeros(wide, np.float32),
            np.zeros(narrow, np.int32),
            np.zeros(narrow, np.float32),
            np.zeros(narrow, np.float32),
            np.zeros(narrow, bool),
            np.zeros(narrow, np.int32),
            np.zeros(narrow, np.int32),
            np.zeros(narrow, np.int32),
            np.zeros(narrow, bool),
            {},
        )

    def append(self, episode: int, ids: Sequence[int]) -> slice:
        start = self.length[episode]
        place = slice(start, start + len(ids))
        self.tokens[episode, place] = ids
        self.length[episode] += len(ids)
        return place

    def append_reply(
        self, episode: int, ids: Sequence[int], log_probs: np.ndarray, log_probs_t1: np.ndarray
    ) -> None:
        place = self.append(episode, ids)
        self.response_mask[episode, place] = True
        self.log_probs[episode, place] = log_probs
        self.log_probs_t1[episode, place] = log_probs_t1

    def append_turn(
        self,
        numbers: np.ndarray,
        rewards: np.ndarray,
        penalties: np.ndarray,
        flags: dict[str, np.ndarray],
    ) -> None:
        self.rewards[numbers, self.length[numbers] - 1] = rewards + penalties
        self.score[numbers] += rewards
        self.penalty[numbers] += penalties
        self.turns[numbers] += 1
        self.success[numbers] = flags.get("success", False)
        self.valid[numbers] += flags.get("action_is_valid", np.ones(len(numbers), bool))
        self.effective[numbers] += flags.get("action_is_effective", np.ones(len(numbers), bool))

    def keep_infos(self, numbers: np.ndarray, live: np.ndarray, infos: Mapping[str, Any]) -> None:
        """Write down the environment's own numbers of this turn over those of the last."""
        for name, value in infos.items():
            values = np.asarray(value)
            if name in _KNOWN or values.dtype.kind not in "biuf":
                continue
            if name not in self.infos:
                self.infos[name] = np.zeros(len(self.length), values.dtype)
            self.infos[name][numbers] = values[live]

    def finish(
        self, episodes: Episodes, policy_version: int, temperature: float, keeps_t1: bool
    ) -> tuple[Trajectory, EpisodeStats]:
        rows = len(self.length)
        trajectory = Trajectory(
            tokens=self.tokens,
            response_mask=self.response_mask,
            behaviour_log_probs=self.log_probs,
            rewards=self.rewards,
            advantages=np.zeros_like(self.rewards),
            return_=self.rewards.sum(axis=1, dtype=np.float32),
            length=self.length,
            group_id=np.asarray(episodes.group_ids, np.int32),
            policy_version=np.full(rows, policy_version, np.int32),
            temperature=np.full(rows, temperature, np.float32),
            log_probs_t1=self.log_probs_t1 if keeps_t1 else None,
        )
        turns = np.maximum(self.turns, 1)
        sampled = int(self.response_mask.sum())
        stats = EpisodeStats(
            score=self.score,
            penalty=self.penalty,
            success=self.success,
            turns=self.turns,
            valid=self.valid / turns,
            effective=self.effective / turns,
            cut=self.cut,
            sampled_tokens=sampled,
            read_tokens=int(self.length.sum()) - sampled,
            infos=self.infos,
        )
        return trajectory, stats
