"""The engine on a game whose every number is known: countdown from 3, one a valid reply."""

from dataclasses import dataclass

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from envs import Game, GameEnv, GameVectorEnv, Turn
from envs.spaces import FreeText


@dataclass(frozen=True)
class Count:
    left: np.ndarray
    word: np.ndarray
    seed: np.ndarray


def countdown(**changes):
    def begin(indices, seeds):
        words = np.array([f"wörd {index}" for index in indices], object)
        return Count(left=3 + indices, word=words, seed=seeds)

    def play(state, replies, active, left):
        said = np.array([reply == "down" for reply in replies]) & active
        # What a game says of rows that have ended must not matter.
        everywhere = np.ones(len(replies), bool)
        turn = Turn(np.ones(len(replies), np.float32), said, everywhere, np.where(said, 2, 1))
        return Count(state.left - said, state.word, state.seed), turn

    parts = {
        "starts": 2,
        "horizon": 7,
        "system_prompt": "Say down.",
        "begin": begin,
        "play": play,
        "show": lambda state, counters, left: [
            f"{word}: {n} to go, turn {t}, {rest} left"
            for word, n, t, rest in zip(state.word, state.left, counters.turns, left, strict=True)
        ],
        "terminated": lambda state: state.left == 0,
        "success": lambda state: state.left == 0,
        "infos": lambda state: {"seed": state.seed.copy()},
        "format_penalty": -0.5,
        "action_replies": ("down", "up"),
    }
    return Game(**(parts | changes))


def test_rows_are_counted_apart():
    env = GameVectorEnv(countdown(), 2)
    shown, infos = env.reset(seed=4, options={"start_indices": [0, 1]})
    assert shown == ("wörd 0: 3 to go, turn 0, 7 left", "wörd 1: 4 to go, turn 0, 7 left")
    assert infos["seed"].tolist() == [4, 5]
    env.step(["down", "what"])
    shown, rewards, _, _, infos = env.step(["down", "down"])
    assert shown == ("wörd 0: 1 to go, turn 2, 3 left", "wörd 1: 3 to go, turn 2, 4 left")
    assert rewards.tolist() == [1, 1]
    assert infos["score"].tolist() == [2, 2]
    _, _, terminated, truncated, infos = env.step(["down", "what"])
    assert (terminated.tolist(), truncated.tolist()) == ([True, False], [False, False])
    np.testing.assert_allclose(infos["format_penalty"], [0, -0.5])
    shown, rewards, terminated, truncated, infos = env.step(["down", "down"])
    assert rewards.tolist() == [0, 1]
    assert infos["num_actions"].tolist() == [6, 6]
    assert infos["action_is_valid"].tolist() == [False, True]
    assert infos["action_is_effective"].tolist() == [False, True]
    _, rewards, terminated, truncated, infos = env.step(["what", "what"])
    assert (terminated.tolist(), truncated.tolist()) == ([True, False], [False, True])
    assert infos["success"].tolist() == [True, False]
    assert infos["score"].tolist() == [3, 5]
    assert infos["start_index"].tolist() == [0, 1]


def test_text_survives_a_reset_of_other_rows():
    env = GameVectorEnv(countdown(), 2)
    env.reset(seed=0, options={"start_indices": [0, 1]})
    env.step(["down", "down"])
    mask = np.array([True, False])
    shown, infos = env.reset(seed=9, options={"start_indices": [1, 0], "reset_mask": mask})
    assert shown == ("wörd 1: 4 to go, turn 0, 7 left", "wörd 1: 3 to go, turn 1, 5 left")
    assert infos["seed"].tolist() == [9, 1]
    assert infos["num_actions"].tolist() == [0, 2]


def test_the_state_waits_for_a_reset():
    with pytest.raises(ResetNeeded, match="call reset"):
        _ = GameVectorEnv(countdown(), 1).state


@pytest.mark.parametrize("action_mode", ["text", "discrete"])
def test_single_face_passes_gymnasiums_checker(action_mode):
    check_env(GameEnv(countdown(), action_mode=action_mode), skip_render_check=True)


def test_discrete_actions_stand_for_replies():
    env = GameEnv(countdown(), action_mode="discrete")
    env.reset(seed=0, options={"start_index": 0})
    assert env.step(1)[4]["action_is_valid"] is False
    assert env.step(0)[4]["action_is_valid"] is True


def test_a_game_without_discrete_actions_has_text_alone():
    with pytest.raises(ValueError, match=r"action_mode must be one of \('text',\)"):
        GameEnv(countdown(action_replies=()), action_mode="discrete")


def test_free_text_is_any_string_up_to_a_length():
    space = FreeText(5, min_length=1)
    assert "åß√" in space
    assert "" not in space
    assert "123456" not in space
    assert 3 not in space
    assert space.sample() in space
