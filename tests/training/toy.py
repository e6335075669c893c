"""A bigram policy and random rows: the smallest thing that `make_update` can train."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

ROWS, TOKENS, VOCABULARY = 8, 6, 5


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    tokens: jax.Array  # [B, T]
    response_mask: jax.Array  # [B, T]
    behaviour_log_probs: jax.Array  # [B, T]
    advantages: jax.Array  # [B, T]
    temperature: jax.Array  # [B]
    length: jax.Array  # [B]


def init_params(key):
    return {
        "table": jax.random.normal(key, (VOCABULARY, VOCABULARY)),
        "bias": jnp.zeros(VOCABULARY),
    }


def token_log_probs(params, tokens, temperature, mask=None):
    logits = params["table"][tokens[:, :-1]] + params["bias"][None, None, :]
    log_probs = jax.nn.log_softmax(logits / temperature[:, None, None])
    chosen = jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    scores = tuple(jnp.pad(values, ((0, 0), (1, 0))) for values in (chosen, entropy))
    return scores if mask is None else tuple(jnp.where(mask, values, 0.0) for values in scores)


def random_rows(key, rows=ROWS):
    keys = jax.random.split(key, 5)
    tokens = jax.random.randint(keys[0], (rows, TOKENS), 0, VOCABULARY)
    mask = jax.random.bernoulli(keys[1], 0.6, (rows, TOKENS)).at[:, 0].set(False)
    drift = 0.3 * jax.random.normal(keys[2], (rows, TOKENS))
    temperature = jax.random.uniform(keys[4], (rows,), minval=0.5, maxval=1.5)
    log_probs, _ = token_log_probs(init_params(keys[2]), tokens, temperature)
    return Rows(
        tokens=tokens,
        response_mask=mask,
        behaviour_log_probs=log_probs + drift,
        advantages=jax.random.normal(keys[3], (rows, TOKENS)),
        temperature=temperature,
        length=jnp.full((rows,), TOKENS, jnp.int32),
    )


def plain_token_log_probs(params, tokens, temperature):
    """The same scores in float64 numpy loops."""
    table, bias = (np.asarray(params[name], np.float64) for name in ("table", "bias"))
    log_probs, entropy = np.zeros(tokens.shape), np.zeros(tokens.shape)
    for row in range(tokens.shape[0]):
        for place in range(1, tokens.shape[1]):
            logits = (table[tokens[row, place - 1]] + bias) / np.float64(temperature[row])
            scores = logits - np.log(np.sum(np.exp(logits)))
            log_probs[row, place] = scores[tokens[row, place]]
            entropy[row, place] = -np.sum(np.exp(scores) * scores)
    return log_probs, entropy


def copy(tree):
    """Fresh arrays, so that a donating update leaves the originals alone."""
    return jax.tree.map(jnp.copy, tree)
