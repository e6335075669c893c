"""Episodes of both tasks: replies, infos, prompts, pictures, gymnasium's checker."""

import time

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs.boards import boards_to_coordinates, boards_to_text
from envs.cliff_walking import CLIFF_WALKING, make_cliff_walking
from envs.frozen_lake import FROZEN_LAKE, make_frozen_lake
from envs.grid_walk import build_bank, make_game, make_map_set

MAKE = {"FrozenLake": make_frozen_lake, "CliffWalking": make_cliff_walking}
TASKS = {"FrozenLake": FROZEN_LAKE, "CliffWalking": CLIFF_WALKING}
DRAWN = {"FrozenLake": "4x4", "CliffWalking": "random"}
IDS = {
    "FrozenLake4x4": "4x4",
    "FrozenLake8x8": "8x8",
    "FrozenLakeSlippery4x4": "slippery-4x4",
    "FrozenLakeSlippery8x8": "slippery-8x8",
    "FrozenLakeFixed4x4": "fixed-4x4",
    "FrozenLakeFixed8x8": "fixed-8x8",
    "FrozenLakeCorners4x4": "corners-4x4",
    "FrozenLakeCorners8x8": "corners-8x8",
    "FrozenLakePaper": "paper",
    "CliffWalking": "standard",
    "CliffWalkingSlippery": "slippery",
    "CliffWalkingRandom": "random",
    "CliffWalkingPaper": "paper",
}


def answer(*actions):
    return f"<answer>{' || '.join(actions)}</answer>"


def codes(env):
    return np.array(env.game.render(env.state, "codes"))


@pytest.fixture(params=MAKE)
def name(request):
    return request.param


def make(name, num_envs=4, preset=None, **options):
    return MAKE[name](preset or DRAWN[name], num_envs, **{"prompt": "minimal", **options})


@pytest.mark.parametrize("action_mode", ["text", "discrete"])
@pytest.mark.parametrize("title", IDS)
def test_passes_gymnasiums_checker(title, action_mode):
    env = gymnasium.make(f"FreshPER/{title}-v0", action_mode=action_mode)
    check_env(env.unwrapped)  # a warning would be an error


def test_ids_carry_their_presets():
    presets = {title: gymnasium.spec(f"FreshPER/{title}-v0").kwargs["preset"] for title in IDS}
    assert presets == IDS
    named = {f"FreshPER/{title}-v0" for title in IDS}
    tasks = ("FreshPER/FrozenLake", "FreshPER/CliffWalking")
    assert {name for name in gymnasium.registry if name.startswith(tasks)} == named


@pytest.mark.parametrize("prompt", ["minimal", "coordinates", "default", "reference"])
def test_every_prompt_passes_the_checker(name, prompt):
    env = gymnasium.make(f"FreshPER/{name}Paper-v0", prompt=prompt, spaced=True)
    check_env(env.unwrapped)


def test_gymnasiums_vector_maker_makes_ours():
    env = gymnasium.make_vec(
        "FreshPER/FrozenLakePaper-v0", 3, vectorization_mode="vector_entry_point"
    )
    observations, _ = env.reset(seed=2)
    assert len(observations) == 3


def test_types_of_infos(name):
    env = make(name)
    _, infos = env.reset(seed=0)
    assert infos["optimal_length"].dtype == np.int32
    assert (infos["optimal_length"] >= 1).all()
    _, rewards, terminated, _, infos = env.step([answer("Up")] * 4)
    assert rewards.dtype == np.float32
    assert terminated.dtype == infos["success"].dtype == np.bool_
    infos["optimal_length"][:] = 0
    assert (env.step(["?"] * 4)[4]["optimal_length"] >= 1).all()


def lone(task, preset, rows, start, **options):
    """Returns an environment of one row on one map."""
    ground = np.array([["FHG".index(letter) for letter in row] for row in rows])
    game = make_game(
        task, make_map_set(ground[None], np.array([start])), task.preset(preset),
        **{"prompt": "minimal", **options},
    )  # fmt: skip
    env = envs.GameVectorEnv(game, 1)
    env.reset(seed=0)
    return env


def test_a_hole_ends_the_walk_without_success():
    env = lone(FROZEN_LAKE, "4x4", ["FHG", "FFF"], 0)
    texts, rewards, terminated, truncated, infos = env.step([answer("Right")])
    assert texts == ("_XG\n___",)
    assert (rewards[0], terminated[0], truncated[0], infos["success"][0]) == (0, True, False, False)
    texts, rewards, terminated, _, infos = env.step([answer("Right")])
    assert texts == ("_XG\n___",)
    assert rewards[0] == infos["score"][0] == 0
    assert terminated[0]
    assert infos["num_actions"][0] == 1


