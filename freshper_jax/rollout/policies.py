"""The two policies that rollouts know: a language model, and a script of known replies."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from freshper_jax.generate import (
    Generator,
    KVCache,
    SamplingParams,
    UnstackedParams,
    decode_rounds,
    init_cache,
    reset_rows,
)
from freshper_jax.models import LanguageModel, Params
from freshper_jax.rollout.chat import ChatRenderer
from freshper_jax.rollout.collect import Replies, RolloutError

__all__ = ["ModelPolicy", "ScriptedPolicy"]


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a `ModelPolicy` keeps of its rows' conversations.

    params: laid out for generation
    cache, logits: keys and values of each row's tokens, and the logits after the last one
    held: `[B]` i32 on the host, tokens of each row in the cache
    """

    params: UnstackedParams
    cache: KVCache
    logits: jax.Array
    held: np.ndarray


@dataclasses.dataclass(frozen=True)
class ModelPolicy:
    """A language model that keeps its key/value cache across the turns of an episode.

    Every turn appends the new tokens in chunks from a closed set of widths and decodes, so
    nothing compiles again as conversations grow. Rows that start together are read apart from
    the others where that is less work, each distinct prompt once: a group's prompt serves all
    its members. How many rows are read so is a power of two, which bounds the programs: for
    each capacity, one of `extend` for each width and power of two, and one of `decode`.

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
      capacities: fewer slots to begin with, ascending. Attention reads all slots there are:
        the cache starts with the fewest and grows when a live row needs more, up to `slots`.
      share_prefixes: whether rows that start together may share the reading of their prompts.
      stop_strings: strings whose appearance in its text ends a reply, after the token that
        completes one; the host looks for them every `round_tokens`.
      text_of: decodes a reply's tokens to text; needed with `stop_strings`.
      round_tokens: tokens decoded between two looks.

    Raises:
      ValueError: `capacities` does not ascend to at most `slots`, or `stop_strings` are given
        without `text_of`.
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
    capacities: tuple[int, ...] = ()
    share_prefixes: bool = True
    stop_strings: tuple[str, ...] = ()
    text_of: Callable[[Sequence[int]], str] | None = None
    round_tokens: int = 16

    def __post_init__(self):
        sizes = (0, *self.capacities)
        ascending = all(low < high for low, high in itertools.pairwise(sizes))
        if not ascending or sizes[-1] > self.slots:
            raise ValueError(
                f"capacities must ascend from at least 1 to at most slots ({self.slots}), "
                f"got {self.capacities}"
            )
        if self.stop_strings and self.text_of is None:
            raise ValueError("text_of: stop_strings need it, to decode a reply's tokens")

    def init(self, rows: int) -> Memory:
        """Return an empty cache of `rows` rows and zero logits."""
        config = self.model.config
        return Memory(
            params=self.generator.unstack(self.params),
            cache=init_cache(config, rows, self._capacity(0)),
            logits=jnp.zeros((rows, config.vocab_size), jnp.float32),
            held=np.zeros(rows, np.int32),
        )

    def respond(
        self,
        memory: Memory,
        pending: Sequence[Sequence[int]],
        starts: np.ndarray,
        episodes: np.ndarray,
        budgets: np.ndarray,
    ) -> tuple[Memory, Replies]:
        """Append the pending tokens to the cache and sample one reply a row.

        A live row reads at least one token.

        Raises:
          RolloutError: a row's tokens and a reply do not fit into its slots.
        """
        live = budgets > 0
        pending = [ids if on else [] for ids, on in zip(pending, live, strict=True)]
        held = np.where(starts, 0, memory.held)
        filled = held + np.array([len(ids) for ids in pending], np.int32)
        self._check(held, filled, live)
        cache, logits = memory.cache, memory.logits
        if starts.any():
            cache = reset_rows(cache, jnp.asarray(starts))
        needed = np.minimum(filled + budgets, self.slots)[live].max(initial=0)
        if needed > cache.slots:
            cache = self.generator.grow(cache, slots=self._capacity(int(needed)))
        cache, logits = self._read(memory.params, cache, logits, pending, starts & live)
        decode, options = self.generator.decode, {}
        if self.stop_strings:
            decode = functools.partial(decode_rounds, self.generator)
            options = {
                "stop_strings": self.stop_strings,
                "text_of": self.text_of,
                "round_tokens": self.round_tokens,
            }
        cache, logits, generation = decode(
            memory.params, cache, logits, self.key, episodes.astype(np.int32), self.sampling,
            np.asarray(self.stop_ids, np.int32), budgets, max_new=self.max_new_tokens, **options,
        )  # fmt: skip
        out = jax.device_get(generation)
        log_probs_t1 = None if is_plain(self.sampling) else out.log_probs_t1
        memory = Memory(memory.params, cache, logits, filled + out.counts)
        return memory, Replies(out.tokens, out.counts, out.log_probs, log_probs_t1)

    def _capacity(self, needed: int) -> int:
        """The fewest slots there may be that hold so many tokens."""
        return next((size for size in self.capacities if size >= needed), self.slots)

    def _check(self, held: np.ndarray, filled: np.ndarray, live: np.ndarray) -> None:
        """Raise an error on a live row that reads nothing, or has no room for a reply."""
        for row in np.flatnonzero(live & (filled >= self.slots)):
            raise RolloutError(
                f"slots: {self.slots} is too small: row {row} holds {held[row]} tokens, has "
                f"{filled[row] - held[row]} to read and then a reply to give; allow more slots, "
                "or shorten the prompt"
            )
        for row in np.flatnonzero(live & (filled == held)):
            raise RolloutError(f"pending: row {row} is to reply and has nothing to read")

    def _read(
        self,
        params: UnstackedParams,
        cache: KVCache,
        logits: jax.Array,
        pending: Sequence[Sequence[int]],
        starting: np.ndarray,
    ) -> tuple[KVCache, jax.Array]:
        """Append the pending tokens, those of starting rows apart where that is less work."""
        pairs = list(zip(pending, starting, strict=True))
        rest = [[] if new else ids for ids, new in pairs]
        prompts = list(dict.fromkeys(tuple(ids) for ids, new in pairs if new))
        rows = 1 << max(len(prompts) - 1, 0).bit_length()

        def work(count: int, part: Sequence[Sequence[int]]) -> int:
            return count * sum(tokens.shape[1] for tokens, _ in chunk_rows(part, self.chunks))

        apart = prompts and work(rows, prompts) + work(len(rest), rest) < work(len(rest), pending)
        if not (self.share_prefixes and apart):
            return self._append(params, cache, logits, pending)
        small = init_cache(self.model.config, rows, cache.slots, cache.keys[0].dtype)
        blank = jnp.zeros((rows, logits.shape[1]), logits.dtype)
        padded = [*prompts, *[()] * (rows - len(prompts))]
        small, blank = self._append(params, small, blank, padded)
        number = {prompt: index for index, prompt in enumerate(prompts)}
        source = [number[tuple(ids)] if new else -1 for ids, new in pairs]
        cache, logits = self.generator.place(
            cache, logits, small, blank, np.asarray(source, np.int32)
        )
        return self._append(params, cache, logits, rest)

    def _append(
        self,
        params: UnstackedParams,
        cache: KVCache,
        logits: jax.Array,
        pending: Sequence[Sequence[int]],
    ) -> tuple[KVCache, jax.Array]:
        """Append ragged rows in chunks."""
        for tokens, counts in chunk_rows(pending, self.chunks):
            cache, fresh = self.generator.extend(params, cache, tokens, counts)
            logits = jnp.where((counts > 0)[:, None], fresh, logits)
        return cache, logits


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
    longest = max(map(len, rows), default=0)
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
