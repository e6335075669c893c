"""Questions and passages from tables of facts, so that the task runs with no download.

Every country and chemical element has a passage that states its facts; rivers, sights and
minerals have one that leads there. A one-hop question asks for a fact of an entity it names; a
two-hop question names a river, a sight or a mineral and asks for a fact of the country or
element that it leads to. No question has two right answers.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envs import checks
from envs.nq_search import tables
from envs.nq_search.questions import QuestionSet, Split
from envs.retrieval import Passage

HELD_OUT_SHARE = 5  # one entity in so many is held out


class FactQuestion(NamedTuple):
    """A question made from facts.

    question: its text.
    golds: the right answers, that which the passages write first.
    queries: what finds the passages that lead to the answer, in order; one for each hop.
    entity: whose fact is asked for.
    bridge: what the question names in its place; empty with one hop.
    """

    question: str
    golds: tuple[str, ...]
    queries: tuple[str, ...]
    entity: str
    bridge: str = ""


@dataclass(frozen=True)
class Facts:
    """An offline task: questions by split, how each is solved, and the passages of all."""

    split: Split
    solutions: dict[str, FactQuestion]
    passages: tuple[Passage, ...]


# For each property: the sentence that states it, what a query calls it, one-hop and two-hop
# questions. `{}` is where a name goes.
SENTENCES = {
    "continent": "It lies in {}.",
    "capital": "Its capital is {}.",
    "currency": "Its currency is the {}.",
    "language": "Its main language is {}.",
    "symbol": "Its symbol is {}.",
    "number": "Its atomic number is {}.",
    "period": "It stands in period {}.",
}
QUERIES = {
    "continent": "{} country lies in",
    "capital": "{} country capital",
    "currency": "{} country currency",
    "language": "{} country main language",
    "symbol": "{} element symbol",
    "number": "{} element atomic number",
    "period": "{} element period",
}
ONE_HOP = {
    "continent": ("On which continent does {} lie?", "Which continent is {} part of?"),
    "capital": (
        "What is the capital of {}?",
        "Which city is the capital of {}?",
        "Name the capital of {}.",
    ),
    "currency": ("What is the currency of {}?", "Which currency is used in {}?"),
    "language": ("What is the main language of {}?", "Which language do most people of {} use?"),
    "symbol": ("What is the chemical symbol of {}?", "Which symbol stands for {}?"),
    "number": ("What is the atomic number of {}?", "How many protons has an atom of {}?"),
    "period": ("In which period of the periodic table is {}?",),
}
BRIDGES = {
    "river": "the country where the river {} meets the sea",
    "sight": "the country that is home to {}",
    "mineral": "the element won from {}",
}
BRIDGE_SENTENCES = {
    "river": "{} is a river. It meets the sea in {}.",
    "sight": "{} is a sight. It is found in {}.",
    "mineral": "{} is a mineral. It is an ore of {}.",
}
BRIDGE_QUERIES = {
    "river": "{} river meets the sea",
    "sight": "{} sight found in",
    "mineral": "{} mineral ore",
}
COUNTRY, ELEMENT = "{} is a country.", "{} is a chemical element."
# Passages that share words with the questions and answer none.
DISTRACTORS = (
    ("Travel to {}", "Travellers to {} should ask an embassy about visas."),
    ("Map of {}", "A map of {} hangs in many schools."),
)


@dataclass(frozen=True)
class _Entity:
    """A country or element: its names, and its properties with all their names."""

    names: tuple[str, ...]
    opening: str
    properties: dict[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class _Bridge:
    """A river, sight or mineral, and the name of the entity that it leads to."""

    name: str
    kind: str
    leads_to: str


def make_facts() -> Facts:
    """Makes the questions and passages; every call gives the same.

    A question is held out if the entity whose fact it asks for is, so that no training question
    asks for the fact in other words, or names the entity: it stands in passages alone. Two-hop
    training questions use no held-out bridge either.
    """
    return _facts(_entities(), _bridges(), DISTRACTORS)


def _facts(
    entities: list[_Entity], bridges: list[_Bridge], distractors: Sequence[tuple[str, str]]
) -> Facts:
    train, held_out = [], []
    for made in _unique(_questions(entities, bridges)):
        if is_held_out(made.entity):
            held_out.append(made)
        elif not is_held_out(made.bridge):
            train.append(made)
    return Facts(
        Split(_question_set(train), _question_set(held_out)),
        {made.question: made for made in (*train, *held_out)},
        tuple(_passages(entities, bridges, distractors)),
    )


def is_held_out(entity: str) -> bool:
    """Whether questions about an entity are for evaluation; decided by a hash of its name."""
    digest = hashlib.blake2b(entity.encode(), digest_size=8).digest()
    return bool(entity) and int.from_bytes(digest, "little") % HELD_OUT_SHARE == 0


def one_hop(facts: Facts) -> Facts:
    """Returns the task without its two-hop questions; the passages stay."""

    def keep(questions: QuestionSet) -> QuestionSet:
        return questions.take(
            [
                place
                for place, question in enumerate(questions.questions)
                if not facts.solutions[question].bridge
            ]
        )

    return Facts(
        Split(keep(facts.split.train), keep(facts.split.held_out)),
        facts.solutions,
        facts.passages,
    )


def _question_set(made: list[FactQuestion]) -> QuestionSet:
    return QuestionSet(tuple(one.question for one in made), tuple(one.golds for one in made))


def _unique(made: list[FactQuestion]) -> list[FactQuestion]:
    counts = Counter(one.question for one in made)
    return [one for one in made if counts[one.question] == 1]


def _questions(entities: list[_Entity], bridges: list[_Bridge]) -> list[FactQuestion]:
    made = []
    by_name = {entity.name: entity for entity in entities}
    for entity in entities:
        for field, golds in entity.properties.items():
            query = QUERIES[field].format(entity.name)
            made += [
                FactQuestion(asked.format(entity.name), golds, (query,), entity.name)
                for asked in ONE_HOP[field]
            ]
    for bridge in bridges:
        entity = by_name[bridge.leads_to]
        who = BRIDGES[bridge.kind].format(bridge.name)
        first = BRIDGE_QUERIES[bridge.kind].format(bridge.name)
        for field, golds in entity.properties.items():
            queries = (first, QUERIES[field].format(entity.name))
            made += [
                FactQuestion(asked.format(who), golds, queries, entity.name, bridge.name)
                for asked in ONE_HOP[field]
            ]
    return made


def _passages(
    entities: list[_Entity], bridges: list[_Bridge], distractors: Sequence[tuple[str, str]]
) -> Iterator[Passage]:
    texts = []
    for entity in entities:
        stated = [SENTENCES[field].format(golds[0]) for field, golds in entity.properties.items()]
        texts.append((entity.name, " ".join([entity.opening.format(entity.name), *stated])))
        texts += [
            (title.format(entity.name), text.format(entity.name)) for title, text in distractors
        ]
    for bridge in bridges:
        text = BRIDGE_SENTENCES[bridge.kind].format(bridge.name, bridge.leads_to)
        texts.append((bridge.name, text))
    for number, (title, text) in enumerate(texts):
        yield Passage(str(number), f'"{title}"\n{text}')


def _entities() -> list[_Entity]:
    entities = []
    for names, capital, currency, continent, language, adjective in _rows(tables.COUNTRIES):
        money = _names(currency)
        golds = {
            "continent": _names(continent),
            "capital": _names(capital),
            "currency": money + tuple(f"{adjective} {name}" for name in money if adjective),
            "language": _names(language),
        }
        entities.append(_Entity(_names(names), COUNTRY, _known(golds)))
    for number, (names, symbol) in enumerate(_rows(tables.ELEMENTS), 1):
        period = 1 + sum(number > last for last in tables.NOBLE_GASES)
        golds = {"symbol": (symbol,), "number": (str(number),), "period": (str(period),)}
        entities.append(_Entity(_names(names), ELEMENT, golds))
    return entities


def _bridges() -> list[_Bridge]:
    kinds = {"river": tables.RIVERS, "sight": tables.SIGHTS, "mineral": tables.MINERALS}
    return [
        _Bridge(name, kind, leads_to)
        for kind, table in kinds.items()
        for name, leads_to in _rows(table)
    ]


def _known(golds: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {field: names for field, names in golds.items() if names}


_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


def make_invented(count: int = 3000, *, seed: int = 0) -> Facts:
    """Makes questions and passages about so many countries that do not exist.

    Names are strings of syllables, so that nothing but reading tells an answer.

    Raises:
        ValueError: count is not positive or more than there are names.
    """
    most = len(_SYLLABLES) ** 2
    if not 1 <= checks.integer("count", count) <= most:
        raise ValueError(f"count must be from 1 to {most}, not {count}")
    rng = np.random.default_rng(seed)

    def name(*lengths: int) -> str:
        drawn = rng.integers(len(_SYLLABLES), size=lengths[rng.integers(len(lengths))])
        return "".join(_SYLLABLES[place] for place in drawn)

    countries: dict[str, None] = {}
    while len(countries) < count:
        countries[name(2, 3).capitalize()] = None
    entities = [
        _Entity(
            (country,),
            COUNTRY,
            {
                "continent": (name(2).capitalize(),),
                "capital": (name(2, 3).capitalize(),),
                "currency": (name(2),),
                "language": (name(2, 3).capitalize(),),
            },
        )
        for country in countries
    ]
    return _facts(entities, [], ())


def _rows(table: str) -> list[list[str]]:
    return [line.split(";") for line in table.strip().splitlines()]


def _names(value: str) -> tuple[str, ...]:
    return tuple(value.split("/")) if value else ()