def test_the_goal_ends_the_walk_with_success():
    env = lone(FROZEN_LAKE, "4x4", ["FFG"], 0, max_actions_per_turn=3)
    texts, rewards, terminated, _, infos = env.step([answer("Right", "Right", "Left")])
    assert texts == ("__√",)
    assert (rewards[0], terminated[0], infos["success"][0]) == (1, True, True)
    assert infos["num_actions"][0] == infos["optimal_length"][0] == 2


def test_a_cliff_puts_one_back_at_the_start():
    env = lone(CLIFF_WALKING, "standard", ["FFFF", "FCCG".replace("C", "H")], 4)
    for name, text, reward in (
        ("Up", "xooo\noCCT", -1),
        ("Left", "xooo\noCCT", -1),
        ("Right", "oxoo\noCCT", -1),
        ("Down", "oooo\nxCCT", -100),
        ("Right", "oooo\nxCCT", -100),
    ):
        texts, rewards, terminated, _, infos = env.step([answer(name)])
        assert texts == (text,)
        assert rewards.tolist() == [reward]
        assert not terminated[0]
    assert infos["score"].tolist() == [-203]
    assert not infos["action_is_effective"][0]


def test_an_edge_is_not_effective(name):
    env = lone(TASKS[name], DRAWN[name], ["FFG"], 0)
    _, _, _, _, infos = env.step([answer("Up")])
    assert infos["action_is_valid"][0]
    assert not infos["action_is_effective"][0]
    _, _, _, _, infos = env.step([answer("Right")])
    assert infos["action_is_effective"][0]


def test_invalid_replies_cost_what_the_preset_says(name):
    env = make(name)
    env.reset(seed=0)
    before = codes(env)
    junk = ["x" * 100_000, "<answer>" * 12_500, "\ud800\x00" * 50_000, answer("Up", "Down")]
    start = time.process_time()
    for _ in range(5):
        _, rewards, _, _, infos = env.step(junk)
    assert time.process_time() - start < 0.5
    np.testing.assert_array_equal(codes(env), before)
    preset = TASKS[name].presets[DRAWN[name]]
    assert rewards.tolist() == [preset.invalid_reward] * 4
    assert infos["format_penalty"] == pytest.approx([preset.format_penalty] * 4)
    assert infos["num_actions"].tolist() == [5] * 4


def test_one_seed_is_one_episode_in_every_row():
    env = make_frozen_lake("slippery-8x8", 5, prompt="minimal")
    first, _ = env.reset(seed=[9, 1, 9, 2, 9])
    assert first[0] == first[2] == first[4]
    rng = np.random.default_rng(0)
    for _ in range(20):
        reply = answer(rng.choice(["Up", "Down", "Left", "Right"]))
        texts, *_ = env.step([reply] * 5)
        assert texts[0] == texts[2] == texts[4]
    # The same map under another seed slips elsewhere.
    index = env.reset(seed=[9] * 5)[1]["start_index"]
    env.reset(seed=range(5), options={"start_indices": index})
    shown = [env.step([answer("Up")] * 5)[0] for _ in range(3)]
    assert any(len(set(texts)) > 1 for texts in shown)


def test_a_slip_depends_on_how_many_steps_were_taken_not_on_other_rows():
    env = make_frozen_lake("slippery-8x8", 2, prompt="minimal")
    one = make_frozen_lake("slippery-8x8", 1, prompt="minimal")
    env.reset(seed=4)
    one.reset(seed=[5])
    for turn in range(10):
        together, *_ = env.step(["?" if turn % 2 else answer("Left"), answer("Down")])
        alone, *_ = one.step([answer("Down")])
        assert together[1] == alone[0]


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("prompt", ["minimal", "default", "reference"])
def test_prompts_show_the_map(name, prompt, spaced, most):
    env = make(name, 2, prompt=prompt, spaced=spaced, max_actions_per_turn=most)
    observations, _ = env.reset(seed=0)
    for replies in (["?", answer("Up")], [answer("Down"), "?"]):
        drawn = boards_to_text(codes(env), TASKS[name].symbols, spaced=spaced)
        for text, board in zip(observations, drawn, strict=True):
            assert board in text
            assert text in env.single_observation_space
        observations = env.step(replies)[0]


def test_coordinates_prompt_lists_what_lies_where(name):
    env = make(name, 2, prompt="coordinates")
    observations, _ = env.reset(seed=0)
    for _ in range(3):
        expected = boards_to_coordinates(codes(env), TASKS[name].symbols, left_out=0)
        assert observations == expected
        assert all(text in env.single_observation_space for text in observations)
        observations = env.step([answer("Up"), "?"])[0]


@pytest.mark.parametrize("prompt", ["default", "reference"])
def test_prompts_speak_of_slippery_ground_only_where_it_is(name, prompt):
    for rate, said in ((1.0, False), (0.5, True)):
        env = make(name, 1, prompt=prompt, success_rate=rate)
        (text,), _ = env.reset(seed=0)
        assert ("slippery" in env.system_prompt + text) == said
        assert ("probability 0.5" in env.system_prompt + text) == said


