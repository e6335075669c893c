"""Tokenizers of GGUF metadata, against llama.cpp and transformers on the same vocabularies."""

import json

import pytest
from transformers import Qwen2Tokenizer

from freshper_jax.rollout import make_chat_renderer
from freshper_jax.weights.gguf_tokenizer import make_gguf_tokenizer
from tests.golden import vocabularies
from tests.golden.cases import FOLDER

VOCABULARIES = vocabularies.all_vocabularies()
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def pieces(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("name", VOCABULARIES)
def test_gives_the_tokens_of_llama_cpp_and_the_text_back(name):
    golden = json.loads((FOLDER / "llama_cpp_tokens.json").read_text())["ids"][name]
    tokenizer = make_gguf_tokenizer(VOCABULARIES[name])
    assert len(golden) == len(vocabularies.TEXTS)
    for text, want in zip(vocabularies.TEXTS, golden, strict=True):
        ids = tokenizer(text)["input_ids"]
        assert ids == want, text
        # The space that SentencePiece puts in front of a text also follows a special token.
        back = text.replace("<|user|>", "<|user|> ") if name == "llama-True" else text
        assert tokenizer.decode(ids, skip_special_tokens=True) == back


def test_qwen2_s_equals_transformers_own():
    metadata = VOCABULARIES["qwen2"]
    words = metadata["tokenizer.ggml.tokens"]
    theirs = Qwen2Tokenizer(
        vocab={word: index for index, word in enumerate(words)},
        merges=[tuple(pair.split(" ")) for pair in vocabularies.MERGES],
        extra_special_tokens=["<|end|>", "<|begin|>", "<|user|>"],
        unk_token=None,
    )
    ours = make_gguf_tokenizer(metadata)
    # The last is composed first, which llama.cpp does not do.
    for text in (*vocabularies.TEXTS, "e\u0301"):
        ids = ours(text)["input_ids"]
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # What a word may hold decides which merges may happen inside it.
        ("qwen2", ["1", "2", "3", "4", "Ġhello"]),
        ("smollm", ["1", "2", "3", "4", "Ġhello"]),
        ("llama-bpe", ["123", "4", "Ġhello"]),
        ("gpt-2", ["123", "4", "Ġhello"]),
    ],
)
def test_splits_numbers_as_the_name_says(name, expected):
    assert pieces(make_gguf_tokenizer(VOCABULARIES[name]), "1234 hello") == expected


def test_only_llama_3_takes_a_whole_word_that_is_a_token():
    assert pieces(make_gguf_tokenizer(VOCABULARIES["qwen2"]), "hel") == ["h", "el"]
    assert pieces(make_gguf_tokenizer(VOCABULARIES["llama-bpe"]), "hel") == ["hel"]


def test_special_tokens_and_the_chat_template_are_carried_over():
    metadata = VOCABULARIES["qwen2"] | {"tokenizer.chat_template": TEMPLATE}
    tokenizer = make_gguf_tokenizer(metadata)
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.eos_token_id == metadata["tokenizer.ggml.eos_token_id"]
    assert tokenizer.bos_token == "<|begin|>"
    assert tokenizer.pad_token is None
    ids = tokenizer("a<|end|><|user|>")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<|user|>"
    renderer = make_chat_renderer(tokenizer)
    assert renderer.stop_ids == (tokenizer.eos_token_id,)
    assert len(tokenizer) == len(metadata["tokenizer.ggml.tokens"])


@pytest.mark.parametrize(
    ("name", "asked", "begun"),
    [
        ("qwen2", None, False),
        ("qwen2", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("llama-True", None, True),
    ],
)
def test_a_beginning_is_added_where_the_file_asks_or_the_kind_has_it(name, asked, begun):
    asks = {} if asked is None else {"tokenizer.ggml.add_bos_token": asked}
    tokenizer = make_gguf_tokenizer(VOCABULARIES[name] | asks)
    ids = tokenizer("a")["input_ids"]
    assert (ids[0] == tokenizer.bos_token_id) == begun
    assert len(ids) == 1 + begun


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, r"'llama' \(SentencePiece\), got 't5'"),
        ({"tokenizer.ggml.pre": "tekken"}, r"ggml\.pre must be one of smollm, .*, got 'tekken'"),
    ],
)
def test_refuses_a_tokenizer_of_another_kind(change, message):
    with pytest.raises(ValueError, match=message):
        make_gguf_tokenizer(VOCABULARIES["qwen2"] | change)
