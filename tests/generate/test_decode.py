import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax.generate import (
    BUDGET,
    IDLE,
    STOP,
    SamplingParams,
    init_cache,
    make_generator,
    reset_rows,
)
from tests.models import oracle
from tests.models.common import small_model

ROWS, SLOTS, CHUNK, MAX_NEW, VOCAB = 4, 24, 6, 8, 13
MODEL, PARAMS = small_model()
GENERATOR = make_generator(MODEL)
KEY = jax.random.key(42)
SEEDS = np.array([11, 12, 13, 14], np.int32)
NO_STOP = np.array([-1, -1], np.int32)


def prompts(seed=0, rows=ROWS):
    """Tokens and counts of an opening observation in each row."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(VOCAB, size=(rows, CHUNK), dtype=np.int32)
    return tokens, generator.integers(1, CHUNK + 1, size=rows, dtype=np.int32)


def prefill(tokens, counts):
    cache = init_cache(MODEL.config, len(tokens), SLOTS)
    return GENERATOR.extend(PARAMS, cache, tokens, counts)


def decode(cache, logits, *, seeds=SEEDS, sampling=None, stop_ids=NO_STOP, budgets=MAX_NEW):
    return GENERATOR.decode(
        PARAMS,
        cache,
        logits,
        KEY,
        seeds,
        sampling or SamplingParams(),
        stop_ids,
        np.broadcast_to(np.int32(budgets), (len(seeds),)),
        max_new=MAX_NEW,
    )


def transcripts(tokens, counts, generation):
    """Each row's prompt and reply as one list of tokens."""
    return [
        [*row[:count], *reply[:drawn]]
        for row, count, reply, drawn in zip(
            tokens, counts, np.asarray(generation.tokens), generation.counts, strict=True
        )
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.6, np.array([0.5, 1.0, 1.5, 2.0], np.float32)])
def test_behaviour_log_probs_equal_those_of_a_separate_scorer(temperature):
    tokens, counts = prompts()
    *_, generation = decode(
        *prefill(tokens, counts), sampling=SamplingParams(temperature=temperature)
    )
    length = CHUNK + MAX_NEW
    rows = transcripts(tokens, counts, generation)
    padded = np.array([row + [0] * (length - len(row)) for row in rows], np.int32)
    temperatures = np.broadcast_to(np.float32(temperature), (ROWS,))
    score = jax.jit(MODEL.token_log_probs)
    scores = np.asarray(score(PARAMS, padded, temperatures)[0])
    plain = np.asarray(score(PARAMS, padded, np.ones(ROWS, np.float32))[0])
    for row, start in enumerate(counts):
        reply = slice(start, start + MAX_NEW)
        np.testing.assert_allclose(generation.log_probs[row], scores[row, reply], atol=1e-4)
        np.testing.assert_allclose(generation.log_probs_t1[row], plain[row, reply], atol=1e-4)
    if np.all(temperatures == 1):
        np.testing.assert_allclose(generation.log_probs, generation.log_probs_t1, atol=1e-6)


def test_behaviour_log_probs_are_exact_under_truncation():
    tokens, counts = prompts(seed=1)
    options = {"temperature": 1.4, "top_k": 6, "top_p": 0.8, "min_p": 0.05}
    *_, generation = decode(*prefill(tokens, counts), sampling=SamplingParams(**options))
    rows = transcripts(tokens, counts, generation)
    temperature = options.pop("temperature")
    for row, (start, seen) in enumerate(zip(counts, rows, strict=True)):
        table = oracle.logits(MODEL.config, PARAMS, seen)
        for step in range(MAX_NEW):
            logits, token = table[start + step - 1], seen[start + step]
            kept = oracle.log_softmax(oracle.truncate(logits / temperature, **options))
            assert generation.log_probs[row, step] == pytest.approx(kept[token], abs=1e-4)
            plain = oracle.log_softmax(logits)[token]
            assert generation.log_probs_t1[row, step] == pytest.approx(plain, abs=1e-4)


def test_temperature_zero_takes_the_most_likely_token():
    tokens, counts = prompts(seed=2)
    *_, generation = decode(*prefill(tokens, counts), sampling=SamplingParams(temperature=0.0))
    np.testing.assert_array_equal(generation.log_probs, 0.0)
    for start, seen in zip(counts, transcripts(tokens, counts, generation), strict=True):
        best = oracle.logits(MODEL.config, PARAMS, seen).argmax(-1)
        np.testing.assert_array_equal(best[start - 1 : -1], seen[start:])


