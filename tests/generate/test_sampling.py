import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from freshper_jax.generate import SamplingParams, sample_tokens, truncate_logits
from tests.models import oracle

VOCAB = 9
OPTIONS = st.fixed_dictionaries(
    {
        "top_k": st.integers(0, VOCAB + 2),
        "top_p": st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
        "min_p": st.one_of(st.just(0.0), st.floats(0.01, 1.0)),
    }
)
truncate = jax.jit(lambda logits, params: truncate_logits(logits, params.broadcast(2)))
draw = jax.jit(sample_tokens)


def random_logits(seed, rows=2):
    return (2 * np.random.default_rng(seed).normal(size=(rows, VOCAB))).astype(np.float32)


def near_a_border(logits, top_p, min_p):
    """Whether rounding could decide which tokens are kept, so that float32 may differ."""
    probabilities = np.sort(np.exp(oracle.log_softmax(logits.astype(np.float64))))[::-1]
    cumulative = [np.cumsum(probabilities[:k]) / probabilities[:k].sum() for k in range(1, 10)]
    ratios = probabilities / probabilities[0]
    return np.any(np.abs(np.concatenate(cumulative) - top_p) < 1e-5) or np.any(
        np.abs(ratios[1:] - min_p) < 1e-5
    )


@given(st.integers(0, 10_000), st.tuples(OPTIONS, OPTIONS))
def test_truncation_keeps_what_a_plain_oracle_keeps(seed, options):
    logits = random_logits(seed)
    for row, option in zip(logits, options, strict=True):
        assume(option["top_p"] == 1.0 or not near_a_border(row, option["top_p"], 2.0))
        assume(option["min_p"] in (0.0, 1.0) or not near_a_border(row, 2.0, option["min_p"]))
    params = SamplingParams(
        **{
            name: np.array([option[name] for option in options], np.float32)
            for name in ("top_k", "top_p", "min_p")
        }
    )
    got = truncate(logits, params)
    want = [oracle.truncate(row, **option) for row, option in zip(logits, options, strict=True)]
    np.testing.assert_array_equal(got, np.array(want, np.float32))


def test_tokens_as_likely_as_the_last_kept_are_kept():
    logits = jnp.array([[1.0, 2.0, 1.0, 0.0, 3.0, 1.0, -1.0, 1.0, -2.0]] * 2, jnp.float32)
    got = truncate(logits, SamplingParams(top_k=3))
    np.testing.assert_array_equal(np.isfinite(got[0]), [1, 1, 1, 0, 1, 1, 0, 1, 0])


CASES = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 1.8},
    "top-k": {"top_k": 3},
    "top-p": {"temperature": 1.3, "top_p": 0.7},
    "min-p": {"min_p": 0.2},
    "all": {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.1},
}


def expected_log_probs(row, *, temperature=1.0, **truncation):
    """Log-probabilities [V] of the distribution drawn from."""
    return oracle.log_softmax(oracle.truncate(row.astype(np.float64) / temperature, **truncation))


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_draws_follow_the_distribution_and_report_it(options):
    draws = 20_000
    row = random_logits(3, rows=1)[0]
    logits = jnp.broadcast_to(jnp.asarray(row), (draws, VOCAB))
    keys = jax.random.split(jax.random.key(5), draws)
    # Every option as an array: one compilation serves all cases.
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options
    params = SamplingParams(**{name: jnp.float32(value) for name, value in values.items()})
    tokens, log_probs, log_probs_t1 = map(np.asarray, draw(logits, keys, params))
    want = expected_log_probs(row, **options)
    np.testing.assert_allclose(log_probs, want[tokens], rtol=1e-5, atol=1e-5)
    plain = oracle.log_softmax(row.astype(np.float64))
    np.testing.assert_allclose(log_probs_t1, plain[tokens], rtol=1e-5, atol=1e-5)
    kept = np.isfinite(want)
    counts = np.bincount(tokens, minlength=VOCAB)
    assert counts[~kept].sum() == 0
    if kept.sum() > 1:
        assert stats.chisquare(counts[kept], draws * np.exp(want[kept])).pvalue > 1e-4


