import re
import time

import hypothesis
import hypothesis.strategies as st
import pytest

from envs.nq_search import Act, Kind, parse_reply

THINK, INVALID = Act(Kind.THINK), Act(Kind.INVALID)


def search(text):
    return Act(Kind.SEARCH, text)


def answer(text):
    return Act(Kind.ANSWER, text)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("<answer>Lima</answer>", answer("Lima")),
        ("<think>so</think><answer> the  city\nof Lima </answer>", answer("the city of Lima")),
        ("<search>capital of Peru</search>", search("capital of Peru")),
        ("<think>hm</think>\n<search>x</search> and more", search("x")),
        ("<think>only this</think>", THINK),
        ("<think></think>", THINK),
        ("<think>open", INVALID),
        ("words", INVALID),
        ("", INVALID),
        # Of two the first closed counts.
        ("<answer>a</answer><answer>b</answer>", answer("a")),
        ("<search>a</search><search>b</search>", search("a")),
        ("<search>a</search><answer>b</answer>", search("a")),
        ("<answer>b</answer><search>a</search>", answer("b")),
        ("<search>a<answer>b</answer></search>", answer("b")),
        ("<think><search>a</search></think><answer>b</answer>", search("a")),
        # An answer left open does not count, nor does a closing tag alone.
        ("<answer>a", INVALID),
        ("a</answer>", INVALID),
        ("</answer><answer>a</answer>", answer("a")),
        ("<answer>a<search>b</search>", search("b")),
        ("<think>x</think><answer>a", THINK),
        ("<answer>a</search>", INVALID),
        ("<ANSWER>a</ANSWER>", INVALID),
        # The innermost of nested tags, without tags of the protocol.
        ("<answer>a<answer>b</answer>", answer("b")),
        ("<answer><think>b</think></answer>", answer("b")),
        ("<search><information>b</search>", search("b")),
        # Nothing inside.
        ("<answer></answer>", answer("")),
        ("<answer> </answer>", answer("")),
        ("<search> \n</search>", INVALID),
        ("<search></search><answer>b</answer>", INVALID),
        ("<information>x</information>", INVALID),
        ("<answer>\ud800</answer>", answer("\ud800")),
        ("<answer>a < b</answer>", answer("a < b")),
    ],
)
def test_what_a_reply_does(reply, expected):
    assert parse_reply(reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("<search>a</search><answer>b</answer>", answer("b")),
        ("<search>a</search><answer>b", search("a")),
        ("<answer>b</answer><answer>c</answer>", answer("b")),
    ],
)
def test_an_answer_may_come_first_wherever_it_stands(reply, expected):
    assert parse_reply(reply, answer_first=True) == expected


PIECES = ["<answer>", "</answer>", "<search>", "</search>", "<think>", "</think>", "x", " ", "y"]


@hypothesis.given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@hypothesis.settings(max_examples=200)
def test_agrees_with_patterns(reply):
    # Between the tags stands no further opening one of the same kind: the innermost.
    found = [
        match
        for tag in ("answer", "search")
        if (match := re.search(rf"<({tag})>((?:(?!<{tag}>).)*?)</{tag}>", reply, re.DOTALL))
    ]
    if not found:
        thinks = re.search(r"<think>.*?</think>", reply, re.DOTALL)
        assert parse_reply(reply) == (THINK if thinks else INVALID)
        return
    first = min(found, key=lambda match: match.end())
    text = " ".join(re.sub(r"</?(?:think|search|answer)>", " ", first[2]).split())
    if first[1] == "answer":
        assert parse_reply(reply) == answer(text)
    else:
        assert parse_reply(reply) == (search(text) if text else INVALID)


@pytest.mark.parametrize(
    "reply",
    [
        "x" * 100_000,
        "<answer>" * 12_500,
        "</answer>" * 11_000,
        "<think>" * 14_000,
        "<search>" + "<answer>" * 12_000 + "</answer",
        "<search>" + " " * 100_000 + "</search>",
        "<search>" + "<think></search>" * 6_000,
        "\ud800\udfff\x00\x07\ufffd" * 20_000,
    ],
    ids=["long", "open", "closed", "thinking", "cut", "blank", "tags", "surrogates"],
)
def test_junk_is_invalid_and_cheap(reply):
    start = time.process_time()
    for _ in range(10):
        assert parse_reply(reply) == INVALID
    assert time.process_time() - start < 0.5


def test_a_long_answer_is_read_in_time():
    start = time.process_time()
    reply = "<think>" + "so " * 30_000 + "</think><answer>Lima</answer>"
    assert parse_reply(reply) == answer("Lima")
    assert parse_reply(f"<answer>{'x<think>' * 12_000}</answer>").text == "x " * 11_999 + "x"
    assert time.process_time() - start < 0.2
