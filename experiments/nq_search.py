"""Train an agent to search and answer: `python -m experiments.nq_search`."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envs.nq_search import (
    PRESETS,
    FactQuestion,
    Facts,
    QuestionSet,
    Rules,
    make_facts,
    make_game,
    make_invented,
    one_hop,
    oracle_reference,
    question_hash,
    random_reference,
    read_questions,
    separate_questions,
    split_questions,
)
from envs.nq_search.prompts import STYLES, opening_text
from envs.nq_search.vocabulary import phrase_words
from envs.retrieval import (
    HttpRetriever,
    RetrievalError,
    Retriever,
    make_corpus,
    make_retriever,
    open_index,
    read_corpus,
)
from envs.vector_env import GameVectorEnv
from experiments.experiment import Experiment
from experiments.options import Options, OptionsError
from experiments.progress import Console
from experiments.task import Demonstrations, Reference, Split, Task
from experiments.trim import make_token_trim
from freshper_jax.rollout import ChatRenderer, Episodes

__all__ = ["EXPERIMENT", "SearchOptions", "main", "make_task"]

_OFFLINE: Mapping[str, Callable[[], Facts]] = {
    "invented": make_invented,
    "one_hop": lambda: one_hop(make_facts()),
    "facts": make_facts,
}
_FILE = "file"  # the task whose questions are --env.data's
# Flags that change a rule of the same name.
_CHANGES = ("searches", "horizon", "topk", "information_tokens", "repeat_question")
_FRAME = 16  # tokens that stand around what a search found, at most
_MEASURED = 64  # questions, the longest ones, on which the length of an episode is found


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """What is asked, what is searched, and how an episode goes."""

    data: Path | None = None
    """Questions of --task file: .jsonl or .parquet as FlashRAG, NQ-open or Search-R1 have them."""
    held_out: Path | None = None
    """Held-out questions of --task file; by default an eighth of --env.data, by their content."""
    retriever: Literal["bm25", "tantivy", "http"] = "bm25"
    """What searches: an index within this process, or the server at --env.url."""
    corpus: Path | None = None
    """Passages, .jsonl, to be indexed in memory; by default those of the offline tasks."""
    index: Path | None = None
    """An index that python -m envs.retrieval made, in place of --env.corpus."""
    url: str | None = None
    """A server as python -m envs.retrieval_server or Search-R1's, for --env.retriever http."""
    failures: int = 8
    """Searches in a row that may fail; the model is told of each, the next one ends the run."""
    rules: Literal["default", "search-r1", "paper"] = "default"
    """How an episode goes; the flags below change single rules."""
    searches: int | None = None
    """Searches an episode may make."""
    horizon: int | None = None
    """Replies an episode may take."""
    topk: int | None = None
    """Passages that a search brings."""
    information_tokens: int | None = None
    """Tokens to which the passages of a search are cut."""
    repeat_question: bool | None = None
    """Whether every observation ends with the question."""


@dataclasses.dataclass(frozen=True)
class _Questions:
    """The questions of a run in a fixed, shuffled order; of offline tasks, their facts too."""

    train: QuestionSet
    held_out: QuestionSet
    facts: Facts | None = None

    def split(self, name: Split) -> QuestionSet:
        return self.train if name == "train" else self.held_out

    def solution(self, question: str) -> FactQuestion:
        assert self.facts is not None
        return self.facts.solutions[question]


