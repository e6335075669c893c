"""A word-level Hugging Face tokenizer with a chat template, for tiny policies."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

__all__ = ["make_word_tokenizer"]

_PAD, _UNKNOWN, _END = "<|pad|>", "<|unknown|>", "<|end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer whose tokens are the given strings, matched longest first.

    Args:
      words: distinct non-empty strings; white space and line breaks may be part of a word.
        Text that no word covers becomes the unknown token.

    Returns:
      A fast tokenizer with pad, unknown, end-of-turn and role tokens, and a chat template of
      one token a message border. Decoding joins words as they are, so known text survives
      a round trip.

    Raises:
      ValueError: a word is empty, repeated, or the name of a special token.
    """
    specials = (_PAD, _UNKNOWN, _END, *_ROLES)
    seen: set[str] = set(specials)
    for word in words:
        if not word or word in seen:
            raise ValueError(f"words: {word!r} is empty, repeated or a special token")
        seen.add(word)
    vocabulary = {word: index for index, word in enumerate((*specials, *words))}
    longest_first = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(longest_first), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=_PAD,
        unk_token=_UNKNOWN,
        eos_token=_END,
        additional_special_tokens=list(_ROLES),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer
