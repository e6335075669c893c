"""What an iteration tells the buffer."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import replay
from freshper_jax.objectives import row_statistics
from freshper_jax.rollout import Trajectory
from freshper_jax.training import IterationConfig, RunState, TrainState, make_iteration
from freshper_jax.training.replaying import group_names


def test_groups_have_one_name_each_in_all_iterations():
    trajectory = types.SimpleNamespace(group_id=np.repeat(np.arange(3, dtype=np.int32), 2))
    names = [group_names(trajectory, number) for number in range(4)]
    np.testing.assert_array_equal(names[0], [0, 0, 1, 1, 2, 2])
    assert len(np.unique(np.concatenate(names))) == 4 * 3
    assert all(each.dtype == np.int32 for each in names)


ROWS, WIDTH = 4, 3


def rollout(*_):
    wide, number = np.zeros((ROWS, WIDTH), np.float32), np.zeros(ROWS, np.int32)
    trajectory = Trajectory(
        tokens=np.zeros((ROWS, WIDTH), np.int32),
        response_mask=np.ones((ROWS, WIDTH), bool),
        behaviour_log_probs=wide,
        rewards=wide,
        advantages=wide,
        return_=np.arange(ROWS, dtype=np.float32),
        length=number + WIDTH,
        group_id=number,
        policy_version=number,
        temperature=np.ones(ROWS, np.float32),
    )
    ones = np.ones(ROWS, np.float32)
    names = ("score", "success", "valid", "effective", "turns", "cut")
    return trajectory, types.SimpleNamespace(**dict.fromkeys(names, ones), sampled_tokens=1)


@pytest.mark.parametrize("reprioritise", [False, True])
def test_priorities_are_of_the_first_update_and_then_of_the_last_on_a_row(reprioritise):
    calls = []

    def update(state, batch, weights):
        # Each update finds a TD error of its own number, on every token of every row.
        calls.append(batch)
        wide = jnp.zeros(batch.response_mask.shape)
        found = row_statistics(
            wide, wide, jnp.asarray(batch.response_mask), td_error=wide + float(len(calls))
        )
        state = TrainState(state.params, state.opt_state, state.step + 1, state.skipped)
        return state, {}, found

    buffer = replay.make_buffer(capacity=8, alpha=1.0)
    iterate = make_iteration(
        rollout=rollout,
        prepare=lambda params, trajectory: trajectory.replace(tokens=trajectory.tokens + params),
        update=update,
        buffer=buffer,
        base_priority=lambda batch, rows: rows.mean_td_error,
        config=IterationConfig(iterations=1, updates=2, batch=2),
        reprioritise=reprioritise,
    )
    zero = jnp.zeros((), jnp.int32)
    example = jax.tree.map(lambda leaf: leaf[0], rollout()[0])
    state = RunState(
        TrainState(jnp.int32(7), (), zero, zero), buffer.init(example), jax.random.key(0), zero
    )
    state, _ = iterate(state)
    np.testing.assert_array_equal(calls[0].tokens, 7)  # prepared by the params that played
    priorities = np.exp(np.asarray(state.replay.log_base)[:ROWS])
    drawn = np.asarray(state.replay.draws)[:ROWS] > 0
    np.testing.assert_allclose(priorities[~drawn], 1.0, rtol=1e-6)
    if reprioritise:
        last = calls[2].return_.astype(int).tolist()
        np.testing.assert_allclose(priorities[last], 3.0, rtol=1e-6)
        earlier = set(calls[1].return_.astype(int).tolist()) - set(last)
        np.testing.assert_allclose(priorities[sorted(earlier)], 2.0, rtol=1e-6)
        assert np.all(np.asarray(state.replay.birth)[:ROWS] == 0)
    else:
        np.testing.assert_allclose(priorities, 1.0, rtol=1e-6)
