"""Attention in blocks, of all rows at once or row by row, is plain attention."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax.models import attention

ROWS, LENGTH, HEADS, KV_HEADS, SIZE = 3, 10, 4, 2, 6


def plain(queries, keys, values):
    """The definition: the whole square of scores, and derivatives by JAX."""
    keys, values = (jnp.repeat(x, HEADS // KV_HEADS, axis=2) for x in (keys, values))
    scores = jnp.einsum("bqnh,bsnh->bnqs", queries, keys) / np.sqrt(SIZE).astype(np.float32)
    seen = np.tril(np.ones((1, 1, LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bnqs,bsnh->bqnh", weights, values)


AT_A_TIME = pytest.mark.parametrize("cached", [0, 2**21], ids=["row by row", "at once"])


def draw_arrays(dtype):
    """Queries, keys, values and the slope of the result: weights come near 0 and near 1."""
    draw = np.random.default_rng(0).normal
    shapes = [(ROWS, LENGTH, heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    return [jnp.asarray(draw(scale=2, size=shape), dtype) for shape in shapes]


def result_and_slopes(function, *arrays, slope):
    """The result and, pulled back from its slope, those of queries, keys and values."""

    def both(*arrays):
        result, pull = jax.vjp(function, *arrays)
        return result, *pull(slope)

    return jax.jit(both)(*arrays)


@pytest.mark.parametrize("block", [1, 4, 16])
@AT_A_TIME
def test_forward_and_gradients(monkeypatch, cached, block):
    monkeypatch.setattr(attention, "_CACHED_ELEMENTS", cached)
    *arrays, slope = draw_arrays(jnp.float32)
    in_blocks = functools.partial(attention.causal_attention, block=block)
    got = result_and_slopes(in_blocks, *arrays, slope=slope)
    want = result_and_slopes(plain, *arrays, slope=slope)
    chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-4)


@AT_A_TIME
def test_bfloat16_loses_no_more_than_its_rounding(monkeypatch, cached):
    monkeypatch.setattr(attention, "_CACHED_ELEMENTS", cached)
    *arrays, slope = draw_arrays(jnp.bfloat16)
    in_blocks = functools.partial(attention.causal_attention, block=4)
    got = result_and_slopes(in_blocks, *arrays, slope=slope)
    exact = [x.astype(jnp.float32) for x in arrays]
    want = result_and_slopes(plain, *exact, slope=slope.astype(jnp.float32))
    for rounded, whole in zip(got, want, strict=True):
        assert rounded.dtype == jnp.bfloat16
        error = np.max(np.abs(np.asarray(rounded, np.float32) - whole)) / np.max(np.abs(whole))
        # A few roundings of 2**-9 each, of the weights, of their slopes and of the result.
        assert 0 < error < 4 * 2**-9


def test_only_what_does_not_stay_in_the_caches_goes_row_by_row():
    def loops(length):
        shape = jax.ShapeDtypeStruct((ROWS, length, 2, SIZE), jnp.float32)

        def attend(queries, keys, values):
            return attention.causal_attention(queries, keys, values, block=512)

        traced = jax.jit(attend).trace(shape, shape, shape)
        return traced.lower(lowering_platforms=("cpu",)).as_text().count("stablehlo.while")

    assert loops(128) == 0
    assert loops(1024) == 1
