import dataclasses
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs  # noqa: F401 - registers the environments
from envs.nq_search import PRESETS, QuestionSet, Rules, make_game, make_nq_search, trim_words
from envs.retrieval import Hit, HttpRetriever, RetrievalError
from envs.vector_env import GameVectorEnv
from tests.envs.retrieval.conftest import answering, echo

QUESTIONS = QuestionSet(("Where is Lima?", "Who is Ann?"), (("Peru", "in Peru"), ("a nurse",)))
THINK, JUNK = "<think>hm</think>", "nothing"


class Library:
    """Finds for a query one passage that repeats it; keeps what it was asked."""

    def __init__(self, fails=()):
        self.calls = []
        self.fails = set(fails)

    def search(self, queries, topk):
        self.calls.append((list(queries), topk))
        if len(self.calls) in self.fails:
            raise RetrievalError("gone")
        return [
            [] if query == "nothing" else [Hit("1", f'"Title"\non {query}\nsaid', 1.0)]
            for query in queries
        ]


def play(*turns, rules=None, library=None, rows=1, start=0, **settings):
    """Plays turns of one reply, or one reply a row; returns the results of every step."""
    rules = Rules(style="minimal") if rules is None else rules
    library = library or Library()
    env = GameVectorEnv(make_game(QUESTIONS, library, rules=rules, **settings), rows)
    env.reset(options={"start_indices": np.full(rows, start)})
    steps = []
    for turn in turns:
        texts, rewards, ended, cut, infos = env.step(
            [turn] * rows if isinstance(turn, str) else turn
        )
        steps.append((texts, rewards.tolist(), ended.tolist(), cut.tolist(), infos))
    return steps


def search(query):
    return f"<search>{query}</search>"


def answer(text):
    return f"<answer>{text}</answer>"


@pytest.mark.parametrize(
    ("text", "reward", "lenient"),
    [
        ("Peru", 1.0, True),
        ("the peru.", 1.0, True),
        ("In Peru", 1.0, True),
        ("Peru, I think", 0.0, True),
        (".", 0.0, True),
        ("", 0.0, True),
        ("Chile", 0.0, False),
        ("\ud800", 0.0, False),
    ],
)
def test_an_answer_ends_the_episode_and_is_paid_for_an_exact_match(text, reward, lenient):
    ((_, rewards, ended, cut, infos),) = play(answer(text))
    assert (rewards, ended, cut) == ([reward], [True], [False])
    assert infos["success"].tolist() == infos["exact_match"].tolist() == [reward == 1.0]
    assert infos["lenient_match"].tolist() == [lenient]
    assert infos["answered"].tolist() == [True]
    assert infos["action_is_valid"].tolist() == infos["action_is_effective"].tolist() == [True]


def test_a_search_shows_what_was_found():
    library = Library()
    ((texts, rewards, ended, cut, infos),) = play(search(" where  is it "), library=library)
    assert texts == ('<information>Doc 1(Title: "Title") on where is it said</information>',)
    assert (rewards, ended, cut) == ([0.0], [False], [False])
    assert library.calls == [(["where is it"], 3)]
    assert infos["searches"].tolist() == [1]
    assert infos["action_is_effective"].tolist() == [True]


def test_a_search_that_finds_nothing_says_so():
    ((texts, _, _, _, infos),) = play(search("nothing"))
    assert texts == ("<information>Nothing was found.</information>",)
    assert infos["action_is_valid"].tolist() == [True]
    assert infos["action_is_effective"].tolist() == [False]


def test_thinking_goes_on_without_penalty_and_junk_with_one():
    first, second, third = play(THINK, JUNK, answer("Peru"))
    for name, values in (
        ("action_is_valid", (True, False, True)),
        ("action_is_effective", (False, False, True)),
        ("num_actions", (1, 2, 3)),
        ("format_penalty", (0.0, -0.15, 0.0)),
    ):
        found = [step[4][name].tolist()[0] for step in (first, second, third)]
        assert found == pytest.approx(values)
    assert first[1] == second[1] == [0.0]
    assert third[1] == [1.0]
    assert [step[2] for step in (first, second, third)] == [[False], [False], [True]]


def test_an_episode_takes_so_many_replies():
    steps = play(*[THINK] * 11, answer("Peru"))
    assert [step[3][0] for step in steps] == [False] * 9 + [True] * 3
    assert steps[-1][1:3] == ([0.0], [False])
    assert not steps[-1][4]["answered"][0]


