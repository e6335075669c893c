import jax
import numpy as np
import pytest

from freshper_jax.generate import (
    BUDGET,
    IDLE,
    STOP,
    STOP_STRING,
    SamplingParams,
    decode_rounds,
    first_stop,
    init_cache,
    make_generator,
)
from tests.models import oracle
from tests.models.common import small_model

ROWS, SLOTS, CHUNK, MAX_NEW, VOCAB = 4, 24, 6, 8, 13
MODEL, PARAMS = small_model()
GENERATOR = make_generator(MODEL)
# Texts of one, two and three letters: a string may end within a token, or span two.
TEXTS = ["a", "b", "c", "ab", "bc", "ca", "d", "e", "abc", "f", "g", "h", "i"]
NO_STOP = np.array([-1], np.int32)


def text_of(ids):
    return "".join(TEXTS[token] for token in ids)


def opened(seed=0):
    generator = np.random.default_rng(seed)
    tokens = generator.integers(VOCAB, size=(ROWS, CHUNK), dtype=np.int32)
    counts = generator.integers(1, CHUNK + 1, size=ROWS, dtype=np.int32)
    cache = init_cache(MODEL.config, ROWS, SLOTS)
    return tokens, counts, *GENERATOR.extend(PARAMS, cache, tokens, counts)


def run(cache, logits, *, stop_strings=("zz",), round_tokens=3, stop_ids=NO_STOP, budgets=MAX_NEW):
    return decode_rounds(
        GENERATOR,
        PARAMS,
        cache,
        logits,
        jax.random.key(42),
        np.arange(ROWS),
        SamplingParams(temperature=1.2, top_k=9),
        stop_ids,
        np.broadcast_to(np.int32(budgets), (ROWS,)),
        max_new=MAX_NEW,
        stop_strings=stop_strings,
        text_of=text_of,
        round_tokens=round_tokens,
    )


def whole(cache, logits, *, stop_ids=NO_STOP, budgets=MAX_NEW):
    return GENERATOR.decode(
        PARAMS,
        cache,
        logits,
        jax.random.key(42),
        np.arange(ROWS),
        SamplingParams(temperature=1.2, top_k=9),
        stop_ids,
        np.broadcast_to(np.int32(budgets), (ROWS,)),
        max_new=MAX_NEW,
    )


@pytest.mark.parametrize(
    ("ids", "strings", "count"),
    [
        ([0, 1, 2], ["b"], 2),
        ([0, 1, 2], ["ab"], 2),
        ([0, 8, 2], ["ab"], 2),  # ends within a token
        ([0, 1, 2], ["bc", "a"], 1),  # whichever comes first
        ([0, 1, 2], ["cc"], None),
        ([], ["a"], None),
    ],
)
def test_the_first_token_that_completes_a_string(ids, strings, count):
    assert first_stop(ids, strings, text_of) == count


def test_tokens_checked_before_are_not_blamed():
    assert first_stop([0, 0, 1], ["ab"], text_of, checked=2) == 3
    assert first_stop([0, 0], ["ab"], text_of, checked=2) is None


@pytest.mark.parametrize("round_tokens", [1, 3, 8, 20])
def test_rounds_draw_what_one_call_draws(round_tokens):
    free = whole(*opened()[2:])[2]
    stop_ids = np.array([free.tokens[0, 4]], np.int32)
    budgets = np.array([8, 1, 0, 8], np.int32)
    want_cache, _, want = whole(*opened()[2:], stop_ids=stop_ids, budgets=budgets)
    cache, _, got = run(
        *opened()[2:], stop_ids=stop_ids, budgets=budgets, round_tokens=round_tokens
    )
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_array_equal(got.counts, want.counts)
    np.testing.assert_array_equal(got.stop_reason, want.stop_reason)
    np.testing.assert_allclose(got.log_probs, want.log_probs, atol=1e-5)
    np.testing.assert_allclose(got.log_probs_t1, want.log_probs_t1, atol=1e-5)
    np.testing.assert_array_equal(cache.lengths, want_cache.lengths)
    assert {IDLE, BUDGET, STOP} == set(got.stop_reason.tolist())


@pytest.mark.parametrize("round_tokens", [1, 3, 8])
def test_a_row_is_cut_after_the_token_that_completes_a_string(round_tokens):
    free = jax.tree.map(np.asarray, whole(*opened()[2:])[2])
    strings = ("bc", text_of(free.tokens[0, 2:4]))
    tokens, counts, cache, logits = opened()
    cache, logits, got = run(cache, logits, stop_strings=strings, round_tokens=round_tokens)
    for row in range(ROWS):
        reply = free.tokens[row].tolist()
        ends = [n for n in range(1, MAX_NEW + 1) if any(s in text_of(reply[:n]) for s in strings)]
        kept = ends[0] if ends else MAX_NEW
        assert got.counts[row] == kept
        assert got.stop_reason[row] == (STOP_STRING if ends else BUDGET)
        np.testing.assert_array_equal(got.tokens[row, :kept], reply[:kept])
        np.testing.assert_allclose(got.log_probs[row, :kept], free.log_probs[row, :kept], atol=1e-5)
        for part in (got.tokens, got.log_probs, got.log_probs_t1):
            np.testing.assert_array_equal(part[row, kept:], 0)
    assert got.counts[0] <= 4
    np.testing.assert_array_equal(cache.lengths, counts + got.counts)
    # What follows is as if the row had never been longer.
    more = np.full((ROWS, CHUNK), 5, np.int32)
    _, logits = GENERATOR.extend(PARAMS, cache, more, np.full(ROWS, 2, np.int32))
    for row in range(ROWS):
        seen = [*tokens[row, : counts[row]], *got.tokens[row, : got.counts[row]], 5, 5]
        want = oracle.logits(MODEL.config, PARAMS, seen)[-1]
        np.testing.assert_allclose(logits[row], want, rtol=1e-4, atol=1e-4)


def test_a_row_whose_cache_is_full_ends():
    tokens, _, cache, logits = opened()
    for _ in range(3):
        room = SLOTS - np.asarray(cache.lengths)
        counts = np.minimum(room - 2, CHUNK).astype(np.int32)
        cache, logits = GENERATOR.extend(PARAMS, cache, tokens, np.maximum(counts, 0))
    left = SLOTS - np.asarray(cache.lengths)
    assert left.min() >= 1
    cache, _, got = run(cache, logits)
    np.testing.assert_array_equal(got.counts, np.minimum(left, MAX_NEW))
    np.testing.assert_array_equal(got.stop_reason, BUDGET)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"round_tokens": 0}, "round_tokens must be at least 1, got 0"),
        ({"stop_strings": ("a", "")}, "stop_strings must be non-empty strings"),
        ({"stop_strings": "ab"}, "stop_strings must be non-empty strings, got 'ab'"),
    ],
)
def test_refuses_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        run(*opened()[2:], **options)
