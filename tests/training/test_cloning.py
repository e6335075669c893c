import types

import jax
import numpy as np
import pytest

from freshper_jax.training import (
    CloningConfig,
    OptimizerConfig,
    clone,
    init_train_state,
    make_cloning_update,
    make_optimizer,
)
from tests.training import toy

ROWS, BATCH = 12, 4


def demonstrations():
    """Rows that repeat one token, so that a bigram policy can learn them."""
    tokens = np.repeat(np.arange(ROWS) % toy.VOCABULARY, toy.TOKENS).reshape(ROWS, toy.TOKENS)
    mask = np.ones((ROWS, toy.TOKENS), bool)
    mask[:, 0] = False
    return types.SimpleNamespace(
        tokens=tokens.astype(np.int32), response_mask=mask, length=np.full(ROWS, toy.TOKENS)
    )


def probability_of_repeating(params):
    logits = np.asarray(params["table"], np.float64) + np.asarray(params["bias"], np.float64)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return float(np.mean(np.diag(odds / odds.sum(axis=1, keepdims=True))))


def run(target, *, max_updates=200, update=None):
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.1))
    reports = []
    state, success = clone(
        init_train_state(toy.init_params(jax.random.key(0)), optimizer),
        demonstrations(),
        update=update or make_cloning_update(toy.token_log_probs, optimizer),
        measure=probability_of_repeating,
        config=CloningConfig(target=target, max_updates=max_updates, check_every=5, batch=BATCH),
        seed=0,
        report=lambda *line: reports.append(line),
    )
    return state, success, reports


def test_cloning_stops_at_the_first_measurement_that_reaches_the_target():
    state, success, reports = run(0.8)
    assert success >= 0.8
    assert success == pytest.approx(probability_of_repeating(state.params))
    assert int(state.step) == reports[-1][0] < 200
    assert all(share < 0.8 for _, _, share in reports[:-1])
    assert [done for done, _, _ in reports] == list(range(5, reports[-1][0] + 1, 5))


def test_cloning_gives_up_after_its_updates():
    state, success, _ = run(1.1, max_updates=7)
    assert int(state.step) == 7
    assert success < 1.1


def test_every_row_comes_once_before_any_comes_again():
    seen = []

    def update(state, tokens, mask):
        seen.append(tokens)
        return state, {"loss": np.float32(0)}

    run(1.1, max_updates=6, update=update)
    rows = demonstrations().tokens
    for half in (seen[:3], seen[3:]):
        drawn = np.concatenate(half)
        assert sorted(map(tuple, drawn)) == sorted(map(tuple, rows))
    assert (np.concatenate(seen[:3]) != np.concatenate(seen[3:])).any()


def test_fewer_rows_than_a_batch_are_refused():
    with pytest.raises(ValueError, match="demonstrations: got 12, expected at least a batch of 16"):
        clone(
            None,
            demonstrations(),
            update=lambda *_: None,
            measure=lambda _: 0.0,
            config=CloningConfig(target=1.0, max_updates=1, check_every=1, batch=16),
            seed=0,
        )