def test_a_search_too_many_is_refused():
    library = Library()
    steps = play(*[search(str(n)) for n in range(6)], answer("Peru"), library=library)
    assert len(library.calls) == 5
    texts, rewards, ended, _, infos = steps[5]
    assert texts == ("No searches left.",)
    assert (rewards, ended) == ([0.0], [False])
    assert infos["searches"].tolist() == [5]
    assert infos["action_is_valid"].tolist() == [True]
    assert infos["action_is_effective"].tolist() == [False]
    assert steps[6][1] == [1.0]


def test_or_ends_the_episode_in_the_papers_way():
    rules = dataclasses.replace(PRESETS["paper"], style="minimal")
    steps = play(*[search(str(n)) for n in range(6)], answer("Peru"), rules=rules)
    assert [step[2][0] for step in steps] == [False] * 5 + [True] * 2
    assert sum(step[1][0] for step in steps) == 0
    assert not steps[-1][4]["success"][0]


def test_presets():
    assert PRESETS["default"] == Rules(searches=5, horizon=10, topk=3, format_penalty=-0.15)
    assert (PRESETS["search-r1"].searches, PRESETS["search-r1"].horizon) == (4, 5)
    both = search("x") + answer("Peru")
    assert play(both, rules=PRESETS["default"])[0][2] == [False]
    ((_, rewards, ended, _, _),) = play(both, rules=PRESETS["paper"])
    assert (rewards, ended) == ([1.0], [True])
    ((_, _, _, _, infos),) = play(JUNK, rules=PRESETS["search-r1"])
    assert infos["format_penalty"].tolist() == [0.0]


def test_one_turn_of_all_rows_is_one_call():
    library = Library()
    steps = play(
        [search("a"), THINK, search("c"), answer("Peru")],
        [search("d"), search("b"), JUNK, search("ended")],
        library=library,
        rows=4,
    )
    assert [queries for queries, _ in library.calls] == [["a", "c"], ["d", "b"]]
    texts = steps[1][0]
    assert ["on d said" in texts[0], "on b said" in texts[1], texts[2]] == [True, True, "Invalid."]
    assert steps[1][4]["searches"].tolist() == [2, 1, 1, 0]
    assert steps[1][2] == [False, False, False, True]


def test_over_http_a_turn_of_all_rows_is_one_request():
    with answering(echo) as (url, bodies), HttpRetriever(url) as remote:
        steps = play([search(str(n)) for n in range(40)], rows=40, library=remote)
    assert len(bodies) == 1
    assert bodies[0][1]["queries"] == [str(n) for n in range(40)]
    assert [f'(Title: "T") {n}<' in text for n, text in enumerate(steps[0][0])] == [True] * 40


def test_no_row_searching_is_no_call():
    library = Library()
    play(THINK, JUNK, answer("x"), search("late"), library=library)
    assert library.calls == []


def test_rows_are_apart():
    alone = [play(*script) for script in ([search("a"), answer("Peru")], [JUNK, search("b")])]
    both = play([search("a"), JUNK], [answer("Peru"), search("b")], rows=2)
    for row in range(2):
        for turn in range(2):
            for part in range(4):
                assert both[turn][part][row] == alone[row][turn][part][0]
            for name, values in both[turn][4].items():
                assert values[row] == alone[row][turn][4][name][0]


def test_a_failing_search_is_told_and_counted():
    library = Library(fails=[1, 2])
    with pytest.warns(RuntimeWarning, match="gone"):
        steps = play([search("a"), THINK], search("b"), search("c"), library=library, rows=2)
    assert steps[0][0][0] == "<information>The search engine cannot be reached now.</information>"
    assert steps[2][4]["search_failures"].tolist() == [2, 1]
    assert steps[2][4]["searches"].tolist() == [3, 2]
    assert "on c said" in steps[2][0][0]
    assert steps[1][4]["action_is_valid"].tolist() == [True, True]


def test_or_ends_the_run_after_so_many():
    with pytest.warns(RuntimeWarning, match="gone"), pytest.raises(RetrievalError, match="gone"):
        play(search("a"), search("b"), library=Library(fails=[1, 2]), failures=1)
    with pytest.raises(RetrievalError, match="gone"):
        play(search("a"), library=Library(fails=[1]), failures=0)


