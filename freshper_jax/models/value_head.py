"""A value head: one linear map of the decoder's last hidden states, beside the logits."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from freshper_jax.models.config import ModelConfig
from freshper_jax.models.decoder import Decoder, unembed
from freshper_jax.models.language_model import LanguageModel, model_of_decoder
from freshper_jax.models.scoring import score_tokens

VALUE_HEAD = "value_head"


@dataclasses.dataclass(frozen=True, eq=False)
class ValueModel:
    """A language model whose params may hold a value head: a subtree of that name, beside theirs.

    With adapters the head is beside them: `(base, {**adapters, "value_head": head})`, so that
    it is trained with them.

    policy: the LanguageModel itself, of params with a head or without.
    token_scores: (params, tokens [B, T] int32, temperature=1.0, mask=None) -> (log_probs [B, T],
        entropy [B, T], values [B, T]), float32: `policy.token_log_probs` and, from the same
        forward pass, the value of the state in which each token is chosen, whatever the mask;
        column 0, which is chosen in no state, is 0.
    token_values: (params, tokens [B, T] int32) -> values [B, T] float32 alone, without logits.
    """

    policy: LanguageModel
    token_scores: Callable[..., tuple[jax.Array, jax.Array, jax.Array]]
    token_values: Callable[[Any, jax.Array], jax.Array]


def init_value_head(config: ModelConfig) -> dict[str, jax.Array]:
    """Makes a head that values every state 0.

    Returns:
      {"kernel": [D], "bias": []}, float32, whatever the dtype of the model.
    """
    return {
        "kernel": jnp.zeros(config.hidden_size, jnp.float32),
        "bias": jnp.zeros((), jnp.float32),
    }


def without_value_head(params: Any) -> Any:
    """Returns params, or a pair (base, adapters), without the head, if there is one."""
    if isinstance(params, tuple):
        base, trained = params
        return base, without_value_head(trained)
    return {name: leaf for name, leaf in params.items() if name != VALUE_HEAD}


def add_value_head(model: LanguageModel, *, detached: bool = False) -> ValueModel:
    """Makes a model that also values the states its tokens are chosen in.

    Args:
      model: from `make_model` or `adapt_model`. What loads, samples or exports it can be given
        `policy` in its place.
      detached: whether values have no gradient but that of the head, so that to learn them
        leaves the policy alone.
    """

    def bind(params: Any) -> Decoder:
        return model.bind(without_value_head(params))

    policy = model_of_decoder(model.config, model.init, bind)

    def token_scores(
        params: Any,
        tokens: jax.Array,
        temperature: jax.Array | float = 1.0,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        decoder = bind(params)
        hidden = decoder.hidden_states(tokens)
        log_probs, entropy = score_tokens(
            functools.partial(unembed, tied=model.config.tie_word_embeddings),
            decoder.unembedding_kernel(),
            hidden,
            tokens,
            jnp.asarray(temperature, jnp.float32),
            vocab_size=model.config.vocab_size,
            mask=mask,
        )
        return log_probs, entropy, values_of(params, hidden)

    def token_values(params: Any, tokens: jax.Array) -> jax.Array:
        return values_of(params, bind(params).hidden_states(tokens))

    def values_of(params: Any, hidden: jax.Array) -> jax.Array:
        return _values(params, jax.lax.stop_gradient(hidden) if detached else hidden)

    return ValueModel(policy, token_scores, token_values)


def _values(params: Any, hidden: jax.Array) -> jax.Array:
    """Values the state before each token of [B, T, D], the hidden state of its predecessor."""
    head = (params[1] if isinstance(params, tuple) else params)[VALUE_HEAD]
    values = jnp.einsum("btd,d->bt", hidden.astype(jnp.float32), head["kernel"]) + head["bias"]
    return jnp.pad(values[:, :-1], ((0, 0), (1, 0)))
