import time

import gymnasium
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import envs
from envs import GameVectorEnv
from envs.sokoban import (
    ACTIONS,
    make_game,
    make_sokoban,
    render_coordinates,
    render_text,
    solve,
)
from tests.envs.sokoban import oracle

INFOS = {
    "success": np.bool_,
    "action_is_valid": np.bool_,
    "action_is_effective": np.bool_,
    "num_actions": np.int32,
    "score": np.float32,
    "format_penalty": np.float32,
    "optimal_length": np.int32,
    "start_index": np.int64,
}


def play(levels, num_envs, *, seed=None, render_mode=None, **options):
    return GameVectorEnv(make_game(levels, **options), num_envs, seed=seed, render_mode=render_mode)


def cells(env):
    return env.state.boards.cells


def answer(*actions):
    return f"<answer>{' || '.join(actions)}</answer>"


@pytest.fixture
def make(banks):
    def make_env(num_envs=4, *, preset="simple", horizon=10, prompt="minimal", **options):
        return play(banks[preset].train, num_envs, horizon=horizon, prompt=prompt, **options)

    return make_env


class Episode:
    """One episode by the oracle."""

    def __init__(self, text, horizon):
        self.text, self.left, self.score, self.solved = text, horizon, 0.0, False

    def turn(self, names):
        """Plays a turn of named actions, or an invalid one: reward, effective, penalty."""
        reward, effective, penalty = 0.0, False, 0.0
        if not self.done:
            if not names:
                reward, penalty = -0.1, -0.15
                self.left -= 1
            for name in names:
                if self.done:
                    break
                self.text, gain, moved, self.solved = oracle.step(self.text, name)
                reward += gain
                effective |= moved
                self.left -= 1
        self.score += reward
        return reward, effective, penalty

    @property
    def done(self):
        return self.solved or self.left == 0


turns = st.lists(st.lists(st.sampled_from(ACTIONS), max_size=3), min_size=3, max_size=3)


@hypothesis.given(
    seed=st.integers(0, 2**40),
    horizon=st.integers(1, 9),
    script=st.lists(turns, min_size=1, max_size=10),
)
@hypothesis.settings(max_examples=60)
def test_episodes_match_the_oracle(banks, seed, horizon, script):
    env = play(banks["hard"].train, 3, horizon=horizon, prompt="minimal", max_actions_per_turn=3)
    observations, infos = env.reset(seed=seed)
    episodes = [Episode(text, horizon) for text in observations]
    for rows in script:
        was_done = [episode.done for episode in episodes]
        outcome = [episode.turn(names) for episode, names in zip(episodes, rows, strict=True)]
        replies = [answer(*names) if names else "no idea" for names in rows]
        observations, rewards, terminated, truncated, infos = env.step(replies)
        assert observations == tuple(episode.text for episode in episodes)
        np.testing.assert_allclose(rewards, [reward for reward, _, _ in outcome], atol=1e-5)
        assert terminated.tolist() == [episode.solved for episode in episodes]
        assert truncated.tolist() == [e.done and not e.solved for e in episodes]
        assert infos["success"].tolist() == terminated.tolist()
        assert infos["action_is_effective"].tolist() == [moved for _, moved, _ in outcome]
        assert infos["action_is_valid"].tolist() == [
            bool(names) and not done for names, done in zip(rows, was_done, strict=True)
        ]
        np.testing.assert_allclose(infos["format_penalty"], [p for _, _, p in outcome])
        assert infos["num_actions"].tolist() == [horizon - e.left for e in episodes]
        np.testing.assert_allclose(infos["score"], [e.score for e in episodes], atol=1e-4)


def test_types_and_shapes(make):
    env = make(4)
    observations, infos = env.reset(seed=0)
    assert isinstance(observations, tuple)
    assert {name: value.dtype for name, value in infos.items()} == INFOS
    observations, rewards, terminated, truncated, infos = env.step([answer("Up")] * 4)
    assert observations in env.observation_space
    assert rewards.dtype == np.float32
    assert terminated.dtype == truncated.dtype == np.bool_
    assert {name: value.dtype for name, value in infos.items()} == INFOS
    arrays = [rewards, terminated, truncated, *infos.values()]
    assert {array.shape for array in arrays} == {(4,)}
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED


def test_what_is_returned_is_the_callers(make):
    env = make(3)
    env.reset(seed=0)
    first = env.step([answer("Up")] * 3)
    for array in (*first[1:4], *first[4].values()):
        array[:] = 1
    env.step(["no"] * 3)[4]["num_actions"][:] = 9
    assert env.step(["no"] * 3)[4]["num_actions"].tolist() == [3, 3, 3]