@pytest.mark.parametrize("vocab_size", [256, 300])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 150, "min_p": 0.01}])
def test_draws_from_a_vocabulary_of_several_blocks_follow_the_distribution(vocab_size, options):
    draws = 40_000
    row = (2 * np.random.default_rng(4).normal(size=vocab_size)).astype(np.float32)
    # A block of tokens that are never drawn, and one token that outweighs its block.
    row[130:250], row[2] = -np.inf, 4.0
    keys = jax.random.split(jax.random.key(6), draws)
    tokens, log_probs, log_probs_t1 = draw_many(row, keys, SamplingParams(**options))
    want = expected_log_probs(row, **options)
    plain = oracle.log_softmax(row.astype(np.float64))
    np.testing.assert_allclose(log_probs, want[tokens], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(log_probs_t1, plain[tokens], rtol=1e-5, atol=1e-5)
    counts = np.bincount(tokens, minlength=vocab_size)
    assert counts[~np.isfinite(want)].sum() == 0
    expected = draws * np.exp(want)
    often = expected >= 10
    merged = [np.append(part[often], part[~often].sum()) for part in (counts, expected)]
    if merged[1][-1] < 1:
        merged = [part[:-1] for part in merged]
    assert stats.chisquare(*merged).pvalue > 1e-4


def draw_many(row, keys, params):
    """Draws with each key from one row of logits, a few thousand at a time."""
    run = jax.jit(lambda keys: sample_tokens(jnp.broadcast_to(row, (4000, row.size)), keys, params))
    parts = [run(keys[start : start + 4000]) for start in range(0, len(keys), 4000)]
    return [np.concatenate([np.asarray(part[i]) for part in parts]) for i in range(3)]


def test_the_most_likely_token_of_several_blocks_is_the_first_such():
    logits = np.random.default_rng(8).normal(size=(20, 300)).astype(np.float32)
    logits[3, [140, 20, 299]] = 9.0
    logits[4, [290, 150]] = 9.0
    keys = jax.random.split(jax.random.key(0), 20)
    tokens, log_probs, _ = sample_tokens(logits, keys, SamplingParams(temperature=0.0))
    np.testing.assert_array_equal(tokens, logits.argmax(-1))
    np.testing.assert_array_equal(tokens[3:5], [20, 150])
    np.testing.assert_array_equal(log_probs, 0.0)


def test_temperature_zero_is_greedy_and_certain_beside_rows_that_sample():
    logits = random_logits(11, rows=200)
    keys = jax.random.split(jax.random.key(0), 200)
    temperature = np.where(np.arange(200) % 2 == 0, 0.0, 1.0).astype(np.float32)
    params = SamplingParams(temperature=temperature, top_p=np.float32(0.9))
    tokens, log_probs, log_probs_t1 = map(np.asarray, jax.jit(sample_tokens)(logits, keys, params))
    np.testing.assert_array_equal(tokens[::2], logits[::2].argmax(-1))
    np.testing.assert_array_equal(log_probs[::2], 0.0)
    want = np.take_along_axis(oracle.log_softmax(logits), tokens[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(log_probs_t1, want, rtol=1e-4, atol=1e-5)
    assert np.mean(tokens[1::2] == logits[1::2].argmax(-1)) < 0.9
    assert np.all(np.isfinite(log_probs))


def test_a_row_draws_by_its_own_key_only():
    logits = random_logits(2, rows=6)
    keys = jax.random.split(jax.random.key(1), 6)
    order = np.array([3, 0, 5, 4, 1, 2])
    tokens = jax.jit(sample_tokens)(logits, keys, SamplingParams())[0]
    moved = jax.jit(sample_tokens)(logits[order], keys[order], SamplingParams())[0]
    np.testing.assert_array_equal(moved, np.asarray(tokens)[order])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -0.1}, "temperature must be non-negative and finite, got -0.1"),
        ({"temperature": np.array([1.0, np.nan])}, "temperature must be .* got nan"),
        ({"temperature": np.inf}, "temperature must be .* got inf"),
        ({"top_k": -1}, "top_k must be non-negative, got -1"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.5}, "top_p must be .* got 1.5"),
        ({"min_p": 1.1}, r"min_p must be in \[0, 1\], got 1.1"),
    ],
)
def test_refuses_a_value_out_of_range(params, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**params).validate()


def test_values_on_a_device_are_not_read():
    jax.jit(lambda value: SamplingParams(temperature=value).validate())(jnp.float32(-1.0))


def test_accepts_the_ends_of_the_ranges():
    SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=1.0).validate()