def test_information_is_cut_for_all_rows_together():
    calls = []

    def trim(texts, budget):
        calls.append((list(texts), budget))
        return [text[:20] for text in texts]

    rules = Rules(style="minimal", information_tokens=7)
    steps = play([search("a"), search("b"), THINK], rules=rules, rows=3, trim=trim)
    assert [len(texts) for texts, _ in calls] == [2]
    assert calls[0][1] == 7
    assert steps[0][0][0] == f"<information>{calls[0][0][0][:20]}</information>"


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(1, "one"), (2, "one  two"), (3, "one  two\nthree"), (9, "one  two\nthree")],
)
def test_words_are_cut(budget, expected):
    assert trim_words(["one  two\nthree ", ""], budget) == [expected, ""]


def test_queries_are_cut_and_cleaned_of_tags():
    library = Library()
    play(search("x" * 5000), search("a <think>b"), library=library)
    assert [queries for queries, _ in library.calls] == [["x" * 1000], ["a b"]]


def test_what_is_shown_in_full():
    rules = Rules(repeat_question=True)
    env = GameVectorEnv(make_game(QUESTIONS, Library(), rules=rules), 1)
    (opening,), _ = env.reset(options={"start_indices": np.array([1])})
    assert opening == "Question: Who is Ann?"
    (text,), *_ = env.step([search("Ann")])
    assert text == (
        '<information>Doc 1(Title: "Title") on Ann said</information>\n'
        "Searches left: 4. Replies left: 9.\nQuestion: Who is Ann?"
    )
    for word in ("<think>", "<search>", "<information>", "<answer>", "5 searches", "10 replies"):
        assert word in env.system_prompt


def test_the_last_turn_is_announced():
    steps = play(*[THINK] * 9, rules=Rules())
    assert "answer now" in steps[8][0][0]
    assert "answer now" not in steps[7][0][0]


@pytest.mark.parametrize("reply", ["x" * 100_000, "<search>" * 12_500, "\ud800\udfff" * 50_000])
def test_long_junk_is_cheap(reply):
    start = time.process_time()
    steps = play(reply, rows=16)
    assert not steps[0][4]["action_is_valid"].any()
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"searches": -1}, "searches must not be negative"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"topk": 0}, "topk must be at least 1"),
        ({"information_tokens": 0}, "information_tokens must be at least 1"),
        ({"overdraft": "fine"}, "overdraft must be one of"),
        ({"style": "loud"}, "style must be one of"),
        ({"right_reward": float("nan")}, "right_reward must be finite"),
    ],
)
def test_bad_rules_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Rules(**settings)


def test_bad_games_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one question"):
        make_game(QuestionSet((), ()), Library())
    with pytest.raises(ValueError, match="failures must not be negative"):
        make_game(QUESTIONS, Library(), failures=-1)
    with pytest.raises(ValueError, match="preset must be one of"):
        make_nq_search("loose")
    with pytest.raises(ValueError, match="retriever must be given"):
        make_nq_search(data=tmp_path / "q.jsonl")


def test_gymnasium_knows_it():
    env = gymnasium.make("FreshPER/NQSearch-v0", split="held_out", style="minimal")
    check_env(env.unwrapped, skip_render_check=True)
    question, _ = env.reset(seed=5)
    assert question == env.reset(seed=5)[0]
    text, reward, ended, _, infos = env.step(search(question))
    assert text.startswith("<information>Doc 1(Title:")
    assert (reward, ended, infos["searches"]) == (0.0, False, 1)
    vector = gymnasium.make_vec(
        "FreshPER/NQSearch-v0", num_envs=3, split="held_out", style="minimal"
    )
    assert vector.reset(seed=5)[0][0] == question


def test_a_file_of_questions_is_split(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text("".join(f'{{"question": "q {n}?", "answer": ["{n}"]}}\n' for n in range(60)))
    shown = {
        split: set(
            make_nq_search(num_envs=200, data=path, retriever=Library(), split=split).reset(seed=0)[
                0
            ]
        )
        for split in ("train", "held_out")
    }
    assert len(shown["held_out"]) >= 1
    assert not shown["train"] & shown["held_out"]


def test_there_is_nothing_to_render():
    with pytest.raises(ValueError, match=r"render_mode must be one of \(None,\), not 'ansi'"):
        gymnasium.make("FreshPER/NQSearch-v0", render_mode="ansi").reset()