def test_reference_prompt_tells_rules_turns_and_rewards():
    env = make("CliffWalking", 1, preset="paper", prompt="reference")
    (text,), _ = env.reset(seed=0)
    for part in ("C cliff", "Up, Right, Down, Left", "Turn 1", "200 actions left", "<answer>"):
        assert part in text
    (text,), *_ = env.step([answer("Right")])
    assert text.startswith("Reward:\n-100\n")
    (text,), *_ = env.step(["?"])
    assert text.startswith("Reward:\n-0.1\n")
    assert "Turn 3" in text


def test_rendering(name):
    task = TASKS[name]
    env = make(name, 3, render_mode="codes")
    env.reset(seed=1)
    frames = env.render()
    assert {(frame.dtype, frame.shape) for frame in frames} == {
        (np.dtype(np.uint8), frames[0].shape)
    }
    height, width = frames[0].shape
    for tile in (28, 56):
        shown = make(name, 3, render_mode="rgb_array", tile=tile)
        shown.reset(seed=1)
        pictures = shown.render()
        assert {picture.shape for picture in pictures} == {(tile * height, tile * width, 3)}
        # The codes are enough to draw the picture again.
        tiles = task.draw_tiles(tile)
        for picture, cells in zip(pictures, frames, strict=True):
            rows = [np.concatenate([tiles[code] for code in row], axis=1) for row in cells]
            np.testing.assert_array_equal(picture, np.concatenate(rows))
    written = make(name, 3, render_mode="ansi")
    assert written.reset(seed=1)[0] == written.render()


def test_images_can_be_the_observations(name):
    env = gymnasium.make(f"FreshPER/{name}-v0" if name == "CliffWalking" else
                         f"FreshPER/{name}4x4-v0", render_mode="rgb_array", tile=28)  # fmt: skip
    pixels = gymnasium.wrappers.AddRenderObservation(env, render_only=True)
    first, _ = pixels.reset(seed=0)
    assert first in pixels.observation_space
    moved = [pixels.step(answer(action))[0] for action in ("Up", "Down")]
    assert any((picture != first).any() for picture in moved)


def test_settings_of_a_preset_can_be_changed():
    env = make_frozen_lake("4x4", 64, horizon=3, min_path=5, success_rate=0.5)
    assert env.game.horizon == 3
    assert (env.reset(seed=0)[1]["optimal_length"] >= 5).all()
    holes = [
        np.mean(
            [text.count("O") for text in make_frozen_lake("8x8", 512, **change).reset(seed=0)[0]]
        )
        for change in ({"prompt": "minimal"}, {"prompt": "minimal", "plain": 0.95})
    ]
    assert holes[1] < 0.6 * holes[0]
    held_out = make_frozen_lake("4x4", 1, split="held_out")
    assert held_out.game.starts == 1024
    other = make_frozen_lake("4x4", 8, bank_seed=1).reset(seed=0)[0]
    assert other != make_frozen_lake("4x4", 8).reset(seed=0)[0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"preset": "9x9"}, ValueError, r"preset must be one of .*'4x4'.*, not '9x9'"),
        ({"split": "test"}, ValueError, r"split must be one of .*, not 'test'"),
        ({"prompt": "long"}, ValueError, "prompt must be one of .*, not 'long'"),
        ({"tag": "move"}, ValueError, "tag must be one of .*, not 'move'"),
        ({"horizon": 0}, ValueError, "horizon must be at least 1, not 0"),
        ({"horizon": 1.5}, TypeError, "horizon must be an integer"),
        ({"max_actions_per_turn": 0}, ValueError, "max_actions_per_turn must be at least 1"),
        ({"tile": 4}, ValueError, "tile must be at least 8 pixels, not 4"),
        ({"tile": 28.0}, TypeError, "tile must be an integer"),
        ({"success_rate": 1.5}, ValueError, "success_rate must be from 0 to 1, not 1.5"),
        ({"reward_scale": 0}, ValueError, "reward_scale must be positive, not 0"),
        ({"min_path": 11}, ValueError, r"max_path must be at least min_path \(11\), not 10"),
        ({"preset": "fixed-4x4", "min_path": 2}, ValueError, "'fixed-4x4' has one map"),
        ({"plain": 2.0}, ValueError, "plain must be from 0 to 1, not 2"),
        ({"preset": "fixed-8x8", "plain": 0.5}, ValueError, "'fixed-8x8' has one map"),
        ({"depth": 3}, TypeError, "depth"),
        ({"bank_seed": -1}, ValueError, "seed must not be negative"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        make("FrozenLake", **options)


def test_an_empty_set_is_refused():
    preset = FROZEN_LAKE.presets["4x4"]
    maps = build_bank(preset.source).train.take(np.arange(0))
    with pytest.raises(ValueError, match="maps must hold at least one"):
        make_game(FROZEN_LAKE, maps, preset)
