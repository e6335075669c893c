"""The decoder's modules: what parameters there are and what a layer computes."""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from freshper_jax.models.attention import MIXTURE, causal_attention, rotary_table, rotate
from freshper_jax.models.config import ModelConfig

Extra = TypeVar("Extra")
# (queries [B, T, N, H], keys [B, T, K, H], values [B, T, K, H]) -> (mixed [B, T, N, H], extra)
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Extra]]

# Name of products with weights, for rematerialisation to keep.
_PRODUCT = "weight product"
# What the backward pass is given of a layer, by the name in ModelConfig.remat.
_REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_only_these_names(_PRODUCT, MIXTURE),
    "full": jax.checkpoint_policies.nothing_saveable,
}


def _weight(config: ModelConfig, rngs: nnx.Rngs, *shape: int) -> nnx.Param:
    """A normal weight of the config's spread."""
    values = config.initializer_range * jax.random.normal(rngs.params(), shape, jnp.float32)
    return nnx.Param(values.astype(config.param_dtype))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adapter:
    """A low-rank change of a kernel [D, E]: scale * a @ b.

    a: [D, R]
    b: [R, E]
    """

    a: jax.Array  # [D, R]
    b: jax.Array  # [R, E]
    scale: float = dataclasses.field(metadata={"static": True})


def _project(x: jax.Array, kernel: jax.Array, adapter: Adapter | None = None) -> jax.Array:
    """Multiplies [B, T, D] by a kernel [D, E], changed by an adapter, giving [B, T, E].

    Rows and tokens are one axis in the product: contracted as two, in the gradient of the
    kernel, they would first be transposed in memory.
    """
    rows, length, width = x.shape
    flat = x.reshape(rows * length, width)
    product = flat @ kernel.astype(x.dtype)
    if adapter is not None:
        # Two thin products; a changed copy of the kernel would be as large as the kernel.
        thin = flat @ adapter.a.astype(x.dtype) * adapter.scale
        product += thin @ adapter.b.astype(x.dtype)
    return checkpoint_name(product, _PRODUCT).reshape(rows, length, kernel.shape[1])


