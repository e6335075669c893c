"""Tokenizers of GGUF metadata, against transformers' own with the same words and merges."""

import pytest
from tokenizers import pre_tokenizers
from transformers import Qwen2Tokenizer

from freshper_jax.rollout import make_chat_renderer
from freshper_jax.weights.gguf_tokenizer import make_gguf_tokenizer

MERGES = ["Ġ h", "e l", "l o", "el lo", "Ġh ello", "1 2", "12 3", "a b", "ab c"]
TEXTS = [
    "hello hello",
    "12345 abc's ABC",
    "e\u0301 naïve \U0001f436",
    "  x\n\n\ty  \r\n z ",
    "<|end|>hello<|user|>",
    "abc12",
]
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def metadata(pre="qwen2", merges=MERGES, **changes):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = list(dict.fromkeys([*alphabet, *(pair.replace(" ", "") for pair in merges), "hel"]))
    special = ["<|end|>", "<|begin|>", "<|user|>"]
    types = [1] * len(words) + [3, 3, 4]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": words + special,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": len(words),
        "tokenizer.ggml.bos_token_id": len(words) + 1,
        "tokenizer.chat_template": TEMPLATE,
    } | changes


def pieces(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_qwen2_s_equals_transformers_own():
    fields = metadata()
    words = fields["tokenizer.ggml.tokens"]
    theirs = Qwen2Tokenizer(
        vocab={word: index for index, word in enumerate(words)},
        merges=[tuple(pair.split(" ")) for pair in MERGES],
        extra_special_tokens=["<|end|>", "<|begin|>", "<|user|>"],
        unk_token=None,
    )
    ours = make_gguf_tokenizer(fields)
    for text in TEXTS:
        ids = ours(text)["input_ids"]
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids)
    assert len(ours(TEXTS[0])["input_ids"]) == 3


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        # What a word may hold decides which merges may happen inside it.
        ("qwen2", ["1", "2", "3", "4", "Ġhello"]),
        ("smollm", ["1", "2", "3", "4", "Ġhello"]),
        ("llama-bpe", ["123", "4", "Ġhello"]),
        ("gpt-2", ["123", "4", "Ġhello"]),
    ],
)
def test_splits_numbers_as_the_name_says(pre, expected):
    assert pieces(make_gguf_tokenizer(metadata(pre)), "1234 hello") == expected


def test_only_llama_3_takes_a_whole_word_that_is_a_token():
    # "hel" is a token, yet no merge makes it.
    assert pieces(make_gguf_tokenizer(metadata("qwen2")), "hel") == ["h", "el"]
    assert pieces(make_gguf_tokenizer(metadata("llama-bpe")), "hel") == ["hel"]


def test_special_tokens_and_the_chat_template_are_carried_over():
    fields = metadata()
    tokenizer = make_gguf_tokenizer(fields)
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.eos_token_id == fields["tokenizer.ggml.eos_token_id"]
    assert tokenizer.bos_token == "<|begin|>"
    assert tokenizer.pad_token is None
    ids = tokenizer("a<|end|><|user|>")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<|user|>"
    renderer = make_chat_renderer(tokenizer)
    assert renderer.stop_ids == (tokenizer.eos_token_id,)
    assert len(tokenizer) == len(fields["tokenizer.ggml.tokens"])


def test_a_beginning_is_added_only_where_the_file_asks_for_it():
    begun = make_gguf_tokenizer(metadata(**{"tokenizer.ggml.add_bos_token": True}))
    assert begun("a")["input_ids"][0] == begun.bos_token_id
    assert pieces(begun, "a") == ["a"]
    assert make_gguf_tokenizer(metadata())("a")["input_ids"] == begun("a")["input_ids"][1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, r"must be 'gpt2' \(byte-level BPE\), got 'llama'"),
        ({"tokenizer.ggml.pre": "tekken"}, "ggml.pre must be one of smollm, .*, got 'tekken'"),
    ],
)
def test_refuses_a_tokenizer_of_another_kind(change, message):
    with pytest.raises(ValueError, match=message):
        make_gguf_tokenizer(metadata(**change))
