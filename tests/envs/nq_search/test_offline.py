import hashlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from envs.nq_search import (
    exact_match,
    make_facts,
    make_invented,
    normalise,
    offline_retriever,
    one_hop,
    oracle_reference,
)
from envs.nq_search.offline import is_held_out
from envs.nq_search.tables import COUNTRIES, ELEMENTS, MINERALS, NOBLE_GASES, RIVERS, SIGHTS
from envs.retrieval import make_corpus, make_retriever


@pytest.fixture(scope="module")
def facts():
    return make_facts()


def rows(table):
    return [line.split(";") for line in table.strip().splitlines()]


def test_tables_are_whole_and_lead_somewhere():
    countries, elements = rows(COUNTRIES), rows(ELEMENTS)
    assert len(countries) >= 60
    assert len(elements) == 92
    assert {len(row) for row in countries} == {6}
    assert {len(row) for row in elements} == {2}
    named = {row[0].split("/")[0] for row in countries}
    assert {row[1] for row in rows(RIVERS) + rows(SIGHTS)} <= named
    assert {row[1] for row in rows(MINERALS)} <= {row[0].split("/")[0] for row in elements}
    for table in (COUNTRIES, ELEMENTS, RIVERS, SIGHTS, MINERALS):
        names = [name for row in rows(table) for name in row[0].split("/")]
        assert len(names) == len(set(names))
    for column in (1, -1):
        values = [v for row in countries if row[column] for v in row[column].split("/")]
        assert len(values) == len(set(values))
    symbols = [row[1] for row in elements]
    assert len(symbols) == len(set(symbols))


def test_elements_stand_where_they_do():
    by_symbol = {symbol: n for n, (_, symbol) in enumerate(rows(ELEMENTS), 1)}
    known = {"H": 1, "C": 6, "O": 8, "Na": 11, "Fe": 26, "Br": 35, "Ag": 47, "I": 53, "Gd": 64}
    known |= {"W": 74, "Au": 79, "Hg": 80, "Pb": 82, "U": 92}
    assert {symbol: by_symbol[symbol] for symbol in known} == known
    assert [rows(ELEMENTS)[n - 1][0] for n in NOBLE_GASES] == [
        "helium", "neon", "argon", "krypton", "xenon", "radon",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("question", "answer", "hops"),
    [
        ("What is the capital of Peru?", "Lima", 1),
        ("What is the currency of Japan?", "Japanese yen", 1),
        ("What is the chemical symbol of tungsten?", "W", 1),
        ("How many protons has an atom of gold?", "79", 1),
        ("In which period of the periodic table is iron?", "4", 1),
        ("On which continent does Kenya lie?", "Africa", 1),
        ("Which language do most people of Brazil use?", "Portuguese", 1),
        ("Name the capital of the country where the river Vistula meets the sea.", "Warsaw", 2),
        ("Which currency is used in the country that is home to Mount Fuji?", "yen", 2),
        ("What is the chemical symbol of the element won from galena?", "Pb", 2),
    ],
)
def test_known_answers(facts, question, answer, hops):
    for part in (facts.split.train, facts.split.held_out):
        if question in part.questions:
            assert exact_match(answer, part.golds[part.questions.index(question)])
    assert exact_match(answer, facts.solutions[question].golds)
    assert len(facts.solutions[question].queries) == hops


def test_every_question_has_one_answer(facts):
    texts = [*facts.split.train.questions, *facts.split.held_out.questions]
    assert Counter(map(normalise, texts)).most_common(1)[0][1] == 1
    for part in (facts.split.train, facts.split.held_out):
        for question, golds in zip(part.questions, part.golds, strict=True):
            assert golds == facts.solutions[question].golds
            assert all(normalise(gold) for gold in golds)


def test_no_entity_is_in_both_splits(facts):
    train = {facts.solutions[q].entity for q in facts.split.train.questions}
    bridges = {facts.solutions[q].bridge for q in facts.split.train.questions}
    held_out = {facts.solutions[q].entity for q in facts.split.held_out.questions}
    assert not (train | bridges) & held_out
    for question in facts.split.train.questions:
        words = re.findall(r"\w+", question)
        assert not {name for name in held_out if name in words}
    assert 0.1 < len(held_out) / len(train | held_out) < 0.3
    assert len(facts.split.held_out) > 200


def test_the_split_is_a_hash_of_the_name():
    digest = hashlib.blake2b(b"Peru", digest_size=8).digest()
    assert is_held_out("Peru") == (int.from_bytes(digest, "little") % 5 == 0)


def test_a_perfect_reader_answers_all_of_them(facts):
    for part in (facts.split.train, facts.split.held_out):
        solved = oracle_reference(
            part, offline_retriever(), queries=lambda q: facts.solutions[q].queries
        )
        assert solved == 1.0
        one_search = oracle_reference(part, offline_retriever())
        assert 0.5 < one_search < 0.8  # two hops take two searches


def test_one_hop_questions_name_what_they_ask_about(facts):
    part = one_hop(facts).split.train
    assert 0 < len(part) < len(facts.split.train)
    assert all(facts.solutions[question].entity in question for question in part.questions)


def test_every_process_makes_the_same(facts):
    code = (
        "import hashlib; from envs.nq_search import make_facts; "
        "print(hashlib.sha256(repr(make_facts()).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        check=True,
        text=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert done.stdout.strip() == hashlib.sha256(repr(facts).encode()).hexdigest()


def test_invented_countries_are_read_about_and_nowhere_else():
    facts = make_invented(300, seed=3)
    titles = [passage.contents.split("\n")[0].strip('"') for passage in facts.passages]
    assert len(titles) == len(set(titles)) == 300
    held_out = {facts.solutions[q].entity for q in facts.split.held_out.questions}
    train = {facts.solutions[q].entity for q in facts.split.train.questions}
    assert not train & held_out
    assert train | held_out == set(titles)
    searched = make_retriever(make_corpus(facts.passages))
    assert oracle_reference(facts.split.held_out, searched, topk=1) > 0.99
    assert make_invented(300, seed=3) == facts
    assert make_invented(300, seed=4) != facts


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_so_many_cannot_be_invented(count):
    with pytest.raises(ValueError, match="count must be from 1 to"):
        make_invented(count)
