import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs import GameVectorEnv
from envs.answers import Verdict, make_checker
from envs.math_problems import DataError, ProblemSet, load_game, load_task, make_game, make_math

PROBLEMS = ProblemSet(
    ("What is 1 + 1?", "What is 2 + 2?", "What is 3 + 3?"), ("2", "4", "6"), ("",) * 3
)


def make(num_envs=3, *, checker="gsm8k", **options):
    env = GameVectorEnv(make_game(PROBLEMS, make_checker(checker), **options), num_envs)
    env.reset(options={"start_indices": np.arange(num_envs) % 3})
    return env


def test_one_turn():
    env = make()
    _, rewards, terminated, truncated, infos = env.step(["#### 2", "#### 5", "no idea"])
    assert rewards.tolist() == [1, 0, 0]
    assert terminated.all()  # there was one try
    assert not truncated.any()
    assert infos["success"].tolist() == [True, False, False]
    assert infos["action_is_valid"].tolist() == [True, True, False]
    assert infos["no_answer"].tolist() == [False, False, True]
    assert infos["verdict"].tolist() == [Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER]
    np.testing.assert_allclose(infos["format_penalty"], [0, 0, -0.15])


@pytest.mark.parametrize(("reward", "paid"), [("success", [1, 1, 1]), ("halving", [1, 0.5, 0.25])])
def test_three_tries(reward, paid):
    env = make(max_attempts=3, reward=reward)
    replies = [["#### 2", "#### 0", "?"], ["#### 0", "#### 4", "#### 7"], ["", "", "#### 6"]]
    for turn, texts in enumerate(replies):
        _, rewards, terminated, truncated, infos = env.step(texts)
        expected = np.zeros(3)
        expected[turn] = paid[turn]
        np.testing.assert_allclose(rewards, expected)
        assert terminated.tolist() == [row <= turn for row in range(3)]
        assert infos["success"].tolist() == [row <= turn for row in range(3)]
        assert not truncated.any()
    np.testing.assert_allclose(infos["score"], paid)
    assert infos["num_actions"].tolist() == [1, 2, 3]
    assert infos["success"].all()


def test_tries_run_out():
    env = make(max_attempts=2)
    env.step(["#### 0"] * 3)
    _, rewards, terminated, truncated, infos = env.step(["#### 0", "#### 4", "?"])
    assert rewards.tolist() == [0, 1, 0]
    assert terminated.all()
    assert not truncated.any()
    before = infos["verdict"].tolist()
    _, rewards, _, _, infos = env.step(["#### 2"] * 3)  # after the end nothing counts
    assert rewards.tolist() == [0, 0, 0]
    assert infos["verdict"].tolist() == before
    assert infos["success"].tolist() == [False, True, False]


def test_what_the_model_is_shown():
    env = make(max_attempts=3)
    shown, _ = env.reset(options={"start_indices": np.arange(3)})
    assert [text.split("\n")[0] for text in shown] == list(PROBLEMS.questions)
    assert all('"####"' in text for text in shown)
    shown = env.step(["#### 0", "no idea", "#### x"])[0]
    assert shown[0].startswith("That is not right.")
    assert shown[1].startswith("I found no final answer.")
    assert shown[2].startswith("I could not read the final answer.")
    reference = make(max_attempts=3, prompt="reference").step(["#### 0", "", "#### x"])[0]
    assert set(reference) == {"Incorrect. Please think again."}
    minimal = make(prompt="minimal")
    assert minimal.reset(options={"start_indices": np.arange(3)})[0] == PROBLEMS.questions
    boxed = make(checker="aime", form="boxed")
    assert r"\boxed{42}" in boxed.system_prompt
    assert boxed.step([r"\boxed{2}", "#### 4", r"\boxed{06}"])[1].tolist() == [1, 0, 1]


