import jax
import numpy as np
import pytest

from freshper_jax.generate import SamplingParams, make_generator
from freshper_jax.models import make_model, preset
from freshper_jax.rollout import (
    Episodes,
    ModelPolicy,
    collect,
    make_chat_renderer,
    make_word_tokenizer,
)
from freshper_jax.rollout.policies import chunk_rows
from tests.rollout.counting import CountdownEnv

T, MAX_NEW = 64, 3


@pytest.fixture(scope="module")
def setting():
    tokenizer = make_word_tokenizer(["Count.", *"0123456789"])
    model = make_model(preset("tiny", vocab_size=len(tokenizer)))
    params = model.init(jax.random.key(5))
    return make_chat_renderer(tokenizer), model, make_generator(model), params


def play(setting, seeds, rows, *, temperature=1.0, key=3):
    renderer, model, generator, params = setting
    policy = ModelPolicy(
        model=model,
        generator=generator,
        params=params,
        key=jax.random.key(key),
        sampling=SamplingParams(temperature=temperature),
        stop_ids=renderer.stop_ids,
        slots=T,
        max_new_tokens=MAX_NEW,
        chunks=(4, 8),
    )
    return collect(
        policy,
        CountdownEnv(rows),
        renderer,
        Episodes.of(seeds),
        max_tokens=T,
        max_new_tokens=MAX_NEW,
        temperature=temperature,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_behaviour_log_probs_equal_a_scorer_over_the_whole_row(setting, temperature):
    _, model, _, params = setting
    trajectory, _ = play(setting, [3, 1, 2, 0, 3], rows=4, temperature=temperature)
    scored, _ = jax.jit(model.token_log_probs)(params, trajectory.tokens, temperature)
    mask = trajectory.response_mask
    assert mask.sum() > 20
    np.testing.assert_allclose(
        trajectory.behaviour_log_probs[mask], np.asarray(scored)[mask], atol=2e-5
    )
    assert not trajectory.behaviour_log_probs[~mask].any()
    t1, _ = jax.jit(model.token_log_probs)(params, trajectory.tokens)
    if temperature != 1.0:
        np.testing.assert_allclose(trajectory.log_probs_t1[mask], np.asarray(t1)[mask], atol=2e-5)
    else:
        assert trajectory.log_probs_t1 is None


def test_an_episode_depends_on_its_number_only(setting):
    wide, _ = play(setting, [3, 1, 2, 0], rows=4)
    narrow, _ = play(setting, [3, 1, 2, 0], rows=1)
    np.testing.assert_array_equal(wide.tokens, narrow.tokens)
    other, _ = play(setting, [3, 1, 2, 0], rows=4, key=4)
    assert (wide.tokens != other.tokens).any()


def test_chunks_cover_ragged_rows_in_closed_widths():
    rows = [[1, 2, 3, 4, 5, 6, 7], [], [8, 9]]
    chunks = chunk_rows(rows, (2, 4))
    assert [tokens.shape for tokens, _ in chunks] == [(3, 4), (3, 4)]
    for row, ids in enumerate(rows):
        parts = [tokens[row, : counts[row]] for tokens, counts in chunks]
        assert np.concatenate(parts).tolist() == ids
