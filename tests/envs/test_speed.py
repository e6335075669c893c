"""A whole iteration's steps in a fifth of a second, for every task that is played on a grid."""

import pytest

from benchmarks import envs as benchmark
from envs.sokoban import Preset, build_bank


@pytest.fixture(scope="module")
def levels():
    return build_bank(
        Preset("small", 6, 6, 1, 1, 10, horizon=10, train_levels=1000, held_out_levels=8)
    ).train


@pytest.mark.parametrize("style", benchmark.STYLES)
@pytest.mark.parametrize(
    "task", ["sokoban", "frozen_lake_4x4", "frozen_lake_slippery_8x8", "cliff_walking"]
)
def test_iteration(levels, task, style):
    env = benchmark.grid_tasks(levels)[task](style)
    found = benchmark.iteration_seconds(env)
    assert found < benchmark.ITERATION_SECONDS
    # All of the steps were played: ten turns are an episode.
    assert env.num_envs * 10 == benchmark.ITERATION_STEPS
    assert env.step([""] * env.num_envs)[4]["num_actions"].max() == 10
    assert env.game.horizon == 10
