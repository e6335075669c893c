"""Every state and action against gymnasium's own table."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from envs.cliff_walking import ACTIONS, PRESETS, STANDARD_MAP, make_cliff_walking
from envs.grid_walk import read_map
from tests.envs.grid_walk.dynamics import chi_square, merge, sample, transitions

GROUND, START = read_map(STANDARD_MAP)


def make(slippery):
    return gymnasium.make("CliffWalking-v1", is_slippery=slippery).unwrapped


@pytest.mark.parametrize("slippery", [False, True])
def test_table_is_gymnasiums(slippery):
    theirs = make(slippery)
    rules = PRESETS["slippery" if slippery else "standard"].rules
    assert theirs.start_state_index == START
    assert len(theirs.P) == GROUND.size == 48
    for state, actions in theirs.P.items():
        for action, listed in actions.items():
            ours = merge(transitions(rules, GROUND, START, state, action))
            assert ours == pytest.approx(merge(listed))


def test_slips_are_as_frequent_as_gymnasiums_table_says():
    theirs, rules = make(True), PRESETS["slippery"].rules
    total, degrees = 0.0, 0
    for state in [*range(0, 36, 2), START]:
        for action in range(4):
            seed = 10**6 * (4 * state + action)
            cells, _ = sample(rules, GROUND, START, state, action, rows=6000, seed=seed)
            statistic, freedom = chi_square(cells, theirs.P[state][action])
            total, degrees = total + statistic, degrees + freedom
    assert degrees > 100
    # The chi-square is nearly normal at so many degrees of freedom: 4 standard deviations.
    assert abs(total - degrees) < 4 * np.sqrt(2 * degrees)


def test_an_episode_goes_as_gymnasiums():
    theirs, ours = make(False), make_cliff_walking(horizon=400, prompt="minimal")
    rng = np.random.default_rng(1)
    for _ in range(20):
        theirs.reset()
        ours.reset(seed=0)
        score = 0
        for _ in range(400):
            # More often to the right than not, or the goal is never reached.
            action = int(rng.choice(4, p=[0.2, 0.4, 0.2, 0.2]))
            state, reward, terminated, _, _ = theirs.step(action)
            _, rewards, terminations, _, infos = ours.step([f"<answer>{ACTIONS[action]}</answer>"])
            score += reward
            assert ours.state.walks.cell.tolist() == [state]
            assert rewards.tolist() == [reward]
            assert terminations[0] == infos["success"][0] == terminated
            if terminated:
                break
        assert infos["score"][0] == score


def test_standard_walk_takes_thirteen_steps():
    env = make_cliff_walking(prompt="minimal")
    _, infos = env.reset(seed=0)
    assert infos["optimal_length"].tolist() == [13]
    for name in ("Up", *["Right"] * 11, "Down"):
        _, _, terminated, truncated, infos = env.step([f"<answer>{name}</answer>"])
    assert terminated[0]
    assert not truncated[0]
    assert infos["success"][0]
    assert infos["score"].tolist() == [-13]


def test_rewards_can_be_scaled():
    env = make_cliff_walking(reward_scale=0.01, prompt="default")
    env.reset(seed=0)
    assert "costs 0.01" in env.system_prompt
    _, rewards, *_ = env.step(["<answer>Up</answer>"])
    assert rewards == pytest.approx([-0.01])
    env.step(["<answer>Down</answer>"])
    _, rewards, *_ = env.step(["<answer>Right</answer>"])
    assert rewards == pytest.approx([-1.0])
    _, rewards, _, _, infos = env.step(["?"])
    assert rewards == pytest.approx([-0.01])
    assert infos["format_penalty"] == pytest.approx([-0.01])


def test_a_fall_can_be_made_to_cost_less():
    env = make_cliff_walking(hazard_reward=-10, reward_scale=0.5, prompt="default")
    env.reset(seed=0)
    assert "the cliff costs 5 " in env.system_prompt
    _, rewards, *_ = env.step(["<answer>Right</answer>"])
    assert rewards.tolist() == [-5]


def test_default_presets_are_those_of_the_task():
    standard, paper = PRESETS["standard"], PRESETS["paper"]
    assert (standard.horizon, paper.horizon) == (50, 200)
    assert standard.rules == paper.rules
    assert standard.rules.rewards == (-1, -100, -1)
    assert replace(paper, name="standard", horizon=50, invalid_reward=-1.0) == standard
    assert PRESETS["slippery"].rules.success_rate == 1 / 3
    assert PRESETS["random"].rules.rewards == (-1, -2, -1)
    assert PRESETS["random"].horizon == 15
