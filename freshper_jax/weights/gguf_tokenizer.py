"""The tokenizer inside a GGUF file."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import ByteLevel as ByteLevelOffsets
from tokenizers.processors import Sequence as ProcessorSequence
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
# Kinds of tokens that merges may make; the others are the unknown one, control and bytes.
_PIECES = (_NORMAL, _USER_DEFINED, _UNUSED)
_LLAMA3 = ("llama-bpe", "llama3")
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
    if name in _LLAMA3:
        return _split_words("{1,3}")
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    raise ValueError(
        f"tokenizer.ggml.pre must be one of smollm, starcoder, qwen2, llama-bpe, llama3, gpt-2, "
        f"got {name!r}"
    )


def _byte_level(metadata: Mapping[str, Any]) -> Tokenizer:
    """Makes a tokenizer that merges bytes inside words, in the order of a list."""
    pre = metadata.get("tokenizer.ggml.pre", "")
    splitter = _pre_tokenizer(pre)
    texts = metadata["tokenizer.ggml.tokens"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(texts)},
            merges=[tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]],
            # Llama 3 takes a word that is a token whole, whatever the merges would give.
            ignore_merges=pre in _LLAMA3,
        )
    )
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(metadata: Mapping[str, Any]) -> Tokenizer:
    """Makes a tokenizer that merges characters across words, the best score first."""
    texts = metadata["tokenizer.ggml.tokens"]
    vocab = {text: index for index, text in enumerate(texts)}
    scores = metadata["tokenizer.ggml.scores"]
    types = metadata["tokenizer.ggml.token_type"]
    pieces = [index for index, kind in enumerate(types) if kind in _PIECES]
    merges = [
        (texts[index][:cut], texts[index][cut:])
        for index in sorted(pieces, key=lambda index: -scores[index])
        for cut in range(1, len(texts[index]))
        if texts[index][:cut] in vocab and texts[index][cut:] in vocab
    ]
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges,
            unk_token=texts[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", "\u2581")
    begin = [normalizers.Prepend("\u2581")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*begin, spaces])
    back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return tokenizer


def make_gguf_tokenizer(metadata: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """Makes a fast tokenizer from the metadata of a GGUF file, its chat template included.

    Args:
      metadata: the file's, by key.

    Raises ValueError on a kind of tokenizer, or of splitting text into words, that is not known.
    """
    kind = metadata.get("tokenizer.ggml.model")
    kinds = {"gpt2": _byte_level, "llama": _sentence_piece}
    if kind not in kinds:
        raise ValueError(
            "tokenizer.ggml.model must be 'gpt2' (byte-level BPE) or 'llama' (SentencePiece), "
            f"got {kind!r}"
        )
    tokenizer = kinds[kind](metadata)
    texts = metadata["tokenizer.ggml.tokens"]
    for text, token_type in zip(texts, metadata["tokenizer.ggml.token_type"], strict=True):
        if token_type in (_CONTROL, _USER_DEFINED):
            special = token_type == _CONTROL
            tokenizer.add_tokens([AddedToken(text, special=special, normalized=False)])
    names = ("bos", "eos", "unknown", "padding")
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names}
    bos, eos, unknown, padding = (None if ids[n] is None else texts[ids[n]] for n in names)
    post: list[Any] = [ByteLevelOffsets(trim_offsets=True)] if kind == "gpt2" else []
    begins = kind == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3
    if metadata.get("tokenizer.ggml.add_bos_token", begins) and bos is not None:
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