def test_the_cache_holds_every_drawn_token_and_goes_on():
    tokens, counts = prompts(seed=3)
    cache, logits, first = decode(*prefill(tokens, counts))
    np.testing.assert_array_equal(cache.lengths, counts + MAX_NEW)
    seen = transcripts(tokens, counts, first)
    for row in range(ROWS):
        want = oracle.logits(MODEL.config, PARAMS, seen[row])[-1]
        np.testing.assert_allclose(logits[row], want, rtol=1e-4, atol=1e-4)
    reply, more = prompts(seed=4)
    cache, logits = GENERATOR.extend(PARAMS, cache, reply, more)
    for row in range(ROWS):
        whole = [*seen[row], *reply[row, : more[row]]]
        want = oracle.logits(MODEL.config, PARAMS, whole)[-1]
        np.testing.assert_allclose(logits[row], want, rtol=1e-4, atol=1e-4)


def test_rows_end_at_stop_ids_and_budgets_and_idle_rows_are_untouched():
    tokens, counts = prompts(seed=5)
    *_, free = decode(*prefill(tokens, counts))
    free = np.asarray(free.tokens)
    # The token that row 0 draws fourth, wherever it comes first, and one never drawn.
    stop_ids = np.array([free[0, 3], VOCAB + 5], np.int32)
    budgets = np.array([MAX_NEW, 2, 0, MAX_NEW + 100], np.int32)
    cache, logits = prefill(tokens, counts)
    before = jax.tree.map(np.array, (cache, logits))
    cache, logits, generation = decode(cache, logits, stop_ids=stop_ids, budgets=budgets)
    generation = jax.tree.map(np.asarray, generation)
    for row, budget in enumerate(np.minimum(budgets, MAX_NEW)):
        hits = np.flatnonzero(free[row, :budget] == stop_ids[0])
        drawn = hits[0] + 1 if len(hits) else budget
        reason = STOP if len(hits) else BUDGET if budget else IDLE
        assert generation.counts[row] == drawn
        assert generation.stop_reason[row] == reason
        # Until it ends a row draws what it would have drawn without an end; then nothing.
        np.testing.assert_array_equal(generation.tokens[row, :drawn], free[row, :drawn])
        assert np.all(generation.log_probs[row, :drawn] < 0)
        for part in (generation.tokens, generation.log_probs, generation.log_probs_t1):
            np.testing.assert_array_equal(part[row, drawn:], 0)
    assert generation.counts[0] <= 4
    assert generation.stop_reason[0] == STOP
    np.testing.assert_array_equal(cache.lengths, counts + generation.counts)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves((cache, logits)), strict=True):
        np.testing.assert_array_equal(old[2], new[2])
    chex.assert_type(
        [generation.tokens, generation.counts, generation.stop_reason],
        [jnp.int32, jnp.int32, jnp.int8],
    )


def test_the_room_in_the_cache_is_a_budget():
    tokens, _ = prompts(seed=6)
    cache, _ = prefill(tokens, np.array([6, 6, 6, 1], np.int32))
    for _ in range(2):
        cache, _ = GENERATOR.extend(PARAMS, cache, tokens, np.array([6, 6, 6, 1], np.int32))
    # Rows 0 and 1 have room for two and four more tokens.
    more = np.array([4, 2, 0, 1], np.int32)
    cache, logits = GENERATOR.extend(PARAMS, cache, tokens, more)
    cache, _, generation = decode(cache, logits, budgets=np.array([8, 8, 0, 8], np.int32))
    np.testing.assert_array_equal(generation.counts, [2, 4, 0, 8])
    np.testing.assert_array_equal(generation.stop_reason, [BUDGET, BUDGET, IDLE, BUDGET])
    np.testing.assert_array_equal(cache.lengths, [24, 24, 18, 12])


def test_a_full_row_is_idle():
    tokens, _ = prompts(seed=6)
    cache = init_cache(MODEL.config, ROWS, SLOTS)
    for _ in range(4):
        cache, logits = GENERATOR.extend(PARAMS, cache, tokens, np.array([6, 1, 1, 1], np.int32))
    _, _, generation = decode(cache, logits, budgets=3)
    np.testing.assert_array_equal(generation.counts, [0, 3, 3, 3])
    assert generation.stop_reason[0] == IDLE


def test_a_row_draws_the_same_in_any_slot_and_any_company():
    tokens, counts = prompts(seed=7)
    *_, together = decode(*prefill(tokens, counts))
    order = np.array([2, 3, 1, 0])
    *_, moved = decode(*prefill(tokens[order], counts[order]), seeds=SEEDS[order])
    np.testing.assert_array_equal(moved.tokens, np.asarray(together.tokens)[order])
    others, other_counts = prompts(seed=8)
    others[1], other_counts[1] = tokens[3], counts[3]
    seeds = np.array([91, SEEDS[3], 93, 94], np.int32)
    *_, apart = decode(*prefill(others, other_counts), seeds=seeds)
    np.testing.assert_array_equal(apart.tokens[1], together.tokens[3])
    np.testing.assert_allclose(apart.log_probs[1], together.log_probs[3], atol=1e-5)
    assert not np.array_equal(apart.tokens[0], together.tokens[0])


