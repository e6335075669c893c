"""Small runs of the experiments on mathematical problems, and how they take their options."""

import json
import re

import numpy as np
import pytest
import rich.console

from envs import Game
from experiments import aime, gsm8k
from experiments.game_task import make_game_task
from experiments.math_problems import pieces
from experiments.options import OptionsError
from experiments.progress import Console
from experiments.runner import parse_options
from freshper_jax.rollout import ScriptedPolicy, collect, make_chat_renderer, make_word_tokenizer
from tests.experiments.small import run_small


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRESHPER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def gsm8k_file(tmp_path):
    rows = [
        {
            "question": f"How many are {n} and 1?",
            "answer": f"<<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}",
        }
        for n in range(300)
    ]
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make(experiment, *flags):
    options = parse_options(experiment, list(flags))
    console = Console(rich.console.Console(quiet=True))
    return options, experiment.make_task(options, console)


EXPERIMENTS = {"gsm8k": gsm8k.EXPERIMENT, "aime": aime.EXPERIMENT}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_task_made_offline(name):
    options, task = make(EXPERIMENTS[name])
    assert task.held_out_count >= options.evaluation.final_episodes
    renderer = make_chat_renderer(make_word_tokenizer(task.words))
    shown = task.demonstrations(64, 1, 32)
    policy = ScriptedPolicy(renderer, shown.replies, options.max_new_tokens)
    width = task.max_tokens(options.max_new_tokens, renderer)
    _, episodes = collect(
        policy, shown.env, renderer, shown.episodes, max_tokens=width,
        max_new_tokens=options.max_new_tokens,
    )  # fmt: skip
    assert episodes.success.all()
    assert not episodes.cut.any()
    # A tiny policy knows every word that it reads and writes.
    unknown = renderer.tokenizer.unk_token_id
    for split in ("train", "held_out"):
        env = task.make_env(split, 200, renderer)
        texts, _ = env.reset(options={"start_indices": np.arange(200)})
        texts = [*texts, *env.step(["#### 0"] * 200)[0], *env.step([""] * 200)[0]]
        assert not any(unknown in ids for ids in renderer.open(env.system_prompt, texts))
    # No problem that is cloned is checked on.
    everything = task.demonstrations(10**6, 1, 2).episodes.seeds
    assert not set(everything.tolist()) & set(task.check_episodes(256).seeds.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_small_run(name, tmp_path):
    path, printed = run_small(
        tmp_path / "run", "--iterations=2", "--max-tokens=128", "--env.max-attempts=2",
        experiment=EXPERIMENTS[name],
    )  # fmt: skip
    results = json.loads((path / "results.json").read_text())
    assert {"random answers", "commonest answer", "right answers"} < set(results)
    assert results["right answers"]["success"] == 1
    assert 0 <= results["random answers"]["success"] < 0.2
    assert "unreadable" in printed
    assert (path / "episodes.md").stat().st_size > 100


def test_data_of_ones_own(gsm8k_file):
    flags = ("--task=gsm8k", f"--env.data={gsm8k_file}", "--preset=qwen2.5-0.5b")
    options, task = make(gsm8k.EXPERIMENT, *flags)
    assert options.max_new_tokens == 256
    assert 15 < task.held_out_count < 70
    assert "Reason step by step" in task.make_env("train", 1, None).system_prompt
    shown = task.demonstrations(3, 1, 1)
    assert re.fullmatch(r"(\d+)\n#### \1", shown.replies[0][0])
    # The demonstrations that are too long for a reply are left out.
    _, task = make(gsm8k.EXPERIMENT, *flags, "--max-new-tokens=2")
    with pytest.raises(OptionsError, match=r"--warm-start\.traces: the task has no demonstrations"):
        task.demonstrations(3, 1, 1)


def test_a_tiny_policy_is_not_told_a_whole_language(tmp_path):
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [a + b + c for a in letters for b in letters for c in letters][:5000]
    rows = [{"question": " ".join(words[n::50]), "answer": f"#### {n}"} for n in range(50)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--task=gsm8k", f"--env.data={tmp_path / 'long.jsonl'}")
    with pytest.raises(OptionsError, match=r"--preset: got tiny, expected a pretrained one: .* 50"):
        make(gsm8k.EXPERIMENT, *flags)
    assert make(gsm8k.EXPERIMENT, *flags, "--preset=qwen2.5-0.5b")[1].held_out_count > 0


def test_identity_tells_tasks_apart(gsm8k_file):
    flags = ("--task=gsm8k", f"--env.data={gsm8k_file}")
    variants = ((), ("--env.max-attempts=2",), ("--env.reward=halving",), ("--env.checker=math",))
    found = {make(gsm8k.EXPERIMENT, *flags, *more)[1].identity for more in variants}
    assert len(found) == 4


@pytest.mark.parametrize(
    ("experiment", "flags", "message"),
    [
        (gsm8k, ["--task=simple"], "--task: got 'simple', expected one of arithmetic, sums"),
        (aime, ["--task=arithmetic"], "--task: got 'arithmetic', expected one of offline"),
        (gsm8k, ["--task=gsm8k"], "--env.data: data: task 'gsm8k' needs a folder, files"),
        (aime, ["--task=aime", "--env.data=no.csv"], "--env.data: no.csv: .*No such file"),
        (gsm8k, ["--env.data=x"], "--env.data: data: task 'arithmetic' makes its own problems"),
        (gsm8k, ["--env.max-attempts=0"], "--env.max-attempts: got 0, expected an integer"),
        (gsm8k, ["--env.checker=aime"], "--env.checker: got aime, which reads boxes alone"),
        (gsm8k, ["--prompt=rude"], "--prompt: got 'rude', expected one of minimal, default"),
    ],
)
def test_what_cannot_work_is_refused(experiment, flags, message):
    with pytest.raises(OptionsError, match=message):
        make(experiment.EXPERIMENT, *flags)


def test_pieces_are_the_text():
    for text in ("7+5=12\n#### 12", r"Find 3^2, then \boxed{9}.", "naïve_x  42"):
        assert "".join(pieces(text)) == text


def test_an_episode_of_several_turns_is_measured_whole():
    """`max_tokens` of a game whose episodes take three turns, counted by hand."""
    none = np.zeros(1, bool)

    def play(state, replies, active, left):
        from envs import Turn

        ok = np.ones(len(active), bool)
        return state, Turn(ok * 0.0, ok, ok, ok.astype(np.int32))

    import dataclasses

    @dataclasses.dataclass(frozen=True)
    class State:
        ended: np.ndarray

    game = Game(
        starts=16, horizon=3, system_prompt="S",
        begin=lambda starts, seeds: State(np.resize(none, len(starts))),
        play=play, show=lambda state, counters, left: ["ab"] * len(state.ended),
        terminated=lambda state: state.ended, success=lambda state: state.ended,
    )  # fmt: skip
    task = make_game_task("toy", game, game, words="ab")
    renderer = make_chat_renderer(make_word_tokenizer(task.words))
    opening = len(renderer.open("S", ["ab"])[0])
    turn = len(renderer.follow(["ab"], [False])[0])
    assert (opening, turn) == (8, 6)  # with two borders a message, and the prompt of a reply
    assert task.max_tokens(5, renderer) == 8 + 5 + 2 * (6 + 5)
    with pytest.raises(OptionsError, match="no demonstrations"):
        task.demonstrations(1, 1, 1)
    assert task.references(3) == ()
