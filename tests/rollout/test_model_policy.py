import dataclasses
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest

from freshper_jax.generate import SamplingParams, generator, make_generator
from freshper_jax.models import make_model, preset
from freshper_jax.rollout import (
    Episodes,
    ModelPolicy,
    RolloutError,
    collect,
    make_chat_renderer,
    make_word_tokenizer,
)
from tests.rollout.counting import CountdownEnv

ROWS, SLOTS, MAX_NEW, WIDTHS = 4, 64, 3, (4, 8)


@pytest.fixture(scope="module")
def setting():
    tokenizer = make_word_tokenizer(["Count.", *"0123456789"])
    model = make_model(preset("tiny", vocab_size=len(tokenizer)))
    return SimpleNamespace(
        renderer=make_chat_renderer(tokenizer),
        model=model,
        generator=make_generator(model),
        params=model.init(jax.random.key(5)),
    )


def make_policy(setting, **options):
    fields = {
        "model": setting.model,
        "generator": setting.generator,
        "params": setting.params,
        "key": jax.random.key(3),
        "sampling": SamplingParams(),
        "stop_ids": setting.renderer.stop_ids,
        "slots": SLOTS,
        "max_new_tokens": MAX_NEW,
        "chunks": WIDTHS,
    }
    return ModelPolicy(**(fields | options))


def play(setting, policy, *, seeds=(3, 1, 2), group_size=4, rows=ROWS):
    episodes = Episodes.of(list(seeds)).repeat(group_size)
    return collect(
        policy,
        CountdownEnv(rows),
        setting.renderer,
        episodes,
        max_tokens=SLOTS,
        max_new_tokens=policy.max_new_tokens,
    )[0]


class Counting:
    """A generator that notes the padded tokens of each `extend` and the slots of each cache."""

    def __init__(self, inner):
        self.read, self.slots = [], []

        def extend(params, cache, tokens, counts):
            self.read.append(tokens.shape)
            self.slots.append(cache.slots)
            return inner.extend(params, cache, tokens, counts)

        self.generator = dataclasses.replace(inner, extend=extend)

    @property
    def padded_tokens(self):
        return sum(rows * width for rows, width in self.read)


def assert_same_play(one, other):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_allclose(one.behaviour_log_probs, other.behaviour_log_probs, atol=1e-5)


def test_a_group_reads_its_prompt_once_and_plays_the_same(setting):
    shared, apart = Counting(setting.generator), Counting(setting.generator)
    one = play(setting, make_policy(setting, generator=shared.generator))
    other = play(setting, make_policy(setting, generator=apart.generator, share_prefixes=False))
    assert_same_play(one, other)
    # Four rows with one prompt: first one row reads it, where otherwise each does.
    assert shared.read[0] == (1, 8)
    assert apart.read[0] == (ROWS, 8)
    assert shared.padded_tokens < apart.padded_tokens


def test_the_same_key_plays_the_same_and_another_does_not(setting):
    one, again = (play(setting, make_policy(setting)) for _ in range(2))
    chex.assert_trees_all_equal(one, again)
    other = play(setting, make_policy(setting, key=jax.random.key(4)))
    assert not np.array_equal(one.tokens, other.tokens)


def test_prompts_that_differ_are_not_mixed_up(setting):
    counted = Counting(setting.generator)
    one = play(
        setting, make_policy(setting, generator=counted.generator), seeds=[0, 1, 2], group_size=2
    )
    other = play(
        setting, make_policy(setting, share_prefixes=False), seeds=[0, 1, 2], group_size=2, rows=1
    )
    assert_same_play(one, other)
    assert counted.read[0] == (2, 8)


def test_growing_capacities_play_as_the_full_one_does(setting):
    counted = Counting(setting.generator)
    policy = make_policy(setting, generator=counted.generator, capacities=(12, 24))
    assert_same_play(play(setting, policy), play(setting, make_policy(setting)))
    assert counted.slots == sorted(counted.slots)
    assert set(counted.slots) == {12, 24, SLOTS}