def make_task(options: Options[SearchOptions], console: Console) -> Task:
    """Make the task of the questions, the passages and the rules that the flags name.

    Raises:
      OptionsError: a flag does not fit the others, or a file or an index cannot be read.
    """
    settings = options.env
    rules = _rules(options)
    _check(options)
    try:
        questions = _read_questions(options, console)
        retriever = _open_retriever(settings, questions.facts, console)
    except (OSError, ImportError, ValueError, RetrievalError) as error:
        raise OptionsError(f"--env: {error}") from error
    train, held_out = questions.train, questions.held_out
    kept = max(len(train) // 4, 1)  # training questions that are not demonstrated

    def play(indices: np.ndarray) -> Episodes:
        return Episodes.of(indices, start_indices=indices)

    def make_env(split: Split, rows: int, renderer: ChatRenderer | None) -> GameVectorEnv:
        trim = {} if renderer is None else {"trim": make_token_trim(renderer.tokenizer)}
        game = make_game(
            questions.split(split), retriever, rules=rules, failures=settings.failures, **trim
        )
        return GameVectorEnv(game, rows)

    def train_episodes(seed: int, iteration: int, count: int) -> Episodes:
        rng = np.random.default_rng([seed, iteration])
        return play(rng.choice(len(train), count, replace=count > len(train)))

    def demonstrations(count: int, longest: int, rows: int) -> Demonstrations:
        if questions.facts is None:
            raise OptionsError(
                f"--warm-start.traces: got {count}, expected 0 with --task file, whose questions "
                "come without a way to their answers"
            )
        solved = [questions.solution(question) for question in train.questions[:-kept]]
        chosen = [n for n, one in enumerate(solved) if len(one.queries) < longest][:count]
        replies = [
            [
                *(f"<search>{query}</search>" for query in solved[n].queries),
                f"<answer>{solved[n].golds[0]}</answer>",
            ]
            for n in chosen
        ]
        return Demonstrations(make_env("train", rows, None), play(np.array(chosen)), replies)

    def references(count: int) -> tuple[Reference, ...]:
        asked = held_out.take(range(min(count, len(held_out))))
        guess = random_reference(asked, [golds[0] for golds in train.golds])
        reached = {
            "random answer": guess.exact,
            "oracle, one search": oracle_reference(asked, retriever, topk=rules.topk),
        }
        if questions.facts is not None:
            reached["oracle, all searches"] = oracle_reference(
                asked,
                retriever,
                topk=rules.topk,
                queries=lambda question: questions.solution(question).queries,
            )
        return tuple(
            Reference(name, share, share * rules.right_reward) for name, share in reached.items()
        )

    return Task(
        name=f"nq_search-{options.task}",
        identity=_digest(settings, rules, questions),
        max_tokens=functools.partial(_max_tokens, questions, rules, make_env),
        held_out_count=len(held_out),
        make_env=make_env,
        words=() if questions.facts is None else phrase_words(questions.facts),
        train_episodes=train_episodes,
        held_out_episodes=lambda count: play(np.arange(count)),
        demonstrations=demonstrations,
        check_episodes=lambda count: play(len(train) - 1 - np.arange(count) % kept),
        references=references,
        stop_strings=("</search>", "</answer>"),
        metrics=("exact_match", "lenient_match"),
    )


def _check(options: Options[SearchOptions]) -> None:
    """Refuse flags that do not go together."""
    settings, task = options.env, options.task

    def expect(good: bool, flag: str, value: object, expected: str) -> None:
        if not good:
            raise OptionsError(f"--{flag}: got {value}, expected {expected}")

    names = (*_OFFLINE, _FILE)
    expect(settings.failures >= 0, "env.failures", settings.failures, "an integer of at least 0")
    expect(task in names, "task", task, f"one of {', '.join(names)}")
    if task == _FILE:
        expect(settings.data is not None, "env.data", None, "a file with --task file")
        expect(options.preset != "tiny", "preset", "tiny", "a pretrained one with --task file")
    else:
        for flag in ("data", "held_out"):
            value = getattr(settings, flag)
            expect(
                value is None, f"env.{flag.replace('_', '-')}", value, "None but with --task file"
            )
    remote = settings.retriever == "http"
    expect(
        (settings.url is not None) == remote,
        "env.url",
        settings.url,
        "a URL with --env.retriever http, None with any other",
    )
    passages = [name for name in ("corpus", "index") if getattr(settings, name) is not None]
    expect(not (remote and passages), "env.corpus or index", passages, "none with --env.url")
    expect(len(passages) < 2, "env.index", settings.index, "None with --env.corpus")
    expect(
        remote or bool(passages) or task != _FILE,
        "env.corpus",
        None,
        "a file with --task file, or --env.index or --env.url in its place",
    )


def _rules(options: Options[SearchOptions]) -> Rules:
    style = options.prompt or ("minimal" if options.preset == "tiny" else "default")
    if style not in STYLES:
        raise OptionsError(f"--prompt: got {style!r}, expected one of {', '.join(STYLES)}")
    changes = {
        name: value for name in _CHANGES if (value := getattr(options.env, name)) is not None
    }
    try:
        return dataclasses.replace(PRESETS[options.env.rules], style=style, **changes)
    except ValueError as error:
        raise OptionsError(f"--env: {error}") from error


def _read_questions(options: Options[SearchOptions], console: Console) -> _Questions:
    settings = options.env
    if options.task != _FILE:
        facts = _OFFLINE[options.task]()
        return _Questions(_shuffled(facts.split.train), _shuffled(facts.split.held_out), facts)
    assert settings.data is not None, "it is checked before"
    read = read_questions(settings.data)
    if settings.held_out is None:
        split = split_questions(read)
    else:
        split = separate_questions(read, read_questions(settings.held_out))
        if dropped := len(read) - len(split.train):
            console.say(f"Questions left out of training, since they are held out: {dropped}")
    return _Questions(_shuffled(split.train), _shuffled(split.held_out))


def _open_retriever(settings: SearchOptions, facts: Facts | None, console: Console) -> Retriever:
    if settings.retriever == "http":
        # A server that is not there is told now.
        with HttpRetriever(str(settings.url), retries=0, timeout=10.0) as probe:
            probe.search(["a first question"], 1)
        return HttpRetriever(str(settings.url))
    if settings.index is not None:
        return open_index(settings.index)
    if settings.corpus is None:
        assert facts is not None, "it is checked before"
        corpus = make_corpus(facts.passages)
    else:
        with console.counting(f"Reading {settings.corpus}") as progress:
            corpus = read_corpus(settings.corpus, progress)
    return make_retriever(corpus, settings.retriever)


def _shuffled(questions: QuestionSet) -> QuestionSet:
    """Return the questions in an order that has nothing to do with what they ask."""
    hashes = [question_hash(question) for question in questions.questions]
    return questions.take(np.argsort(np.array(hashes, np.uint64), kind="stable"))


def _max_tokens(
    questions: _Questions,
    rules: Rules,
    make_env: Callable[..., GameVectorEnv],
    reply_tokens: int,
    renderer: ChatRenderer,
) -> int:
    """Return the tokens of an episode that makes all its searches and uses up its replies."""
    env = make_env("train", 1, renderer)
    asked = (*questions.train.questions, *questions.held_out.questions)
    longest = sorted(asked, key=len)[-_MEASURED:]
    shown = [opening_text(rules.style, question) for question in longest]
    opening = max(map(len, renderer.open(env.system_prompt, shown)))
    env.reset(seed=0)
    told = [*env.step([""])[0], *env.step(["<think></think>"])[0]]
    turn = max(map(len, renderer.follow(told, [False] * len(told))))
    if rules.repeat_question:
        turn += max(map(len, renderer.follow(shown, [False] * len(shown))))
    searches = min(rules.searches, rules.horizon - 1)
    informed = searches * (rules.information_tokens + _FRAME)
    return opening + (rules.horizon - 1) * turn + informed + rules.horizon * reply_tokens


def _digest(settings: SearchOptions, rules: Rules, questions: _Questions) -> str:
    """Return a digest of what is asked, searched and shown."""
    digest = hashlib.sha256(repr((settings, rules)).encode())
    for part in (questions.train, questions.held_out):
        digest.update(repr((part.questions, part.golds)).encode("utf-8", "replace"))
    return digest.hexdigest()


_DEFAULTS: dict[str, dict[str, Any]] = {
    "all": {"task": "facts"},
    # What a policy without any words of its own learns in minutes: to copy a name into a query,
    # and what follows the right word of the passage into an answer.
    "tiny": {
        "task": "invented",
        "iterations": 100,
        "max_new_tokens": 12,
        "env": {"searches": 1, "horizon": 3, "topk": 1, "information_tokens": 64},
        "warm_start": {"traces": 16_000, "target": 0.4},
        "evaluation": {"final_episodes": 256},
    },
    "pretrained": {
        "max_new_tokens": 128,
        "max_tokens": 4096,
        "evaluation": {"episodes": 64, "final_episodes": 256},
    },
    "smollm2-135m": {
        "max_new_tokens": 48,
        "max_tokens": 1024,
        "env": {"topk": 2, "information_tokens": 160, "searches": 2, "horizon": 4},
        "evaluation": {"episodes": 8, "final_episodes": 16},
    },
}

EXPERIMENT = Experiment("nq_search", make_task, env=SearchOptions, defaults=_DEFAULTS)


def main() -> None:
    """Run the experiment that the command line describes."""
    from experiments.runner import run_from_command_line

    run_from_command_line(EXPERIMENT)


if __name__ == "__main__":
    main()
