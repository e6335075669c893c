"""Append-only chat rendering: a conversation as token ids that only ever grow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

__all__ = ["ChatRenderer", "make_chat_renderer"]

# Stand-ins for message contents; plain letters, so that no template changes them.
_SYSTEM, _USER, _REPLY, _NEXT = "SYSTEMTEXT", "USERTEXT", "REPLYTEXT", "NEXTTEXT"


@dataclasses.dataclass(frozen=True)
class ChatRenderer:
    """Turns messages into the token ids that follow what a row already holds.

    The strings around each message are read off the tokenizer's chat template once, so
    a turn costs one call of the tokenizer and none of the template engine.
    """

    tokenizer: Any
    stop_ids: tuple[int, ...]
    pad_id: int
    opening_parts: tuple[str, str, str]
    turn_parts: tuple[str, str]
    strips_content: bool

    def open(self, system: str, users: Sequence[str]) -> list[list[int]]:
        """Return the ids of the opening messages and the generation prompt, a list a row."""
        before, between, after = self.opening_parts
        return self._encode(
            [before + self._content(system) + between + self._content(u) + after for u in users]
        )

    def follow(self, users: Sequence[str], closed: Sequence[bool]) -> list[list[int]]:
        """Return the ids that follow a reply: its end, the user's turn, the generation prompt.

        `closed[b]` says that row `b`'s reply ended with the end-of-turn token, which is then
        not repeated.
        """
        before, after = self.turn_parts
        rows = self._encode([before + self._content(u) + after for u in users])
        return [ids[1:] if done else ids for ids, done in zip(rows, closed, strict=True)]

    def encode_reply(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of whole replies, each ended by the end-of-turn token."""
        return [[*ids, self.stop_ids[0]] for ids in self._encode(list(texts))]

    def decode_replies(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each reply without its end-of-turn token."""
        bare = [ids[:-1] if len(ids) and ids[-1] in self.stop_ids else ids for ids in rows]
        return self.tokenizer.batch_decode(bare, skip_special_tokens=False)

    def _content(self, text: str) -> str:
        return text.strip() if self.strips_content else text

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []


def make_chat_renderer(tokenizer: Any, *, extra_stop_ids: Sequence[int] = ()) -> ChatRenderer:
    """Read a Hugging Face tokenizer's chat template into a renderer.

    Args:
      tokenizer: a fast tokenizer with `chat_template` and `eos_token` set.
      extra_stop_ids: ids that end a reply beside the end-of-turn token.

    Raises:
      ValueError: the tokenizer has no chat template, or the template is not append-only:
        a later turn changes how an earlier one is rendered.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "tokenizer: it has no chat template; use an instruction-tuned model's tokenizer "
            "or set tokenizer.chat_template"
        )

    def render(*messages: tuple[str, str], prompt: bool = True) -> str:
        chat = [{"role": role, "content": content} for role, content in messages]
        return tokenizer.apply_chat_template(chat, add_generation_prompt=prompt, tokenize=False)

    start = (("system", _SYSTEM), ("user", _USER))
    opening = render(*start)
    grown = render(*start, ("assistant", _REPLY), ("user", _NEXT))
    if not grown.startswith(opening + _REPLY) or opening.count(_SYSTEM) != 1:
        raise ValueError(
            "tokenizer: its chat template is not append-only: the conversation after a reply "
            f"must begin with {opening + _REPLY!r}, got {grown!r}"
        )
    before, rest = opening.split(_SYSTEM)
    between, after = rest.split(_USER)
    turn_before, turn_after = grown[len(opening + _REPLY) :].split(_NEXT)

    end_ids = tokenizer(turn_before, add_special_tokens=False)["input_ids"]
    ends_turn = (
        end_ids
        and tokenizer.decode(end_ids[:1]) == turn_before[: len(tokenizer.decode(end_ids[:1]))]
    )
    if not ends_turn or end_ids[0] not in tokenizer.all_special_ids:
        raise ValueError(
            "tokenizer: its chat template does not end a reply with a special token, "
            f"a reply is followed by {turn_before!r}"
        )
    stripped = render(("system", _SYSTEM), ("user", f" {_USER} "))
    stops = dict.fromkeys(
        [
            end_ids[0],
            *([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []),
            *extra_stop_ids,
        ]
    )
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end_ids[0]
    return ChatRenderer(
        tokenizer=tokenizer,
        stop_ids=tuple(int(i) for i in stops),
        pad_id=int(pad_id),
        opening_parts=(before, between, after),
        turn_parts=(turn_before, turn_after),
        strips_content=f" {_USER} " not in stripped,
    )
