"""A decoder in plain numpy and float64, written from the equations, one head at a time."""

import numpy as np


def _norm(x, scale, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * scale


def _rotate(x, theta):
    """Rotates [T, H] by position: elements i and i + H/2 are one complex number."""
    length, size = x.shape
    half = size // 2
    angle = np.arange(length)[:, None] / theta ** (2 * np.arange(half)[None, :] / size)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=1)


def _attention(x, weights, config):
    """Causal attention of [T, D], with one loop over query heads."""
    length = len(x)
    out = np.zeros((length, config.hidden_size))
    for head in range(config.num_attention_heads):
        shared = head * config.num_key_value_heads // config.num_attention_heads

        def project(name, index):
            value = x @ weights[name]["kernel"][:, index]
            return value + weights[name]["bias"][index] if "bias" in weights[name] else value

        query = _rotate(project("query", head), config.rope_theta)
        key = _rotate(project("key", shared), config.rope_theta)
        value = project("value", shared)
        for t in range(length):
            scores = key[: t + 1] @ query[t] / np.sqrt(config.head_dim)
            weight = np.exp(scores - scores.max())
            out[t] += (weight / weight.sum()) @ value[: t + 1] @ weights["output"][head]
    return out


def hidden_states(config, params, tokens):
    """Final hidden states [T, D] of one row of tokens; params is a nested dict of arrays."""
    x = params["embedding"][np.asarray(tokens)]
    for index in range(config.num_hidden_layers):
        layer = _map(lambda leaf, index=index: leaf[index], params["layers"])
        normed = _norm(x, layer["attention_norm"]["scale"], config.rms_norm_eps)
        x = x + _attention(normed, layer["attention"], config)
        normed = _norm(x, layer["feed_forward_norm"]["scale"], config.rms_norm_eps)
        gate = normed @ layer["feed_forward"]["gate"]
        inner = gate / (1 + np.exp(-gate)) * (normed @ layer["feed_forward"]["up"])
        x = x + inner @ layer["feed_forward"]["down"]
    return _norm(x, params["final_norm"]["scale"], config.rms_norm_eps)


def logits(config, params, tokens):
    """Logits [T, V] of one row of tokens."""
    params = _map(lambda leaf: np.asarray(leaf, np.float64), params)
    hidden = hidden_states(config, params, tokens)
    return hidden @ (params["embedding"].T if config.tie_word_embeddings else params["unembedding"])


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def token_log_probs(config, params, tokens, temperature=1.0):
    """Log-probabilities and entropies [T] of one row, 0 in column 0."""
    table = log_softmax(logits(config, params, tokens) / temperature)[:-1]
    chosen = [row[token] for row, token in zip(table, tokens[1:], strict=True)]
    entropy = -(np.exp(table) * table).sum(-1)
    return np.array([0.0, *chosen]), np.array([0.0, *entropy])


def truncate(scaled, top_k=0, top_p=1.0, min_p=0.0):
    """Keeps of logits [V] what top-k, then top-p, then min-p keep; the rest is -inf."""
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    if top_k > 0:
        order = order[:top_k]
    kept = np.exp(log_softmax(np.array([scaled[token] for token in order])))
    nucleus, mass = [], 0.0
    for token, probability in zip(order, kept, strict=True):
        if top_p < 1.0 and mass >= top_p:
            break
        nucleus.append((token, probability))
        mass += probability
    best = nucleus[0][1]
    result = np.full(len(scaled), -np.inf)
    for token, probability in nucleus:
        if probability >= min_p * best:
            result[token] = scaled[token]
    return result


def _map(function, tree):
    if isinstance(tree, dict):
        return {name: _map(function, leaf) for name, leaf in tree.items()}
    return function(tree)