def test_rows_of_a_turn_are_checked_together_and_only_those_that_play():
    calls = []

    def checker(golds, replies):
        calls.append((list(golds), list(replies)))
        return np.array(
            [gold in reply for gold, reply in zip(golds, replies, strict=True)], np.int8
        )

    env = GameVectorEnv(make_game(PROBLEMS, checker, max_attempts=3), 3)
    env.reset(options={"start_indices": [0, 1, 2]})
    env.step(["2", "x", "x"])
    env.step(["y", "4", "y"])
    assert calls == [(["2", "4", "6"], ["2", "x", "x"]), (["4", "6"], ["4", "y"])]


def test_rows_reset_apart():
    env = make(max_attempts=2)
    env.step(["#### 0", "#### 4", "#### 0"])
    mask = np.array([True, False, False])
    shown, infos = env.reset(options={"reset_mask": mask, "start_indices": [2, 0, 0]})
    assert shown[0].startswith("What is 3 + 3?")
    assert infos["verdict"].tolist() == [-1, 1, 0]
    assert infos["success"].tolist() == [False, True, False]
    assert infos["start_index"].tolist() == [2, 1, 2]


def test_bytes_that_are_no_text_and_long_replies_are_wrong_and_no_more():
    hostile = ["\udcff\udc80 #### \ud800", "#### " + "9" * 100_000, "{" * 100_000]
    _, rewards, terminated, _, _ = make().step(hostile)
    assert rewards.tolist() == [0, 0, 0]
    assert terminated.all()


def test_bad_arguments():
    for options, message in (
        ({"max_attempts": 0}, "max_attempts must be at least 1, not 0"),
        ({"form": "spoken"}, r"form must be one of .*, not 'spoken'"),
        ({"reward": "gold"}, r"reward must be one of .*, not 'gold'"),
        ({"prompt": "rude"}, r"prompt must be one of .*, not 'rude'"),
        ({"format_penalty": np.nan}, "format_penalty must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**options)
    with pytest.raises(ValueError, match="problems must hold at least one problem"):
        make_game(PROBLEMS.take([]), make_checker("gsm8k"))
    with pytest.raises(ValueError, match=r"task must be one of .*, not 'algebra'"):
        load_task("algebra")
    with pytest.raises(DataError, match="task 'gsm8k' needs a folder, files, or the name"):
        load_task("gsm8k")
    with pytest.raises(DataError, match="task 'arithmetic' makes its own problems"):
        load_task("arithmetic", data="x")


@pytest.mark.parametrize("name", ["Arithmetic", "Competition"])
@pytest.mark.filterwarnings("ignore:.*render_modes.*")
def test_gymnasium_accepts_the_environments(name):
    env = gymnasium.make(f"FreshPER/{name}-v0")
    check_env(env.unwrapped, skip_render_check=True)
    text, info = env.reset(seed=3)
    assert env.reset(seed=3)[0] == text
    assert info["verdict"] == -1


def test_tasks_with_data_are_registered_too(tmp_path):
    rows = [f'{{"question": "How many are {n}?", "answer": "#### {n}"}}\n' for n in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(rows))
    env = gymnasium.make("FreshPER/GSM8K-v0", data=tmp_path / "a.jsonl")
    assert env.reset(seed=0)[0].startswith("How many are")
    assert "FreshPER/AIME-v0" in gymnasium.registry
    rows = gymnasium.make_vec(
        "FreshPER/Arithmetic-v0", num_envs=4, vectorization_mode="vector_entry_point"
    )
    assert len(rows.reset(seed=0)[0]) == 4


def test_one_seed_is_one_problem_in_every_row():
    env, other = make_math(num_envs=3), make_math(num_envs=2)
    first = env.reset(seed=[7, 8, 9])[0]
    assert other.reset(seed=[9, 7])[0] == (first[2], first[0])


def test_the_math_checker_needs_no_pool_for_numbers():
    game = load_game("arithmetic", checker="math")
    env: envs.TextVectorEnv = GameVectorEnv(game, 2)
    env.reset(seed=0)
    assert env.step(["#### 0", r"\boxed{1 2}"])[4]["undecided"].tolist() == [False, True]


def test_there_is_nothing_to_render():
    with pytest.raises(ValueError, match=r"render_mode must be one of \(None,\), not 'ansi'"):
        gymnasium.make("FreshPER/Arithmetic-v0", render_mode="ansi").reset()
