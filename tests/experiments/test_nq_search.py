import json

import numpy as np
import pytest
import rich.console

from envs.nq_search import QuestionSet, Rules, make_game
from envs.retrieval import Hit, RetrievalError
from envs.vector_env import GameVectorEnv
from experiments.nq_search import EXPERIMENT
from experiments.options import OptionsError
from experiments.progress import Console
from experiments.runner import parse_options
from freshper_jax.rollout import (
    Episodes,
    ScriptedPolicy,
    collect,
    make_chat_renderer,
    make_word_tokenizer,
)
from tests.experiments.small import run_small

TASKS = ("invented", "one_hop", "facts")


def make_task(*flags):
    options = parse_options(EXPERIMENT, [f"--{flag}" for flag in flags])
    return options, EXPERIMENT.make_task(options, Console(rich.console.Console(quiet=True)))


@pytest.fixture(scope="module", params=TASKS)
def made(request):
    return make_task(f"task={request.param}", "env.searches=2", "env.horizon=4")


def test_demonstrations_are_solved_and_fit(made):
    _, task = made
    renderer = make_chat_renderer(make_word_tokenizer(task.words))
    shown = task.demonstrations(150, 6, 16)
    reply_tokens = 32
    width = task.max_tokens(reply_tokens, renderer)
    env = task.make_env("train", 16, renderer)
    policy = ScriptedPolicy(renderer, shown.replies, reply_tokens)
    trajectory, stats = collect(
        policy, env, renderer, shown.episodes, max_tokens=width, max_new_tokens=reply_tokens
    )
    assert stats.success.mean() > 0.9  # with one passage a search, a few miss theirs
    assert stats.valid.all()
    assert not stats.cut.any()
    assert trajectory.length.max() <= width
    # A tiny policy's tokenizer knows every word that is shown or said.
    assert renderer.tokenizer.unk_token_id not in trajectory.tokens


def test_retrieved_text_is_never_trained_on(made):
    _, task = made
    renderer = make_chat_renderer(make_word_tokenizer(task.words))
    decode = renderer.tokenizer.decode
    shown = task.demonstrations(24, 6, 8)
    policy = ScriptedPolicy(renderer, shown.replies, 32)
    env = task.make_env("train", 8, renderer)
    width = task.max_tokens(32, renderer)
    trajectory, _ = collect(
        policy, env, renderer, shown.episodes, max_tokens=width, max_new_tokens=32
    )
    for row, replies in enumerate(shown.replies):
        mine = trajectory.response_mask[row]
        length = trajectory.length[row]
        said = decode(trajectory.tokens[row, :length][mine[:length]])
        assert said == "".join(f"{reply}<|end|>" for reply in replies)
        read = decode(trajectory.tokens[row, :length][~mine[:length]])
        assert read.count("<information>Doc 1(Title:") == len(replies) - 1
        assert "<information>" not in said
        # Advantages and probabilities of what was read would be noise: they are zero.
        assert not trajectory.behaviour_log_probs[row][~mine].any()
        assert not trajectory.rewards[row][~mine].any()


class Outage:
    """Cannot be reached now and then; finds one passage otherwise."""

    def __init__(self, *fails):
        self.calls, self.fails = 0, fails

    def search(self, queries, topk):
        self.calls += 1
        if self.calls in self.fails:
            raise RetrievalError("out")
        return [[Hit("1", '"Iron"\nIron is a metal.', 1.0)] for _ in queries]


def test_an_outage_costs_no_episode():
    questions = QuestionSet(("what is iron?",), (("metal",),))
    words = ["Search, then answer.", "what is iron?", "Iron", " is a metal.", "metal", "ok"]
    words += ["<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>"]
    words += ['Doc 1(Title: "', '") ', "The search engine cannot be reached now."]
    renderer = make_chat_renderer(make_word_tokenizer(words))
    game = make_game(questions, Outage(1, 3), rules=Rules(style="minimal"))
    replies = [["<search>ok</search>", "<search>ok</search>", "<answer>metal</answer>"]] * 6
    with pytest.warns(RuntimeWarning, match="out"):
        trajectory, stats = collect(
            ScriptedPolicy(renderer, replies, 8),
            GameVectorEnv(game, 3),
            renderer,
            Episodes.of(np.arange(6)),
            max_tokens=128,
            max_new_tokens=8,
        )
    assert stats.success.all()
    assert stats.infos["search_failures"].tolist() == [1, 1, 1, 1, 1, 1]
    texts = [renderer.tokenizer.decode(row) for row in trajectory.tokens]
    assert all("cannot be reached now." in text and " is a metal." in text for text in texts)


@pytest.mark.parametrize("budget", [1, 7, 20])
def test_information_keeps_to_its_tokens(budget):
    _, task = make_task("task=one_hop", f"env.information-tokens={budget}", "env.topk=3")
    renderer = make_chat_renderer(make_word_tokenizer(task.words))
    env = task.make_env("train", 4, renderer)
    env.reset(seed=0)
    texts, *_ = env.step(["<search>Peru country capital</search>", "<search>iron</search>"] * 2)
    for text in texts:
        inside = text.removeprefix("<information>").removesuffix("</information>")
        count = len(renderer.tokenizer(inside, add_special_tokens=False)["input_ids"])
        assert 0 < count <= budget
        assert count == budget


def test_the_question_is_repeated_where_asked_for():
    _, task = make_task("task=one_hop", "env.repeat-question=True")
    env = task.make_env("train", 1, None)
    (question,), _ = env.reset(seed=0)
    assert env.step(["<search>Peru</search>"])[0][0].endswith(f"</information>\n{question}")


