import functools
import re
import time

import hypothesis
import hypothesis.strategies as st
import pytest

from envs import actions
from envs.sokoban import ACTIONS

UP, DOWN, LEFT, RIGHT = range(4)
parse_actions = functools.partial(actions.parse_actions, actions=ACTIONS)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("<answer>Up</answer>", (UP,)),
        ("<answer>down</answer>", (DOWN,)),
        ("<answer>LEFT</answer>", (LEFT,)),
        ("<answer> \n Right\t</answer>", (RIGHT,)),
        ("I think.\nSo: <answer>Up</answer> because", (UP,)),
        ("<think>a wall\nis here</think><answer>Left</answer>", (LEFT,)),
        ("<answer>Up</answer><answer>Down</answer>", (UP,)),
        ("<answer>Jump</answer><answer>Down</answer>", ()),
        ("<answer><answer>Up</answer>", (UP,)),
        ("<answer><|im_start|>Up<|im_end|></answer>", (UP,)),
        ("<answer><think>Up</think></answer>", (UP,)),
        ("</answer><answer>Up</answer>", (UP,)),
        ("<answer>Up", ()),
        ("Up</answer>", ()),
        ("Up", ()),
        ("", ()),
        ("<answer></answer>", ()),
        ("<answer>Up Down</answer>", ()),
        ("<answer>Up, Down</answer>", ()),
        ("<answer>Upward</answer>", ()),
        ("<answer>Up.</answer>", ()),
        ("<answer>1</answer>", ()),
        ("<ANSWER>Up</ANSWER>", ()),
        ("<action>Up</action>", ()),
        ("<answer>Up</action>", ()),
        ("<answer>Up || Down</answer>", ()),
        ("<answer>Up ||</answer>", ()),
    ],
)
def test_one_action(reply, expected):
    assert parse_actions(reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("<answer>Up</answer>", (UP,)),
        ("<answer>Up || down||LEFT</answer>", (UP, DOWN, LEFT)),
        ("<answer>Up || Down || Left || Right</answer>", ()),
        ("<answer>Up || Jump</answer>", ()),
        ("<answer>Up || </answer>", ()),
        ("<answer>Up | Down</answer>", ()),
        ("<answer>||</answer>", ()),
    ],
)
def test_several_actions(reply, expected):
    assert parse_actions(reply, max_actions=3) == expected


def test_the_other_tag():
    assert parse_actions("<action>up</action>", tag="action") == (UP,)
    assert parse_actions("<answer>up</answer>", tag="action") == ()


PIECES = ["<answer>", "</answer>", "<think>", "</think>", "<|im_end|>", *ACTIONS]
PIECES += ["||", " ", "\n", "up", "<", "x"]


@hypothesis.given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.integers(1, 3))
@hypothesis.settings(max_examples=300)
def test_agrees_with_the_pattern(reply, most):
    match = re.search(r"<answer>(.*?)</answer>", reply, re.DOTALL)
    inside = re.sub(r"</?think>|</?answer>|<\|im_end\|>", "", match[1]) if match else ""
    names = [name.strip().lower() for name in inside.split("||")]
    table = {"up": UP, "down": DOWN, "left": LEFT, "right": RIGHT}
    good = len(names) <= most and all(name in table for name in names)
    assert parse_actions(reply, max_actions=most) == tuple(table[n] for n in names if good)


@pytest.mark.parametrize(
    "reply",
    [
        "x" * 100_000,
        "<answer>" * 12_500,
        "<answer>" + "Up||" * 25_000 + "</answer>",
        "<answer>" + "<think>" * 14_000 + "</answer>",
        "<answer>" + " " * 100_000,
        "\ud800\udfff\x00\x07\ufffd" * 20_000,
        "<answer>\ud800\x00</answer>",
    ],
    ids=["long", "open", "many", "tokens", "blank", "surrogates", "junk inside"],
)
def test_junk_is_invalid_and_cheap(reply):
    start = time.process_time()
    for _ in range(10):
        assert parse_actions(reply) == ()
    assert time.process_time() - start < 0.5