def test_shortest_solutions_score_as_expected(make):
    env = make(64, preset="long", horizon=30)
    env.reset(options={"start_indices": np.arange(64)})
    plans = [solve(cells) for cells in cells(env)]
    placed = [len(t & b) for _, t, b, _ in map(oracle.parse, render_text(cells(env)))]
    for turn in range(max(map(len, plans))):
        replies = [answer(ACTIONS[plan[turn]]) if turn < len(plan) else "rest" for plan in plans]
        _, _, terminated, truncated, infos = env.step(replies)
    assert terminated.all()
    assert not truncated.any()
    assert infos["num_actions"].tolist() == infos["optimal_length"].tolist()
    expected = 12 - np.array(placed) - 0.1 * infos["optimal_length"]
    np.testing.assert_allclose(infos["score"], expected, atol=1e-4)


def test_a_finished_row_rests_until_it_is_reset(make):
    env = make(2, horizon=3)
    env.reset(seed=1)
    for _ in range(3):
        env.step(["no", answer("Up")])
    before = cells(env)
    observations, rewards, terminated, truncated, infos = env.step([answer("Left"), "no"])
    np.testing.assert_array_equal(cells(env), before)
    assert observations == render_text(before)
    assert rewards.tolist() == [0, 0]
    assert (terminated | truncated).all()
    assert truncated[0]
    assert infos["format_penalty"].tolist() == [0, 0]
    assert not infos["action_is_valid"].any()
    assert infos["num_actions"][0] == 3
    np.testing.assert_allclose(infos["score"][0], -0.3, atol=1e-6)


def test_solving_with_the_last_action_is_no_truncation(make, banks):
    env = make(1, horizon=1)
    index = int(np.argmax(banks["simple"].train.optimal_lengths == 1))
    env.reset(options={"start_indices": [index]})
    (action,) = solve(cells(env)[0])
    _, rewards, terminated, truncated, _ = env.step([answer(ACTIONS[action])])
    np.testing.assert_allclose(rewards, [10.9], atol=1e-6)
    assert terminated.all()
    assert not truncated.any()


def test_partial_reset(make, banks):
    env = make(3)
    env.reset(seed=5)
    env.step(["no", answer("Up"), "no"])
    before, (old, _) = cells(env).copy(), env.reset(options={"reset_mask": np.zeros(3, bool)})
    options = {"reset_mask": np.array([False, True, False]), "start_indices": [9, 9, 9]}
    new, infos = env.reset(options=options)
    assert new[0] == old[0]
    assert new[2] == old[2]
    np.testing.assert_array_equal(cells(env)[1], banks["simple"].train.cells[9])
    np.testing.assert_array_equal(cells(env)[[0, 2]], before[[0, 2]])
    assert infos["num_actions"].tolist() == [1, 0, 1]
    assert infos["start_index"][1] == 9
    np.testing.assert_allclose(infos["score"], [-0.1, 0, -0.1], atol=1e-6)
    np.testing.assert_allclose(infos["format_penalty"], [-0.15, 0, -0.15], atol=1e-6)
    assert env.step([answer("Up")] * 3)[4]["num_actions"].tolist() == [2, 1, 2]


def test_seeds_decide_levels(make):
    env, other = make(8), make(3)
    first, infos = env.reset(seed=40)
    assert env.reset(seed=40)[0] == first
    assert env.reset(seed=range(40, 48))[0] == first
    assert other.reset(seed=np.array([42, 40, 47]))[0] == (first[2], first[0], first[7])
    assert env.reset(seed=[6] * 8)[0][0] == env.reset(seed=6)[0][0]
    assert len(set(env.reset(seed=[6] * 8)[0])) == 1
    drawn = [env.reset()[0] for _ in range(2)]
    assert drawn[0] != drawn[1]
    env.reset(seed=6)
    again = [env.reset()[0] for _ in range(2)]
    assert again == drawn
    indices = infos["start_index"]
    assert env.reset(options={"start_indices": indices})[0] == first


def test_the_constructors_seed_decides_unseeded_resets(make):
    assert make(8, seed=3).reset()[0] == make(8, seed=3).reset()[0]
    assert make(8, seed=3).reset()[0] != make(8, seed=4).reset()[0]


