"""The two policies that rollouts know: a language model, and a script of known replies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from freshper_jax.generate import Generator, KVCache, SamplingParams, init_cache, reset_rows
from freshper_jax.models import LanguageModel, Params
from freshper_jax.rollout.chat import ChatRenderer
from freshper_jax.rollout.collect import Replies, RolloutError

__all__ = ["ModelPolicy", "ScriptedPolicy"]


@dataclasses.dataclass(frozen=True)
class ModelPolicy:
    """A language model that keeps its key/value cache across the turns of an episode.

    Every turn appends the new tokens in chunks from a closed set of widths and decodes, so
    nothing compiles again as conversations grow.

    Args:
      model: the language model.
      generator: its compiled functions.
      params: its parameters.
      key: consumed by the samples; a sample is a function of the key, the number of its
        episode and its position, not of the other rows.
      sampling: temperature and truncation.
      stop_ids: ids that end a reply.
      slots: `S`, tokens that a row can hold.
      max_new_tokens: the largest budget of one reply.
      chunks: widths of appended chunks, ascending.
    """

    model: LanguageModel
    generator: Generator
    params: Params
    key: jax.Array
    sampling: SamplingParams
    stop_ids: tuple[int, ...]
    slots: int
    max_new_tokens: int
    chunks: tuple[int, ...] = (32, 128, 512)

    def init(self, rows: int) -> tuple[KVCache, jax.Array]:
        """Return an empty cache of `rows` rows and zero logits."""
        config = self.model.config
        cache = init_cache(config, rows, self.slots)
        return cache, jnp.zeros((rows, config.vocab_size), jnp.float32)

    def respond(
        self,
        memory: tuple[KVCache, jax.Array],
        pending: Sequence[Sequence[int]],
        starts: np.ndarray,
        episodes: np.ndarray,
        budgets: np.ndarray,
    ) -> tuple[tuple[KVCache, jax.Array], Replies]:
        """Append the pending tokens to the cache and sample one reply a row."""
        cache, logits = memory
        if starts.any():
            cache = reset_rows(cache, jnp.asarray(starts))
        for tokens, counts in chunk_rows(pending, self.chunks):
            cache, fresh = self.generator.extend(self.params, cache, tokens, counts)
            logits = jnp.where((counts > 0)[:, None], fresh, logits)
        cache, logits, generation = self.generator.decode(
            self.params, cache, logits, self.key, episodes.astype(np.int32), self.sampling,
            np.asarray(self.stop_ids, np.int32), budgets, max_new=self.max_new_tokens,
        )  # fmt: skip
        out = jax.device_get(generation)
        log_probs_t1 = None if is_plain(self.sampling) else out.log_probs_t1
        return (cache, logits), Replies(out.tokens, out.counts, out.log_probs, log_probs_t1)


def is_plain(sampling: SamplingParams) -> bool:
    """Say whether samples come from the model's own distribution: temperature 1, no truncation."""
    return bool(
        np.all(np.asarray(sampling.temperature) == 1.0)
        and np.all(np.asarray(sampling.top_k) == 0)
        and np.all(np.asarray(sampling.top_p) == 1.0)
        and np.all(np.asarray(sampling.min_p) == 0.0)
    )


def chunk_rows(
    rows: Sequence[Sequence[int]], widths: tuple[int, ...]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split ragged rows into left-aligned chunks `(tokens [B, W], counts [B])` of closed widths."""
    longest = max(map(len, rows))
    chunks, start = [], 0
    while start < longest:
        left = longest - start
        width = next((w for w in widths if w >= left), widths[-1])
        tokens = np.zeros((len(rows), width), np.int32)
        counts = np.zeros(len(rows), np.int32)
        for row, ids in enumerate(rows):
            part = ids[start : start + width]
            tokens[row, : len(part)], counts[row] = part, len(part)
        chunks.append((tokens, counts))
        start += width
    return chunks


@dataclasses.dataclass(frozen=True)
class ScriptedPolicy:
    """Replies that are known beforehand, such as a solver's, as log-probability 0 tokens.

    Args:
      renderer: encodes the replies.
      replies: `replies[e][k]` is the text of turn `k` of episode `e`.
      max_new_tokens: width of the returned rows.

    Raises:
      RolloutError: a reply takes more than `max_new_tokens` tokens.
    """

    renderer: ChatRenderer
    replies: Sequence[Sequence[str]]
    max_new_tokens: int

    def init(self, rows: int) -> np.ndarray:
        """Return the next turn of each row."""
        return np.zeros(rows, np.int32)

    def respond(
        self,
        memory: np.ndarray,
        pending: Sequence[Sequence[int]],
        starts: np.ndarray,
        episodes: np.ndarray,
        budgets: np.ndarray,
    ) -> tuple[np.ndarray, Replies]:
        """Reply with the next text of each row's script."""
        del pending
        turns = np.where(starts, 0, memory)
        live = np.flatnonzero(budgets > 0)
        encoded = self.renderer.encode_reply([self.replies[episodes[r]][turns[r]] for r in live])
        tokens = np.zeros((len(turns), self.max_new_tokens), np.int32)
        counts = np.zeros(len(turns), np.int32)
        for row, ids in zip(live, encoded, strict=True):
            if len(ids) > self.max_new_tokens:
                raise RolloutError(
                    f"max_new_tokens: {self.max_new_tokens} is too small for a scripted reply "
                    f"of {len(ids)} tokens"
                )
            tokens[row, : len(ids)], counts[row] = ids, len(ids)
        return turns + (budgets > 0), Replies(tokens, counts, np.zeros(tokens.shape, np.float32))