class RMSNorm(nnx.Module):
    """Scales vectors to a root mean square of one, then by a learned factor, in float32.

    scale: [D], or [H] where it normalises heads
    """

    def __init__(self, config: ModelConfig, size: int):
        self.epsilon = config.rms_norm_eps
        self.scale = nnx.Param(jnp.ones(size, config.param_dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises [B, T, D], or heads [B, T, N, H], over its last axis."""
        wide = x.astype(jnp.float32)
        root = lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        scale = jnp.expand_dims(self.scale[...].astype(jnp.float32), range(x.ndim - 1))
        return (wide * root * scale).astype(x.dtype)


class HeadProjection(nnx.Module):
    """Projects the residual stream to heads.

    kernel: [D, N, H], Hugging Face's [N H, D] transposed and split
    bias: [N, H] or None
    """

    def __init__(self, config: ModelConfig, heads: int, *, rngs: nnx.Rngs):
        shape = (heads, config.head_dim)
        self.kernel = _weight(config, rngs, config.hidden_size, *shape)
        self.bias = (
            nnx.Param(jnp.zeros(shape, config.param_dtype)) if config.attention_bias else None
        )
        self.adapter: Adapter | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, T, D] to [B, T, N, H]."""
        width, heads, size = self.kernel[...].shape
        flat = _project(x, self.kernel[...].reshape(width, heads * size), self.adapter)
        projected = flat.reshape(*x.shape[:2], heads, size)
        if self.bias is None:
            return projected
        return projected + self.bias[...].astype(x.dtype)[None, None]


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions; who attends to what is a callable.

    query: [D, N, H]; key, value: [D, K, H]; output: [N, H, D]
    query_norm, key_norm: [H], or None where heads are not normalised
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.query = HeadProjection(config, config.num_attention_heads, rngs=rngs)
        self.key = HeadProjection(config, config.num_key_value_heads, rngs=rngs)
        self.value = HeadProjection(config, config.num_key_value_heads, rngs=rngs)
        shape = (config.num_attention_heads, config.head_dim, config.hidden_size)
        self.output = _weight(config, rngs, *shape)
        normed = config.query_key_norm
        self.query_norm = RMSNorm(config, config.head_dim) if normed else None
        self.key_norm = RMSNorm(config, config.head_dim) if normed else None
        self.output_adapter: Adapter | None = None

    def __call__(
        self, x: jax.Array, table: tuple[jax.Array, jax.Array], attend: Attend[Extra]
    ) -> tuple[jax.Array, Extra]:
        """Maps [B, T, D] to [B, T, D], and passes on what `attend` returns beside it."""
        queries, keys = self.query(x), self.key(x)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        mixed, extra = attend(rotate(queries, table), rotate(keys, table), self.value(x))
        heads, size, width = self.output[...].shape
        mixed = mixed.reshape(*x.shape[:2], heads * size)
        kernel = self.output[...].reshape(heads * size, width)
        return _project(mixed, kernel, self.output_adapter), extra


class FeedForward(nnx.Module):
    """The gated feed-forward layer: down(silu(gate(x)) * up(x)).

    gate, up: [D, F]; down: [F, D]

    Reference: Shazeer 2020, https://arxiv.org/abs/2002.05202 (SwiGLU).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width, inner = config.hidden_size, config.intermediate_size
        self.gate = _weight(config, rngs, width, inner)
        self.up = _weight(config, rngs, width, inner)
        self.down = _weight(config, rngs, inner, width)
        self.gate_adapter: Adapter | None = None
        self.up_adapter: Adapter | None = None
        self.down_adapter: Adapter | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, T, D] to [B, T, D]."""
        gate = _project(x, self.gate[...], self.gate_adapter)
        inner = jax.nn.silu(gate) * _project(x, self.up[...], self.up_adapter)
        return _project(inner, self.down[...], self.down_adapter)


class DecoderLayer(nnx.Module):
    """One pre-norm residual layer: attention, then feed-forward."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(config, config.hidden_size)
        self.attention = Attention(config, rngs=rngs)
        self.feed_forward_norm = RMSNorm(config, config.hidden_size)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(
        self, x: jax.Array, table: tuple[jax.Array, jax.Array], attend: Attend[Extra]
    ) -> tuple[jax.Array, Extra]:
        """Maps [B, T, D] to [B, T, D], and passes on what `attend` returns beside it."""
        mixed, extra = self.attention(self.attention_norm(x), table, attend)
        x = x + mixed
        return x + self.feed_forward(self.feed_forward_norm(x)), extra


def unembed(kernel: jax.Array, hidden: jax.Array, *, tied: bool) -> jax.Array:
    """Maps [..., D] to logits [..., V] float32 by a kernel [D, V], or, tied, [V, D]."""
    equation = "...d,vd->...v" if tied else "...d,dv->...v"
    kernel = kernel.astype(hidden.dtype)
    return jnp.einsum(equation, hidden, kernel, preferred_element_type=jnp.float32)


class Decoder(nnx.Module):
    """A causal language model.

    embedding: [V, D]
    layers: a DecoderLayer whose parameters have a leading axis of layers
    final_norm: [D]
    unembedding: [D, V], or None where it is the embedding transposed
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embedding = _weight(config, rngs, config.vocab_size, config.hidden_size)
        keys = jax.random.split(rngs.params(), config.num_hidden_layers)
        self.layers = jax.vmap(lambda key: DecoderLayer(config, rngs=nnx.Rngs(key)))(keys)
        self.final_norm = RMSNorm(config, config.hidden_size)
        self.unembedding = (
            None
            if config.tie_word_embeddings
            else _weight(config, rngs, config.hidden_size, config.vocab_size)
        )

    def embed(self, tokens: jax.Array) -> jax.Array:
        """Looks up [B, T] int32 as [B, T, D] in the compute dtype."""
        rows = self.embedding[...].at[tokens].get(mode="clip")
        return rows.astype(self.config.compute_dtype)

    def rotary(self, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the rotary table of positions [B, T] or [1, T] int32."""
        config = self.config
        return rotary_table(positions, config.head_dim, config.rope_theta, config.rope_scaling)

    def unstack(self) -> tuple[DecoderLayer, ...]:
        """Returns the layers one by one, each with its own slice of the stacked parameters."""
        return tuple(
            jax.tree.map(lambda leaf, index=index: leaf[index], self.layers)
            for index in range(self.config.num_hidden_layers)
        )

    def hidden_states(self, tokens: jax.Array, lengths: jax.Array | None = None) -> jax.Array:
        """Runs the full causal forward over tokens [B, T]; see `LanguageModel`."""
        length = tokens.shape[1]
        table = self.rotary(jnp.arange(length, dtype=jnp.int32)[None])
        block = self.config.attention_block

        def attend(queries, keys, values):
            return causal_attention(queries, keys, values, block=block), None

        def step(x: jax.Array, layer: DecoderLayer) -> tuple[jax.Array, None]:
            return layer(x, table, attend)

        if self.config.remat != "none":
            step = jax.checkpoint(
                step,
                policy=_REMAT_POLICIES[self.config.remat],
                prevent_cse=not self.config.scan_layers,
            )
        x = self.embed(tokens)
        if self.config.scan_layers:
            x, _ = lax.scan(step, x, self.layers)
        else:
            for layer in self.unstack():
                x, _ = step(x, layer)
        x = self.final_norm(x)
        if lengths is None:
            return x
        inside = jnp.arange(length)[None, :] < lengths[:, None]
        return jnp.where(inside[:, :, None], x, jnp.zeros_like(x))

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Unembeds [..., D] to [..., V] float32."""
        return unembed(self.unembedding_kernel(), hidden, tied=self.unembedding is None)

    def unembedding_kernel(self) -> jax.Array:
        """Returns the kernel of `unembed`: [V, D] where it is the embedding, else [D, V]."""
        return (self.embedding if self.unembedding is None else self.unembedding)[...]
