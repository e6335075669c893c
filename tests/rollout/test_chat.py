import pytest
from transformers import AutoTokenizer

from freshper_jax.rollout import make_chat_renderer, make_word_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = ["Go.", "left", "right", " ", "a", "b", "\n", "system", "user", "assistant"]


def chatml_tokenizer(template=CHATML):
    tokenizer = make_word_tokenizer(WORDS)
    tokenizer.add_special_tokens(
        {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("make", [lambda: make_word_tokenizer(WORDS), chatml_tokenizer])
def test_appended_ids_equal_the_template_rendered_whole(make):
    tokenizer = make()
    renderer = make_chat_renderer(tokenizer)
    ids = renderer.open("Go.", ["a b"])[0]
    messages = [{"role": "system", "content": "Go."}, {"role": "user", "content": "a b"}]
    for reply, observation in (("left", "b"), ("right", "a\na")):
        ids += renderer.encode_reply([reply])[0] + renderer.follow([observation], [True])[0]
        messages += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": observation},
        ]
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(ids) == whole
    assert ids == tokenizer(whole, add_special_tokens=False)["input_ids"]


def test_a_reply_without_its_end_is_closed():
    renderer = make_chat_renderer(chatml_tokenizer())
    closed, unclosed = renderer.follow(["a", "a"], [True, False])
    assert unclosed == [renderer.stop_ids[0], *closed]


def test_decoded_replies_lose_their_stop_token_only():
    renderer = make_chat_renderer(chatml_tokenizer())
    rows = renderer.encode_reply(["left a", "\nright "])
    assert renderer.decode_replies([rows[0], rows[1][:-1], []]) == ["left a", "\nright ", ""]


def test_a_template_that_trims_contents_is_followed():
    template = CHATML.replace("m.content", "m.content | trim")
    renderer = make_chat_renderer(chatml_tokenizer(template))
    assert renderer.follow([" a\n"], [True]) == renderer.follow(["a"], [True])


def test_a_template_that_rewrites_the_past_is_refused():
    rewriting = CHATML.replace(
        "{{ m.content }}", "{{ m.content if loop.last or m.role != 'assistant' else '' }}"
    )
    with pytest.raises(ValueError, match="append-only"):
        make_chat_renderer(chatml_tokenizer(rewriting))


def test_a_tokenizer_without_template_is_refused():
    tokenizer = make_word_tokenizer(WORDS)
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        make_chat_renderer(tokenizer)


def test_a_turn_that_ends_without_special_token_is_refused():
    with pytest.raises(ValueError, match="does not end a reply with a special token"):
        make_chat_renderer(chatml_tokenizer(CHATML.replace("<|im_end|>", "a")))


def test_word_tokenizer_matches_longest_first_and_survives_saving(tmp_path):
    tokenizer = make_word_tokenizer(["#", "#\n#", "##\n#", "x"])
    text = "##\n#x#\n#x"
    ids = tokenizer(text)["input_ids"]
    assert [tokenizer.decode([i]) for i in ids] == ["##\n#", "x", "#\n#", "x"]
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(text)["input_ids"] == ids
    assert loaded.decode(ids) == text
    assert loaded.chat_template == tokenizer.chat_template
    assert tokenizer("x?x")["input_ids"] == [ids[1], tokenizer.unk_token_id, ids[1]]


@pytest.mark.parametrize("words", [["a", "a"], ["a", ""], ["<|end|>"]])
def test_bad_words_are_refused(words):
    with pytest.raises(ValueError, match="words:"):
        make_word_tokenizer(words)
