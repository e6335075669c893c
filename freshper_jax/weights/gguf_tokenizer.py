"""The tokenizer inside a GGUF file."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import ByteLevel as ByteLevelOffsets
from tokenizers.processors import Sequence as ProcessorSequence
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

_CONTROL, _USER_DEFINED = 3, 4
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split_words(digits: str) -> pre_tokenizers.PreTokenizer:
    """Splits text as GPT-4's tokenizer does, numbers into runs of so many digits."""
    words = pre_tokenizers.Split(Regex(_WORDS % digits), behavior="isolated", invert=False)
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words, levels])


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """Returns what a name in tokenizer.ggml.pre stands for."""
    if name in ("smollm", "starcoder"):
        digits = pre_tokenizers.Digits(individual_digits=True)
        levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return pre_tokenizers.Sequence([digits, levels])
    if name == "qwen2":
        return _split_words("")
    if name in ("llama-bpe", "llama3"):
        return _split_words("{1,3}")
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    raise ValueError(
        f"tokenizer.ggml.pre must be one of smollm, starcoder, qwen2, llama-bpe, llama3, gpt-2, "
        f"got {name!r}"
    )


def make_gguf_tokenizer(metadata: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """Makes a fast tokenizer from the metadata of a GGUF file, its chat template included.

    Args:
      metadata: the file's, by key.

    Raises ValueError on a kind of tokenizer, or of splitting text into words, that is not known.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ValueError(f"tokenizer.ggml.model must be 'gpt2' (byte-level BPE), got {kind!r}")
    pre = metadata.get("tokenizer.ggml.pre", "")
    splitter = _pre_tokenizer(pre)
    texts = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(texts)},
            merges=merges,
            # Llama 3 takes a word that is a token whole, whatever the merges would give.
            ignore_merges=pre in ("llama-bpe", "llama3"),
        )
    )
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    for text, token_type in zip(texts, metadata["tokenizer.ggml.token_type"], strict=True):
        if token_type in (_CONTROL, _USER_DEFINED):
            special = token_type == _CONTROL
            tokenizer.add_tokens([AddedToken(text, special=special, normalized=False)])
    names = ("bos", "eos", "unknown", "padding")
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names}
    bos, eos, unknown, padding = (None if ids[n] is None else texts[ids[n]] for n in names)
    post: list[Any] = [ByteLevelOffsets(trim_offsets=True)]
    if metadata.get("tokenizer.ggml.add_bos_token") and bos is not None:
        post.append(TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, ids["bos"])]))
    tokenizer.post_processor = ProcessorSequence(post)
    specials = {"bos_token": bos, "eos_token": eos, "unk_token": unknown, "pad_token": padding}
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        **{name: text for name, text in specials.items() if text is not None},
    )
    made.chat_template = metadata.get("tokenizer.chat_template")
    return made