def test_a_refilled_slot_draws_what_a_new_one_would():
    tokens, counts = prompts(seed=9)
    cache, _, _ = decode(*prefill(tokens, counts))
    # Row 1's episode ends: another takes its slot, while the others have a turn of their own.
    cache = reset_rows(cache, np.array([False, True, False, False]))
    opening, opening_counts = prompts(seed=10)
    cache, new_logits = GENERATOR.extend(PARAMS, cache, opening, opening_counts)
    seeds = SEEDS.copy()
    seeds[1] = 77
    *_, refilled = decode(cache, new_logits, seeds=seeds)
    alone = np.zeros((ROWS, CHUNK), np.int32)
    alone[3] = opening[1]
    only = np.array([0, 0, 0, opening_counts[1]], np.int32)
    *_, fresh = decode(
        *prefill(alone, only),
        seeds=np.array([0, 0, 0, 77], np.int32),
        budgets=np.array([0, 0, 0, MAX_NEW], np.int32),
    )
    np.testing.assert_array_equal(refilled.tokens[1], fresh.tokens[3])
    np.testing.assert_array_equal(fresh.counts, [0, 0, 0, MAX_NEW])


def test_seeds_and_keys_change_what_is_drawn():
    tokens, counts = (np.repeat(part[:1], ROWS, axis=0) for part in prompts(seed=11))
    *_, same = decode(*prefill(tokens, counts), seeds=np.full(ROWS, 5, np.int32))
    *_, apart = decode(*prefill(tokens, counts))
    same, apart = np.asarray(same.tokens), np.asarray(apart.tokens)
    assert np.all(same == same[:1])
    assert len({tuple(row) for row in apart}) == ROWS


def test_each_position_draws_anew():
    tokens, counts = prompts(seed=11)
    # So hot that all tokens are equally likely: only fresh noise makes a row vary.
    *_, hot = decode(*prefill(tokens, counts), sampling=SamplingParams(temperature=1e6))
    assert all(len(set(row)) > 3 for row in np.asarray(hot.tokens).tolist())


def test_two_calls_draw_what_one_call_draws():
    tokens, counts = prompts(seed=12)
    *_, whole = decode(*prefill(tokens, counts))
    cache, logits, first = decode(*prefill(tokens, counts), budgets=3)
    *_, second = decode(cache, logits, budgets=5)
    joined = np.concatenate([first.tokens[:, :3], second.tokens[:, :5]], axis=1)
    np.testing.assert_array_equal(joined, whole.tokens)


def test_decode_compiles_once_and_replaces_its_cache_in_place():
    counted = dataclasses.replace(MODEL, bind=chex.assert_max_traces(MODEL.bind, n=1))
    generator = make_generator(counted)
    cache, logits = prefill(*prompts(seed=13))
    variants = [
        (SamplingParams(), [1, 2], np.int32(3)),
        (SamplingParams(temperature=0.5, top_k=np.int64(3)), np.array([4, 5]), 2),
        (SamplingParams(temperature=np.ones(ROWS), top_p=jnp.float32(0.5)), (7, 8), 0),
    ]
    for sampling, stop_ids, budget in variants:
        old = cache, logits
        cache, logits, _ = generator.decode(
            PARAMS, cache, logits, KEY, SEEDS, sampling, stop_ids, [budget] * ROWS, max_new=4
        )
        assert all(array.is_deleted() for array in jax.tree.leaves(old))


def test_refuses_bad_arguments():
    cache, logits = prefill(*prompts())
    arguments = (PARAMS, cache, logits, KEY, SEEDS)
    with pytest.raises(ValueError, match="temperature must be non-negative"):
        GENERATOR.decode(
            *arguments, SamplingParams(temperature=-1.0), NO_STOP, [1] * ROWS, max_new=2
        )
    with pytest.raises(ValueError, match="max_new must be at least 1, got 0"):
        GENERATOR.decode(*arguments, SamplingParams(), NO_STOP, [1] * ROWS, max_new=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": SEEDS[:3], "budgets": 1}, "row_seeds must have the cache's 4 rows"),
        ({"budgets": np.ones(5)}, "budgets must have the cache's 4 rows"),
    ],
)
def test_refuses_shapes_that_do_not_fit(change, message):
    cache, logits = prefill(*prompts())
    budgets = np.broadcast_to(np.int32(change["budgets"]), np.shape(change["budgets"]) or (4,))
    with pytest.raises(ValueError, match=message):
        GENERATOR.decode(
            PARAMS,
            cache,
            logits,
            KEY,
            change.get("seeds", SEEDS),
            SamplingParams(),
            NO_STOP,
            budgets,
            max_new=2,
        )
