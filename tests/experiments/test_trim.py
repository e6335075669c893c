import hypothesis
import hypothesis.strategies as st
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from experiments.trim import make_token_trim
from freshper_jax.rollout import make_word_tokenizer

TEXT = "the river Rhine meets the sea in the Netherlands; the reader reads on, €5 — naïve"


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level BPE tokenizer of a few hundred tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator([TEXT] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core)


def count(tokenizer, text):
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


@hypothesis.given(
    st.lists(st.text(st.sampled_from(TEXT + "日本👍"), max_size=40), max_size=4),
    st.integers(1, 12),
)
@hypothesis.settings(max_examples=60)
def test_texts_are_cut_to_beginnings_of_so_many_tokens(tokenizer, texts, budget):
    cut = make_token_trim(tokenizer)(texts, budget)
    assert len(cut) == len(texts)
    for before, after in zip(texts, cut, strict=True):
        assert before.startswith(after)
        assert count(tokenizer, after) <= budget
        assert (after == before) == (count(tokenizer, before) <= budget)


def test_no_more_is_cut_than_must_be(tokenizer):
    words = make_word_tokenizer(["a", "b", " "])
    assert make_token_trim(words)(["a b a", "a", ""], 3) == ["a b", "a", ""]
    (cut,) = make_token_trim(tokenizer)([TEXT * 3], 20)
    assert 18 <= count(tokenizer, cut) <= 20


def test_nothing_to_cut_is_no_call():
    assert make_token_trim(None)([], 5) == []