def test_splits_share_no_answer(made):
    _, task = made
    train = task.demonstrations(10_000, 6, 1).episodes
    check = task.check_episodes(50).options["start_indices"]
    assert not set(train.options["start_indices"].tolist()) & set(check.tolist())
    held_out = task.held_out_episodes(task.held_out_count).options["start_indices"]
    assert sorted(held_out.tolist()) == list(range(task.held_out_count))
    env = task.make_env("held_out", 64, None)
    shown, _ = env.reset(seed=0)
    asked, _ = task.make_env("train", 2000, None).reset(seed=0)
    assert not set(shown) & set(asked)


def test_training_episodes_are_a_function_of_seed_and_iteration(made):
    _, task = made
    first, again, other = (task.train_episodes(3, n, 64) for n in (5, 5, 6))
    assert isinstance(first, Episodes)
    np.testing.assert_array_equal(first.seeds, again.seeds)
    assert (first.seeds != other.seeds).any()


def test_references(made):
    _, task = made
    by_name = {reference.name: reference for reference in task.references(200)}
    assert by_name["random answer"].success < 0.05
    best = by_name["oracle, all searches"].success
    assert best > 0.9
    assert by_name["oracle, one search"].success <= best


@pytest.mark.slow
def test_a_small_run_reports_both_matches(tmp_path):
    flags = ("--max-tokens=144", "--iterations=2")
    path, printed = run_small(tmp_path / "run", *flags, experiment=EXPERIMENT)
    results = json.loads((path / "results.json").read_text())
    assert {"exact_match", "lenient_match"} <= set(results["freshper, sampled"])
    assert "lenient match" in printed
    assert "oracle" in printed
    assert "held_out/exact_match" in (path / "metrics.jsonl").read_text()


@pytest.fixture
def files(tmp_path):
    questions = "".join(
        json.dumps({"question": f"what is thing {n}?", "answer": [f"thing {n}"]}) + "\n"
        for n in range(64)
    )
    passages = "".join(
        json.dumps({"id": n, "contents": f'"Thing {n}"\nIt is thing {n}.'}) + "\n"
        for n in range(64)
    )
    (tmp_path / "q.jsonl").write_text(questions)
    (tmp_path / "c.jsonl").write_text(passages)
    return tmp_path


def test_questions_and_passages_of_files(files):
    flags = ("preset=qwen2.5-0.5b", "task=file", f"env.data={files}/q.jsonl")
    _, task = make_task(*flags, f"env.corpus={files}/c.jsonl")
    assert 0 < task.held_out_count < 32
    assert [reference.name for reference in task.references(99)] == [
        "random answer",
        "oracle, one search",
    ]
    assert task.references(99)[1].success > 0.9
    env = task.make_env("held_out", 2, None)
    assert "<search>" in env.system_prompt
    shown, _ = env.reset(options={"start_indices": np.array([0, 1])})
    assert all(text.startswith("Question: what is thing") for text in shown)
    with pytest.raises(OptionsError, match=r"warm-start\.traces: got 9, expected 0"):
        task.demonstrations(9, 6, 2)
    lines = (files / "q.jsonl").read_text().splitlines()
    (files / "some.jsonl").write_text("\n".join(lines[:10]) + "\n")
    held_out = (f"env.held-out={files}/some.jsonl", f"env.corpus={files}/c.jsonl")
    _, apart = make_task(*flags, *held_out, "env.rules=paper")
    assert apart.held_out_count == 10
    assert apart.identity != task.identity
    # What is held out is not trained on, though it is in the file for training too.
    trained = apart.train_episodes(0, 0, 54).options["start_indices"]
    assert sorted(trained.tolist()) == list(range(54))


BAD = {
    "--task": ["task=hard"],
    "--preset": ["task=file", "env.data=q", "env.corpus=c"],
    "--env.data": ["preset=qwen2.5-0.5b", "task=file"],
    "--env.data: got q": ["env.data=q"],
    "--env.url": ["env.retriever=http"],
    "--env.url: got http://x": ["env.url=http://x"],
    "--env.corpus or index": ["env.retriever=http", "env.url=http://x", "env.index=i"],
    "--env.index": ["env.corpus=c", "env.index=i"],
    "--env.corpus": ["preset=qwen2.5-0.5b", "task=file", "env.data=q"],
    "--prompt": ["prompt=loud"],
    "--env: topk": ["env.topk=0"],
    "--env.failures": ["env.failures=-1"],
    "--env: .*No such file": ["env.corpus=/nowhere/c.jsonl"],
    "--env: /nowhere: there is no index": ["env.index=/nowhere"],
    "--env: url must be like": ["env.retriever=http", "env.url=x"],
}


@pytest.mark.parametrize("message", BAD)
def test_flags_that_cannot_work_are_named(message):
    with pytest.raises(OptionsError, match=message):
        make_task(*BAD[message])


@pytest.mark.parametrize("rules", ["default", "search-r1", "paper"])
def test_rows_hold_the_longest_episode(rules):
    _, task = make_task("preset=qwen2.5-0.5b", f"env.rules={rules}")
    words = {*task.words, "Searches left: ", "Replies left: ", "Question: "}
    renderer = make_chat_renderer(make_word_tokenizer(sorted(words)))
    replies = ["<search>Peru country</search>"] * 4 + ["nothing"] * 5 + ["<answer>x</answer>"]
    _, stats = collect(
        ScriptedPolicy(renderer, [replies] * 8, 12),
        task.make_env("train", 4, renderer),
        renderer,
        Episodes.of(np.arange(8)),
        max_tokens=task.max_tokens(12, renderer),
        max_new_tokens=12,
    )
    assert not stats.cut.any()
    assert (stats.turns == (5 if rules == "search-r1" else 10)).all()
