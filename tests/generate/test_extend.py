import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshper_jax.generate import extend, grow_cache, init_cache, make_generator, take_rows
from freshper_jax.models import make_mesh, param_shardings, row_sharding
from tests.models import oracle
from tests.models.common import small_model

ROWS, SLOTS, CHUNK, VOCAB = 3, 12, 5, 13
MODEL, PARAMS = small_model()
append = jax.jit(lambda *args: extend(MODEL, PARAMS, *args))


def stale_cache(rows=ROWS, slots=SLOTS):
    """An empty cache whose slots hold what a longer episode left behind."""
    cache = init_cache(MODEL.config, rows, slots)
    generator = np.random.default_rng(7)

    def fill(array):
        return jnp.asarray(generator.normal(scale=9.0, size=array.shape), array.dtype)

    return dataclasses.replace(
        cache, keys=tuple(map(fill, cache.keys)), values=tuple(map(fill, cache.values))
    )


def row_of(cache, row):
    """Keys, values and length of one row, as numpy."""
    return jax.tree.map(lambda array: np.asarray(array[row]), cache)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(*[st.integers(0, CHUNK)] * ROWS), min_size=1, max_size=5),
    st.integers(0, 2**31),
)
def test_any_split_into_turns_equals_one_forward(turns, seed):
    generator = np.random.default_rng(seed)
    cache = stale_cache()
    seen = [[] for _ in range(ROWS)]
    for turn in turns:
        tokens = generator.integers(VOCAB, size=(ROWS, CHUNK), dtype=np.int32)
        counts = np.array(turn, np.int32)
        before = cache
        cache, logits = append(cache, tokens, counts)
        for row, count in enumerate(turn):
            if count == 0 or len(seen[row]) + count > SLOTS:
                chex.assert_trees_all_equal(row_of(cache, row), row_of(before, row))
                continue
            held = len(seen[row])
            seen[row].extend(tokens[row, :count].tolist())
            want = oracle.logits(MODEL.config, PARAMS, seen[row])[-1]
            np.testing.assert_allclose(logits[row], want, rtol=1e-4, atol=1e-4)
            # Nothing is written outside of the new slots.
            for old, new in zip(
                before.keys + before.values, cache.keys + cache.values, strict=True
            ):
                outside = np.r_[0:held, held + count : SLOTS]
                np.testing.assert_array_equal(old[row][:, outside], new[row][:, outside])
        np.testing.assert_array_equal(cache.lengths, [len(row) for row in seen])


def test_a_row_does_not_see_its_neighbours():
    generator = np.random.default_rng(0)
    tokens = generator.integers(VOCAB, size=(ROWS, CHUNK), dtype=np.int32)
    counts = np.array([4, 2, 5], np.int32)
    cache, logits = append(stale_cache(), tokens, counts)
    order = np.array([2, 0, 1])
    again, moved = append(take_rows(stale_cache(), order), tokens[order], counts[order])
    np.testing.assert_array_equal(moved, np.asarray(logits)[order])
    chex.assert_trees_all_equal(again, take_rows(cache, order))


def test_a_group_continues_from_one_prefill():
    generator = np.random.default_rng(1)
    prompt, replies = generator.integers(VOCAB, size=(2, ROWS, CHUNK), dtype=np.int32)
    cache, _ = append(stale_cache(), prompt, np.array([5, 0, 0], np.int32))
    cache = take_rows(cache, jnp.zeros(ROWS, jnp.int32))
    _, logits = append(cache, replies, np.full(ROWS, 3, np.int32))
    for row in range(ROWS):
        want = oracle.logits(MODEL.config, PARAMS, [*prompt[0], *replies[row, :3]])[-1]
        np.testing.assert_allclose(logits[row], want, rtol=1e-4, atol=1e-4)


def test_a_grown_cache_goes_on():
    tokens = np.random.default_rng(2).integers(VOCAB, size=(ROWS, CHUNK), dtype=np.int32)
    counts = np.full(ROWS, 5, np.int32)
    cache = stale_cache(slots=CHUNK)
    cache, _ = append(cache, tokens, counts)
    _, logits = append(grow_cache(cache, SLOTS), tokens, counts)
    want = oracle.logits(MODEL.config, PARAMS, [*tokens[1], *tokens[1]])[-1]
    np.testing.assert_allclose(logits[1], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "overrides",
    [
        {"num_key_value_heads": 4},
        {"num_attention_heads": 3, "num_key_value_heads": 1},
        {"tie_word_embeddings": False, "attention_bias": False},
    ],
    ids=["one key head a query head", "one key head", "untied, no bias"],
)
def test_other_shapes_extend_as_the_oracle_does(overrides):
    model, params = small_model(**overrides)
    tokens = np.random.default_rng(3).integers(VOCAB, size=(2, CHUNK), dtype=np.int32)
    run = jax.jit(lambda *args: extend(model, params, *args))
    cache = init_cache(model.config, 2, SLOTS)
    cache, _ = run(cache, tokens, np.array([5, 3], np.int32))
    _, logits = run(cache, tokens, np.array([1, 5], np.int32))
    for row, held in enumerate((5, 3)):
        seen = [*tokens[row, :held], *tokens[row, : (1, 5)[row]]]
        want = oracle.logits(model.config, params, seen)[-1]
        np.testing.assert_allclose(logits[row], want, rtol=1e-4, atol=1e-4)


