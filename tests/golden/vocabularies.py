"""Tiny tokenizers as the metadata of GGUF files holds them, and texts to try them on."""

from tokenizers import pre_tokenizers

MERGES = ["Ġ h", "e l", "l o", "el lo", "Ġh ello", "1 2", "12 3", "a b", "ab c"]
# Each way of splitting text into words, and SentencePiece with and without a space in front.
BYTE_LEVEL = ("smollm", "starcoder", "qwen2", "llama-bpe", "gpt-2")
SENTENCE_PIECE = (True, False)
TEXTS = (
    "hello hello",
    "12345 abc's ABC",
    "na\u00efve \U0001f436",
    "  x\n\n\ty  \r\n z ",
    "hello<|user|>hello",
    "abc12 olleh",
    "I'll don't WE'VE 3.14",
    "a1b2c3 \u00bd \u00b2 \u0663\u0664",
    "\u4e2d\u6587123\u5b57",
    "#####\n#_P_#",
    "foo()  {\r\n}",
    "the world  tells a tale",
)
_PIECES = (
    "_t he el ll _the lo _h hel llo _hello _a or _w __ ld _wor _world _ h e l o t a w r d \u00ef"
)


def byte_level(pre):
    """Byte-level BPE over all bytes, with a word, "hel", that no merge makes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = list(dict.fromkeys([*alphabet, *(pair.replace(" ", "") for pair in MERGES), "hel"]))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*words, "<|end|>", "<|begin|>", "<|user|>"],
        "tokenizer.ggml.token_type": [1] * len(words) + [3, 3, 4],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.eos_token_id": len(words),
        "tokenizer.ggml.bos_token_id": len(words) + 1,
    }


def sentence_piece(space_prefix):
    """SentencePiece with all bytes to fall back on; earlier pieces have better scores."""
    pieces = _PIECES.replace("_", "\u2581").split()
    scores = [-float(rank) for rank in range(len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            "<unk>",
            "<s>",
            "</s>",
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *pieces,
            "<|user|>",
        ],
        "tokenizer.ggml.scores": [0.0] * 259 + scores + [-1000.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }


def all_vocabularies():
    """Metadata by name."""
    named = {pre: byte_level(pre) for pre in BYTE_LEVEL}
    return named | {f"llama-{prefix}": sentence_piece(prefix) for prefix in SENTENCE_PIECE}
