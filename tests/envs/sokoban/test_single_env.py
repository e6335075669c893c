import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs  # noqa: F401 - registers the environments
from envs import GameVectorEnv
from envs.sokoban import render_text, solve

IDS = {"simple": "SokobanSimple", "hard": "SokobanHard", "long": "SokobanLong"}


@pytest.fixture
def make(cache_dir, presets):
    def make_env(name="simple", **options):
        given = {"cache_dir": cache_dir, "preset": presets[name], **options}
        return gymnasium.make(f"FreshPER/{IDS[name]}-v0", **given)

    return make_env


@pytest.mark.parametrize("action_mode", ["text", "discrete"])
@pytest.mark.parametrize("name", IDS)
def test_passes_gymnasiums_checker(make, name, action_mode):
    check_env(make(name, action_mode=action_mode).unwrapped)  # a warning would be an error


@pytest.mark.parametrize("prompt", ["minimal", "coordinates", "default", "reference"])
def test_every_prompt_passes_the_checker(make, prompt):
    check_env(make(prompt=prompt, spaced=True).unwrapped)


def test_ids_carry_their_presets():
    for name, title in IDS.items():
        spec = gymnasium.spec(f"FreshPER/{title}-v0")
        assert spec.kwargs == {"preset": name}
        assert spec.nondeterministic is False


def test_an_episode_in_both_action_modes(make, banks):
    index = int(np.argmax(banks["simple"].train.optimal_lengths == 6))
    plan = solve(banks["simple"].train.cells[index])
    names = ("Up", "Down", "Left", "Right")
    outcomes = []
    for mode in ("text", "discrete"):
        env = make(action_mode=mode, prompt="minimal")
        _, info = env.reset(options={"start_index": index})
        assert info["optimal_length"] == 6
        steps = []
        for action in plan:
            given = action if mode == "discrete" else f"<answer>{names[action]}</answer>"
            steps.append(env.step(given))
        outcomes.append(steps)
    assert outcomes[0] == outcomes[1]
    text, reward, terminated, truncated, info = outcomes[0][-1]
    assert isinstance(text, str)
    assert isinstance(reward, float)
    assert reward == pytest.approx(10.9)
    assert terminated is True
    assert truncated is False
    assert info["success"] is True
    assert info["num_actions"] == 6


def test_truncation(make):
    env = make(horizon=2)
    env.reset(seed=0)
    assert env.step("?")[2:4] == (False, False)
    assert env.step("?")[2:4] == (False, True)


def test_rendering(make):
    for mode in ("rgb_array", "ansi"):
        env = make("hard", render_mode=mode)
        env.reset(seed=0)
        frame = env.render()
        if mode == "ansi":
            assert (frame,) == render_text(env.unwrapped.rows.state.boards.cells)
        else:
            assert frame.shape == (128, 128, 3)


def test_spaces(make):
    assert make(action_mode="discrete").action_space == gymnasium.spaces.Discrete(4)
    env = make(action_mode="discrete")
    text, _ = env.reset(seed=0)
    assert text in env.observation_space
    assert env.observation_space.max_length == 41  # the board alone by default
    assert "Right" in make().unwrapped.system_prompt


def test_make_vec_gives_the_vector_environment(cache_dir, presets):
    env = gymnasium.make_vec(
        "FreshPER/SokobanSimple-v0", num_envs=3, preset=presets["simple"], cache_dir=cache_dir
    )
    assert isinstance(env, GameVectorEnv)
    assert len(env.reset(seed=0)[0]) == 3


def test_bad_arguments_are_refused(make):
    with pytest.raises(ValueError, match=r"action_mode must be one of .*, not 'keys'"):
        make(action_mode="keys")
    with pytest.raises(ValueError, match=r"preset must be one of .*, not 'huge'"):
        make(preset="huge")
    env = make(action_mode="discrete")
    env.reset(seed=0)
    for action in (4, -1, 1.5, "Up"):
        with pytest.raises(ValueError, match="action must be an integer from 0 to 3"):
            env.step(action)
    with pytest.raises(ValueError, match=r"options must be start_index alone, not \['level'\]"):
        env.reset(options={"level": 3})
    with pytest.raises(ValueError, match="start_indices must be in 0 to"):
        env.reset(options={"start_index": 10**6})
    text = make()
    text.reset(seed=0)
    with pytest.raises(TypeError, match="must be a string, not int"):
        text.step(3)


def test_importing_the_environments_does_not_import_jax():
    code = "import sys, envs, envs.sokoban; print([m for m in sys.modules if m.startswith('jax')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "[]\n"