def test_seeds_reach_all_levels_alike(make):
    env = make(4096)
    _, infos = env.reset(seed=0)
    counts = np.bincount(infos["start_index"] * 16 // env.game.starts, minlength=16)
    assert ((counts - 256) ** 2 / 256).sum() < 37.7  # chi-square, 15 degrees, 0.1 %


def test_rewards_of_invalid_replies_are_options(make):
    env = make(1, invalid_reward=-1.0, format_penalty=0.0)
    env.reset(seed=0)
    _, rewards, _, _, infos = env.step(["?"])
    assert rewards.tolist() == [-1]
    assert infos["score"].tolist() == [-1]
    assert infos["format_penalty"].tolist() == [0]


def test_the_other_tag(make):
    env = make(1, tag="action", prompt="default")
    observations, _ = env.reset(seed=0)
    assert "<action>" in env.system_prompt
    assert "<action>" in observations[0]
    assert env.step(["<action>up</action>"])[4]["action_is_valid"].tolist() == [True]
    assert env.step(["<answer>up</answer>"])[4]["action_is_valid"].tolist() == [False]


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("prompt", ["minimal", "default", "reference"])
def test_prompts_show_the_board(make, prompt, most, spaced):
    env = make(2, prompt=prompt, spaced=spaced, max_actions_per_turn=most)
    observations, _ = env.reset(seed=0)
    for replies in (["?", answer("Up")], [answer("Down"), "?"], [answer("Up")] * 2):
        for text, board in zip(observations, render_text(cells(env), spaced=spaced), strict=True):
            assert board in text
            assert text in env.single_observation_space
        observations = env.step(replies)[0]


def test_minimal_prompt_is_the_board_alone(make):
    env = make(1, prompt="minimal")
    assert env.reset(seed=0)[0] == render_text(cells(env))
    assert len(env.system_prompt) < 100
    assert all(name in env.system_prompt for name in ACTIONS)


def test_coordinates_prompt_lists_what_stands_where(make):
    env = make(2, prompt="coordinates")
    observations, _ = env.reset(seed=0)
    for _ in range(3):
        assert observations == render_coordinates(cells(env))
        assert all(text in env.single_observation_space for text in observations)
        observations = env.step([answer("Up"), "?"])[0]


@pytest.mark.parametrize("prompt", ["default", "reference"])
def test_prompts_count_turns_and_actions(make, prompt):
    env = make(1, prompt=prompt)
    (text,), _ = env.reset(seed=0)
    assert "Turn 1" in text
    assert "10 actions left" in text
    (text,), *_ = env.step([answer("Up")])
    assert "Turn 2" in text
    assert "9 actions left" in text
    everything = env.system_prompt + env.reset(seed=0)[0][0]
    assert all(name in everything for name in ACTIONS)
    assert "# wall" in everything
    assert "<answer>" in everything


def test_reference_prompt_tells_the_last_reward(make, banks):
    env = make(1, prompt="reference")
    index = int(np.argmax(banks["simple"].train.optimal_lengths == 1))
    (text,), _ = env.reset(options={"start_indices": [index]})
    assert "Reward" not in text
    (text,), *_ = env.step(["?"])
    assert text.startswith("Reward:\n-0.1\n")
    (action,) = solve(cells(env)[0])
    (text,), *_ = env.step([answer(ACTIONS[action])])
    assert text.startswith("Reward:\n10.9\n")


def test_default_prompt_tells_of_an_invalid_reply(make):
    env = make(1, prompt="default")
    assert "no valid action" not in env.reset(seed=0)[0][0]
    assert "no valid action" in env.step(["?"])[0][0]
    assert "no valid action" not in env.step([answer("Up")])[0][0]


def test_several_actions_a_turn_are_explained(make):
    assert "||" in make(1, prompt="default", max_actions_per_turn=2).system_prompt
    assert "||" not in make(1, prompt="default").system_prompt


def test_rendering(make):
    env = make(2, render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == render_text(cells(env))
    env = make(2, render_mode="rgb_array")
    env.reset(seed=0)
    assert [(frame.shape, frame.dtype) for frame in env.render()] == [((96, 96, 3), np.uint8)] * 2
    env = make(2)
    env.reset(seed=0)
    assert env.render() is None


def test_junk_replies_are_cheap_and_invalid(make):
    env = make(4, horizon=100)
    env.reset(seed=0)
    junk = ["x" * 100_000, "<answer>" * 12_500, "\ud800\x00" * 50_000, ""]
    start = time.process_time()
    for _ in range(20):
        _, rewards, _, _, infos = env.step(junk)
    assert time.process_time() - start < 0.5
    assert not infos["action_is_valid"].any()
    np.testing.assert_allclose(rewards, -0.1, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_envs": 0}, ValueError, "num_envs must be at least 1, not 0"),
        ({"num_envs": 2.5}, TypeError, "num_envs must be an integer, not 2.5"),
        ({"horizon": 0}, ValueError, "horizon must be at least 1"),
        ({"max_actions_per_turn": 0}, ValueError, "max_actions_per_turn must be at least 1"),
        ({"prompt": "long"}, ValueError, "prompt must be one of .*'minimal'.*, not 'long'"),
        ({"tag": "move"}, ValueError, "tag must be one of .*, not 'move'"),
        ({"render_mode": "human"}, ValueError, "render_mode must be one of"),
        ({"invalid_reward": float("nan")}, ValueError, "invalid_reward must be finite"),
        ({"format_penalty": float("inf")}, ValueError, "format_penalty must be finite"),
        ({"seed": -1}, ValueError, "seed must not be negative"),
        ({"seed": 0.5}, TypeError, "seed must be an integer"),
    ],
)
def test_bad_arguments_are_refused(make, options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


def test_an_empty_level_set_is_refused(banks):
    with pytest.raises(ValueError, match="levels must hold at least one"):
        play(banks["simple"].train.take(np.arange(0)), 1, horizon=1)


@pytest.mark.parametrize(
    ("seed", "options", "error", "message"),
    [
        (-1, None, ValueError, "seed must be in 0 to"),
        ([1, 2], None, ValueError, "seed must hold 4 seeds, not 2"),
        (1.5, None, TypeError, "seed must be an integer, not 1.5"),
        ("abcd", None, TypeError, "seed must be an integer, not 'a'"),
        ([0, 0, 0, 2**64], None, ValueError, "seed must be in 0 to"),
        (0, {"mask": [1]}, ValueError, r"options must be among .*, not \['mask'\]"),
        (0, {"reset_mask": [True]}, ValueError, r"reset_mask must be bool of shape \(4,\)"),
        (0, {"reset_mask": [0, 1, 0, 1]}, ValueError, "reset_mask must be bool"),
        (0, {"start_indices": [0]}, ValueError, "start_indices must be 4 integers"),
        (0, {"start_indices": [0.0] * 4}, ValueError, "start_indices must be 4 integers"),
        (0, {"start_indices": [0, 0, 0, -1]}, ValueError, "start_indices must be in 0 to 8191"),
        (0, {"start_indices": [0, 0, 0, 8192]}, ValueError, "start_indices must be in 0 to 8191"),
    ],
)
def test_bad_resets_are_refused_and_change_nothing(make, seed, options, error, message):
    env = make(4)
    env.reset(seed=3)
    env.step(["no"] * 4)
    before = cells(env)
    with pytest.raises(error, match=message):
        env.reset(seed=seed, options=options)
    np.testing.assert_array_equal(cells(env), before)
    assert env.step(["no"] * 4)[4]["num_actions"].tolist() == [2] * 4


def test_bad_steps_are_refused(make):
    env = make(4)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(["a"] * 4)
    with pytest.raises(gymnasium.error.ResetNeeded, match="the first reset must cover all rows"):
        env.reset(options={"reset_mask": np.array([True, False, True, True])})
    env.reset(seed=0)
    for actions in (["a"] * 3, [], "aaaa"):
        with pytest.raises(ValueError, match="actions must be 4 strings, one a row"):
            env.step(actions)
    with pytest.raises(TypeError, match=r"actions\[2\] must be a string, not bytes"):
        env.step(["a", "a", b"a", "a"])


def test_factory(cache_dir, presets):
    env = make_sokoban(presets["hard"], 3, split="held_out", cache_dir=cache_dir, prompt="minimal")
    assert env.game.starts == presets["hard"].held_out_levels
    assert env.game.horizon == 20
    assert make_sokoban(presets["hard"], 3, horizon=7, cache_dir=cache_dir).game.horizon == 7
    with pytest.raises(ValueError, match=r"split must be one of .*, not 'test'"):
        make_sokoban("simple", 3, split="test", cache_dir=cache_dir)
    with pytest.raises(ValueError, match="preset must be one of"):
        make_sokoban("huge", 3, cache_dir=cache_dir)


def test_is_a_text_vector_env(make):
    env: envs.TextVectorEnv = make(2)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert env.num_envs == 2
