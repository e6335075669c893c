"""Every state and action against gymnasium's own table."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import MAPS, generate_random_map

from envs.frozen_lake import ACTIONS, FIXED_MAPS, PRESETS, make_frozen_lake
from envs.grid_walk import Scatter, Walks, read_map, step
from tests.envs.grid_walk.dynamics import chi_square, merge, sample, transitions

FIRM = PRESETS["4x4"].rules
LAKES = {
    "4x4": MAPS["4x4"],
    "8x8": MAPS["8x8"],
    **{f"drawn {seed}": generate_random_map(size=5, p=0.7, seed=seed) for seed in range(4)},
    "oblong": ["FFHFG", "HSFFF", "FFFHF"],
}


@pytest.mark.parametrize("schedule", [(1, 0, 0), (5, -2, -0.25)])
@pytest.mark.parametrize("success_rate", [None, 1 / 3, 0.8, 0.0, 1.0])
@pytest.mark.parametrize("lake", LAKES)
def test_table_is_gymnasiums(lake, success_rate, schedule):
    theirs = gymnasium.make(
        "FrozenLake-v1",
        desc=LAKES[lake],
        is_slippery=success_rate is not None,
        reward_schedule=schedule,
        **({} if success_rate is None else {"success_rate": success_rate}),
    ).unwrapped
    goal, hole, ice = schedule
    rules = replace(
        FIRM,
        rewards=(ice, hole, goal),
        success_rate=1.0 if success_rate is None else success_rate,
    )
    ground, start = read_map(LAKES[lake])
    assert theirs.initial_state_distrib.argmax() == start
    for state, actions in theirs.P.items():
        for action, listed in actions.items():
            if rules.ends[ground.flat[state]]:
                # A walk that has ended is never active: it stays, is paid nothing, and is over.
                cells, rewards = rest(rules, ground, start, state, action)
                assert listed == [(1.0, cells[0], rewards[0], True)]
                continue
            ours = merge(transitions(rules, ground, start, state, action))
            wanted = merge(listed)
            assert {k: v for k, v in ours.items() if v} == pytest.approx(
                {k: v for k, v in wanted.items() if v}
            )


def rest(rules, ground, start, state, action):
    walks = Walks(np.zeros(1, int), np.array([state]), np.zeros(1, np.uint64), np.zeros(1, int))
    inactive = np.zeros(1, bool)
    after, rewards, moved = step(
        rules, ground[None], np.array([start]), walks, np.array([action]), inactive
    )
    assert not moved[0]
    assert after.steps[0] == 0
    return after.cell.tolist(), rewards.tolist()


@pytest.mark.parametrize("success_rate", [1 / 3, 0.8])
def test_slips_are_as_frequent_as_gymnasiums_table_says(success_rate):
    theirs = gymnasium.make(
        "FrozenLake-v1", map_name="8x8", is_slippery=True, success_rate=success_rate
    ).unwrapped
    rules = replace(FIRM, success_rate=success_rate)
    ground, start = read_map(MAPS["8x8"])
    total, degrees = 0.0, 0
    for state in np.flatnonzero(ground.ravel() == 0)[::3].tolist():
        for action in range(4):
            seed = 10**6 * (4 * state + action)
            cells, rewards = sample(rules, ground, start, state, action, rows=6000, seed=seed)
            statistic, freedom = chi_square(cells, theirs.P[state][action])
            total, degrees = total + statistic, degrees + freedom
            assert (rewards == (ground.ravel()[cells] == 2)).all()
    assert degrees > 100
    # The chi-square is nearly normal at so many degrees of freedom: 4 standard deviations.
    assert abs(total - degrees) < 4 * np.sqrt(2 * degrees)


def test_slips_of_one_row_are_independent_from_step_to_step():
    rules = replace(FIRM, success_rate=1 / 3)
    ground = np.zeros((1, 3, 201), np.uint8)
    rows, start = 2000, np.array([201 + 100])
    walks = Walks(
        np.zeros(rows, int), np.full(rows, start[0]), np.arange(rows, dtype=np.uint64),
        np.zeros(rows, int),
    )  # fmt: skip
    took_meant = []
    for _ in range(2):
        before = walks.cell
        walks, _, _ = step(rules, ground, start, walks, np.full(rows, 2), np.ones(rows, bool))
        took_meant.append(walks.cell == before + 1)
    both = np.mean(took_meant[0] & took_meant[1])
    assert both == pytest.approx(1 / 9, abs=4 * np.sqrt(8 / 81 / rows))


def test_the_fixed_maps_are_gymnasiums():
    assert {name: list(rows) for name, rows in FIXED_MAPS.items()} == MAPS


def test_an_episode_goes_as_gymnasiums_on_firm_ice():
    theirs = gymnasium.make("FrozenLake-v1", is_slippery=False)
    ours = make_frozen_lake("fixed-4x4", success_rate=1.0, prompt="minimal")
    rng = np.random.default_rng(5)
    for _ in range(30):
        theirs.reset()
        ours.reset(seed=0)
        over = False
        while not over:
            action = int(rng.integers(4))
            state, reward, terminated, truncated, _ = theirs.step(action)
            _, rewards, terminations, truncations, infos = ours.step(
                [f"<answer>{ACTIONS[action]}</answer>"]
            )
            assert ours.state.walks.cell.tolist() == [state]
            assert rewards.tolist() == [reward]
            assert (terminations[0], truncations[0]) == (terminated, truncated)
            assert infos["success"][0] == (reward == 1)
            over = terminated or truncated


def test_default_presets_are_those_of_the_task():
    found = {
        name: (p.horizon, p.rules.success_rate, p.format_penalty) for name, p in PRESETS.items()
    }
    assert found == {
        "4x4": (10, 1, -0.15),
        "8x8": (30, 1, -0.15),
        "slippery-4x4": (20, 1 / 3, -0.15),
        "slippery-8x8": (60, 1 / 3, -0.15),
        "paper": (10, 1, -0.15),
        "fixed-4x4": (100, 1 / 3, -0.15),
        "fixed-8x8": (200, 1 / 3, -0.15),
        "corners-4x4": (100, 1 / 3, -0.15),
        "corners-8x8": (200, 1 / 3, -0.15),
    }
    drawn = [p.source for p in PRESETS.values() if isinstance(p.source, Scatter)]
    assert {source.plain for source in drawn} == {0.8}
    assert PRESETS["paper"].source.min_path == 1
    assert not PRESETS["paper"].source.corners