def test_a_bfloat16_cache_stays_near():
    tokens = np.random.default_rng(4).integers(VOCAB, size=(ROWS, CHUNK), dtype=np.int32)
    cache = init_cache(MODEL.config, ROWS, SLOTS, dtype="bfloat16")
    cache, logits = append(cache, tokens, np.full(ROWS, 5, np.int32))
    assert cache.keys[0].dtype == jnp.bfloat16
    want = oracle.logits(MODEL.config, PARAMS, tokens[0])[-1]
    np.testing.assert_allclose(logits[0], want, atol=0.1)


def test_compiles_once_and_replaces_the_cache_in_place():
    counted = dataclasses.replace(MODEL, bind=chex.assert_max_traces(MODEL.bind, n=1))
    generator = make_generator(counted)
    tokens = np.zeros((ROWS, CHUNK), np.int32)
    cache = init_cache(MODEL.config, ROWS, SLOTS)
    for count in (5, 0, 3):
        old = cache
        cache, _ = generator.extend(PARAMS, cache, tokens, np.full(ROWS, count, np.int32))
        assert all(array.is_deleted() for array in jax.tree.leaves(old))
    np.testing.assert_array_equal(cache.lengths, [8, 8, 8])


def test_unstacked_parameters_give_the_same_and_compile_once():
    counted = dataclasses.replace(MODEL, bind=chex.assert_max_traces(MODEL.bind, n=1))
    generator = make_generator(counted)
    tokens = np.random.default_rng(8).integers(VOCAB, size=(ROWS, CHUNK), dtype=np.int32)
    counts = np.array([5, 0, 3], np.int32)
    # Binding is part of the one trace of `unstack`; what follows has no need of it.
    for _ in range(2):
        params = generator.unstack(PARAMS)
        cache, logits = generator.extend(params, stale_cache(), tokens, counts)
    want_cache, want = append(stale_cache(), tokens, counts)
    np.testing.assert_array_equal(logits[::2], want[::2])
    chex.assert_trees_all_equal(cache, want_cache)
    chex.assert_trees_all_equal(params, generator.unstack(params))


def test_sharded_rows_and_heads_extend_as_one_device_does():
    mesh = make_mesh(data=2, tp=4)
    params = jax.device_put(PARAMS, param_shardings(mesh, PARAMS))
    cache = init_cache(MODEL.config, 4, SLOTS)
    tokens = np.random.default_rng(5).integers(VOCAB, size=(4, CHUNK), dtype=np.int32)
    counts = np.array([5, 0, 2, 3], np.int32)
    run = jax.jit(lambda params, *args: extend(MODEL, params, *args))
    placed = jax.device_put((cache, tokens, counts), row_sharding(mesh))
    chex.assert_trees_all_close(
        run(params, *placed), run(PARAMS, cache, tokens, counts), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("tokens", "counts", "error", "message"),
    [
        (np.zeros((2, 5), np.int32), np.zeros(3, np.int32), ValueError, r"tokens must be \[3, T\]"),
        (np.zeros((3, 5), np.int32), np.zeros(2, np.int32), ValueError, r"counts must be \[3\]"),
        (np.zeros((3, 5), np.float32), np.zeros(3, np.int32), TypeError, "tokens must be integers"),
    ],
)
def test_refuses_tokens_that_do_not_fit(tokens, counts, error, message):
    with pytest.raises(error, match=message):
        extend(MODEL, PARAMS, stale_cache(), tokens, counts)


def test_is_the_same_function_without_jit():
    tokens = np.random.default_rng(6).integers(VOCAB, size=(ROWS, CHUNK), dtype=np.int32)
    counts = np.array([5, 0, 2], np.int32)
    got = extend(MODEL, PARAMS, stale_cache(), tokens, counts)
    chex.assert_trees_all_close(got, append(stale_cache(), tokens, counts), rtol=1e-4, atol=1e-4)
