"""Small models for the tests of models and of generation."""

import functools

import jax
import numpy as np

from freshper_jax.models import ModelConfig, make_model


def small_config(**overrides):
    """Two layers of grouped-query attention, in blocks of four tokens."""
    fields = {
        "vocab_size": 13,
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "rope_theta": 100.0,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "attention_block": 4,
    }
    return ModelConfig(**(fields | overrides))


@functools.lru_cache
def small_model(**overrides):
    """A model and parameters all of which matter: biases and norms are random too."""
    model = make_model(small_config(**overrides))
    generator = np.random.default_rng(0)

    def perturb(leaf):
        noise = generator.normal(scale=0.3, size=leaf.shape)
        return leaf + jax.numpy.asarray(noise, leaf.dtype)

    return model, jax.tree.map(perturb, jax.jit(model.init)(jax.random.key(0)))
