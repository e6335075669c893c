"""A language model as a frozen record of pure functions of its parameters."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from freshper_jax.models.config import ModelConfig
from freshper_jax.models.decoder import Decoder, unembed
from freshper_jax.models.scoring import score_tokens

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class LanguageModel:
    """Pure functions of `params`, a nested dict of arrays with layers stacked in front.

    In the shape descriptions, B denotes rows, T tokens, D width and V vocabulary.

    config: the ModelConfig it was made from.
    init: (key) -> params.
    hidden_states: (params, tokens [B, T] int32, lengths [B] int32 or None) -> [B, T, D].
        The full causal forward at positions 0 to T - 1, after the final norm, in the compute
        dtype. Rows are padded on the right, which no valid position sees; with `lengths`
        the states past a row's length are zero.
    logits: (params, hidden [..., D]) -> [..., V] float32.
    token_log_probs: (params, tokens [B, T], temperature=1.0, mask=None) -> (log_probs [B, T],
        entropy [B, T]), float32 in nats. Entry [b, t] is of tokens[b, t] given those before
        it, under softmax(logits / temperature); column 0 is 0. The temperature is positive,
        a scalar or [B]. A mask [B, T], bool, names the tokens to score; others get 0, and
        where logits are large most of theirs are never computed. Never needs all of [B, T, V]
        where that is large. Raises ValueError on a temperature, not yet on a device, that is
        not positive, and on a mask of another shape.
    bind: (params) -> Decoder, the module itself, for those who drive its layers one by one.
    """

    config: ModelConfig
    init: Callable[[jax.Array], Params]
    hidden_states: Callable[..., jax.Array]
    logits: Callable[[Params, jax.Array], jax.Array]
    token_log_probs: Callable[..., tuple[jax.Array, jax.Array]]
    bind: Callable[[Params], Decoder]


def make_model(config: ModelConfig) -> LanguageModel:
    """Makes the pure functions of a decoder.

    The module is split into structure and parameters here, once.
    """

    def create(key: jax.Array) -> Decoder:
        return Decoder(config, rngs=nnx.Rngs(key))

    graphdef = nnx.graphdef(nnx.eval_shape(create, jax.random.key(0)))

    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(create(key), nnx.Param))

    def bind(params: Params) -> Decoder:
        return nnx.merge(graphdef, params)

    return model_of_decoder(config, init, bind)


def model_of_decoder(
    config: ModelConfig, init: Callable[[jax.Array], Any], bind: Callable[[Any], Decoder]
) -> LanguageModel:
    """Completes a LanguageModel from `init`, and from `bind` that makes params a Decoder."""

    def hidden_states(
        params: Params, tokens: jax.Array, lengths: jax.Array | None = None
    ) -> jax.Array:
        return bind(params).hidden_states(tokens, lengths)

    def logits(params: Params, hidden: jax.Array) -> jax.Array:
        return bind(params).logits(hidden)

    def token_log_probs(
        params: Params,
        tokens: jax.Array,
        temperature: jax.Array | float = 1.0,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        if not isinstance(temperature, jax.Array) and not np.all(np.asarray(temperature) > 0):
            raise ValueError(f"temperature must be positive, got {temperature}")
        decoder = bind(params)
        hidden = decoder.hidden_states(tokens)
        return score_tokens(
            functools.partial(unembed, tied=config.tie_word_embeddings),
            decoder.unembedding_kernel(),
            hidden,
            tokens,
            jnp.asarray(temperature, jnp.float32),
            vocab_size=config.vocab_size,
            mask=mask,
        )

    return LanguageModel(config, init, hidden_states, logits, token_log_probs, bind)
