from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from envs.cliff_walking import PRESETS as CLIFFS
from envs.cliff_walking import make_cliff_walking
from envs.frozen_lake import PRESETS as LAKES
from envs.frozen_lake import make_frozen_lake
from envs.grid_walk import Scatter, build_bank, make_map_set, plan_walks, reference_score


def induction(table, horizon, random):
    """Returns each state's expected score by backward induction over gymnasium's table."""
    values = [0.0] * len(table)
    for _ in range(horizon):
        worth = [
            [
                sum(share * (reward + (not over) * values[following])
                    for share, following, reward, over in listed)
                for listed in actions.values()
            ]
            for actions in table.values()
        ]  # fmt: skip
        values = [sum(row) / len(row) if random else max(row) for row in worth]
    return values


@pytest.mark.parametrize("play", ["random", "optimal"])
@pytest.mark.parametrize("name", ["4x4", "8x8"])
def test_frozen_lake_scores_are_those_of_gymnasiums_table(name, play):
    preset = LAKES[f"fixed-{name}"]
    table = gymnasium.make("FrozenLake-v1", map_name=name).unwrapped.P
    found = reference_score(preset.rules, build_bank(preset.source).train, 60, play)
    expected = induction(table, 60, play == "random")[0]
    assert found.score == pytest.approx(expected)
    assert found.success == pytest.approx(expected)  # which pays 1 at the goal


@pytest.mark.parametrize("play", ["random", "optimal"])
@pytest.mark.parametrize("slippery", [False, True])
def test_cliff_walking_scores_are_those_of_gymnasiums_table(slippery, play):
    preset = CLIFFS["slippery" if slippery else "standard"]
    table = gymnasium.make("CliffWalking-v1", is_slippery=slippery).unwrapped.P
    found = reference_score(preset.rules, build_bank(preset.source).train, 50, play)
    assert found.score == pytest.approx(induction(table, 50, play == "random")[36])


def test_optimal_play_reaches_every_goal_on_firm_ground():
    for preset in (LAKES["4x4"], LAKES["8x8"], CLIFFS["random"], CLIFFS["standard"]):
        maps = build_bank(preset.source).held_out
        found = reference_score(preset.rules, maps, preset.horizon, "optimal")
        assert found.success == pytest.approx(1.0)
        plain, _, goal = preset.rules.rewards
        assert found.score == pytest.approx(plain * (maps.shortest.mean() - 1) + goal)


def test_optimal_play_is_cut_off_at_the_horizon():
    preset = LAKES["8x8"]
    maps = build_bank(preset.source).held_out
    found = reference_score(preset.rules, maps, 5, "optimal")
    assert found.success == pytest.approx(np.mean(maps.shortest <= 5))


@pytest.mark.parametrize(
    ("make", "preset"),
    [(make_frozen_lake, "4x4"), (make_frozen_lake, "slippery-4x4"), (make_cliff_walking, "random")],
)
def test_random_play_in_the_environment_agrees(make, preset):
    env = make(preset, 1024, split="held_out", prompt="minimal")
    exact = reference_score(
        (LAKES | CLIFFS)[preset].rules,
        build_bank((LAKES | CLIFFS)[preset].source).held_out,
        env.game.horizon,
        "random",
    )
    rng, wins, scores = np.random.default_rng(0), [], []
    for seed in range(3):
        env.reset(seed=1024 * seed, options={"start_indices": np.arange(1024)})
        for _ in range(env.game.horizon):
            replies = [env.game.action_replies[a] for a in rng.integers(0, 4, 1024)]
            _, _, _, _, infos = env.step(replies)
        wins.append(infos["success"])
        scores.append(infos["score"])
    for found, value in ((wins, exact.success), (scores, exact.score)):
        assert np.mean(found) == pytest.approx(value, abs=4 * np.std(found) / np.sqrt(3072))


@pytest.mark.parametrize(
    ("make", "presets", "name"),
    [
        (make_frozen_lake, LAKES, "8x8"),
        (make_frozen_lake, LAKES, "slippery-4x4"),
        (make_cliff_walking, CLIFFS, "random"),
        (make_cliff_walking, CLIFFS, "slippery"),
    ],
)
def test_plans_lead_the_environment_as_planned(make, presets, name):
    preset = presets[name]
    maps = build_bank(preset.source).train
    maps = maps.take(np.arange(200) % len(maps))
    seeds = np.arange(200, dtype=np.uint64) + 5
    plans = plan_walks(preset.rules, maps, seeds, preset.horizon)
    env = make(preset, 200, prompt="minimal")
    _, infos = env.reset(
        seed=seeds.tolist(), options={"start_indices": np.arange(200) % env.game.starts}
    )
    if preset.rules.success_rate == 1:
        assert [len(plan) for plan in plans] == infos["optimal_length"].tolist()
    for turn in range(preset.horizon):
        replies = [
            env.game.action_replies[plan[turn]] if turn < len(plan) else "" for plan in plans
        ]
        _, _, terminated, truncated, infos = env.step(replies)
    assert (terminated | truncated).all()
    assert infos["num_actions"].tolist() == [len(plan) for plan in plans]
    exact = reference_score(preset.rules, maps, preset.horizon, "optimal")
    spread = np.sqrt(max(exact.success * (1 - exact.success), 1e-9) / 200)
    assert infos["success"].mean() == pytest.approx(exact.success, abs=4 * spread)


def test_of_equal_scores_the_one_that_succeeds_is_optimal():
    # Within two steps, reaching the goal and walking elsewhere cost the same.
    maps = make_map_set(np.array([[[0, 0, 2], [0, 0, 0]]]), np.array([0]))
    rules = CLIFFS["standard"].rules
    assert reference_score(rules, maps, 2, "optimal").success == 1
    slow = replace(rules, rewards=(-1.0, -100.0, -3.0))
    assert reference_score(slow, maps, 2, "optimal").success == 0


def test_a_corridor_by_hand():
    # Start, ice, goal in a row: random play reaches the goal in two steps with (1/4)^2, ...
    maps = make_map_set(np.array([[[0, 0, 2]]]), np.array([0]))
    rules = LAKES["4x4"].rules
    assert reference_score(rules, maps, 1, "random").success == 0
    assert reference_score(rules, maps, 2, "random").success == pytest.approx(1 / 16)
    # ... and in three with one wasted step, at the start (3/4 of waste) or on the ice (1/2).
    expected = 1 / 16 + 3 / 4 / 16 + 1 / 2 / 16
    assert reference_score(rules, maps, 3, "random").success == pytest.approx(expected)


def test_scores_of_scattered_maps_are_their_mean():
    preset = LAKES["slippery-4x4"]
    maps = build_bank(Scatter(4, 4, train_maps=40, held_out_maps=5)).train
    each = [
        reference_score(preset.rules, maps.take(np.array([row])), 12, "optimal").success
        for row in range(len(maps))
    ]
    whole = reference_score(preset.rules, maps, 12, "optimal").success
    assert whole == pytest.approx(np.mean(each))