def test_programs_are_as_many_as_told(setting, monkeypatch):
    capacities = (24,)
    sizes = len(capacities) + 1
    # Rows read: all, or one or two of them apart.
    programs = {"extend": sizes * len(WIDTHS) * 3, "decode": sizes}
    for name, most in programs.items():
        counted = chex.assert_max_traces(getattr(generator, name), n=most)
        monkeypatch.setattr(generator, name, counted)
    fresh = make_generator(setting.model)
    for key in range(3):
        policy = make_policy(
            setting, generator=fresh, key=jax.random.key(key), capacities=capacities
        )
        play(setting, policy, seeds=[key, 1, 2, 3, 0], group_size=1 + key)


def test_a_reply_ends_at_a_stop_string_and_the_game_goes_on(setting):
    text_of = setting.renderer.tokenizer.decode
    free = play(setting, make_policy(setting, max_new_tokens=8), seeds=[3, 1], group_size=1)
    plain = play(
        setting,
        make_policy(
            setting, max_new_tokens=8, stop_strings=("nothing",), text_of=text_of, round_tokens=3
        ),
        seeds=[3, 1],
        group_size=1,
    )
    np.testing.assert_array_equal(free.tokens, plain.tokens)
    policy = make_policy(
        setting, max_new_tokens=8, stop_strings=("1", "7"), text_of=text_of, round_tokens=3
    )
    stopped = play(setting, policy, seeds=[3, 1], group_size=1)
    scored, _ = jax.jit(setting.model.token_log_probs)(setting.params, stopped.tokens)
    mask = stopped.response_mask
    # The cache was cut as the row was: later turns draw as if nothing had followed.
    np.testing.assert_allclose(
        stopped.behaviour_log_probs[mask], np.asarray(scored)[mask], atol=2e-5
    )
    hits = 0
    for tokens, inside in zip(stopped.tokens, mask, strict=True):
        edges = np.flatnonzero(np.diff(np.r_[0, inside.astype(int), 0]))
        for start, end in edges.reshape(-1, 2):
            reply = text_of(tokens[start:end].tolist())
            assert not any(text in reply[:-1] for text in "17")
            hits += reply[-1] in "17"
    assert hits > 2


def test_one_stop_string_needs_no_more_than_its_round(setting):
    same = {"stop_strings": ("3",), "text_of": setting.renderer.tokenizer.decode}
    one, other = (
        play(setting, make_policy(setting, max_new_tokens=6, round_tokens=size, **same))
        for size in (1, 6)
    )
    assert_same_play(one, other)


def test_a_prompt_that_fills_its_row_is_refused(setting):
    policy = make_policy(setting, slots=6)
    memory = policy.init(2)
    pending, starts = [[1, 2], [1] * 6], np.ones(2, bool)
    with pytest.raises(RolloutError, match="slots: 6 is too small: row 1 holds 0 tokens, has 6"):
        policy.respond(memory, pending, starts, np.arange(2), np.full(2, 3, np.int32))


def test_a_row_that_reads_nothing_is_refused(setting):
    policy = make_policy(setting)
    with pytest.raises(RolloutError, match="pending: row 1 is to reply and has nothing to read"):
        policy.respond(
            policy.init(2), [[1], []], np.ones(2, bool), np.arange(2), np.full(2, 3, np.int32)
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacities": (8, 8)}, "capacities must ascend .* got \\(8, 8\\)"),
        ({"capacities": (0, 8)}, "capacities must ascend"),
        ({"capacities": (8, 65)}, r"at most slots \(64\), got \(8, 65\)"),
        ({"stop_strings": ("a",)}, "text_of: stop_strings need it"),
    ],
)
def test_refuses_options_that_do_not_fit(setting, options, message):
    with pytest.raises(ValueError, match=message):
        make_policy(setting, **options)
