"""Attention in blocks, of all rows at once or row by row, is plain attention."""

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


@pytest.mark.parametrize("block", [1, 4, 16])
@pytest.mark.parametrize("cached", [0, 2**21], ids=["row by row", "at once"])
def test_forward_and_gradients(monkeypatch, cached, block):
    monkeypatch.setattr(attention, "_CACHED_ELEMENTS", cached)
    draw = np.random.default_rng(0).normal
    shapes = [(ROWS, LENGTH, heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    # Spread enough for weights near 0 and near 1.
    *arrays, gradient = (draw(scale=2, size=shape).astype(np.float32) for shape in shapes)

    def in_blocks(*arrays):
        return attention.causal_attention(*arrays, block=block)

    def run(function):
        def both(*arrays):
            result, pull = jax.vjp(function, *arrays)
            return result, pull(jnp.asarray(gradient))

        return jax.jit(both)

    for got, want in zip(
        jax.tree.leaves(run(in_blocks)(*arrays)),
        jax.tree.leaves(run(plain)(*arrays)),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_only_what_does_not_stay_in_the_caches_goes_row_by_row():
    def loops(length):
        shape = jax.ShapeDtypeStruct((ROWS, length, 2, SIZE), jnp.float32)

        def attend(queries, keys, values):
            return attention.causal_attention(queries, keys, values, block=512)

        traced = jax.jit(attend).trace(shape, shape, shape)
        return traced.lower(lowering_platforms=("cpu",)).as_text().count("stablehlo.while")

    assert loops(128) == 0
    assert loops(1024) == 1
