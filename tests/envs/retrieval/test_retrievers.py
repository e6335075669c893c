import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from envs.retrieval import (
    RETRIEVERS,
    Passage,
    RetrievalError,
    Tolerant,
    build_bm25,
    build_index,
    make_corpus,
    make_retriever,
    open_index,
)
from envs.retrieval.bm25 import best_places

STRANGE = ['"', "a:b", "C++ AND (", "NOT", "x" * 100_000, "", "   ", "\ud800\udfff", "*", "the of"]


@pytest.fixture(params=RETRIEVERS)
def kind(request):
    return request.param


@pytest.fixture(params=["memory", "folder"])
def retriever(request, kind, corpus, tmp_path):
    if request.param == "memory":
        return make_retriever(corpus, kind)
    build_index(corpus, tmp_path / "deep" / "index", kind)
    return open_index(tmp_path / "deep" / "index")


def test_each_query_has_its_own_hits(retriever):
    found = retriever.search(["capital Peru", "gold metal", "Zürich", "lamas"], 2)
    assert [[hit.id for hit in hits] for hits in found] == [["c"], ["b", "a"], ["ü"], ["7"]]
    assert found[0][0].contents == '"Peru"\nPeru is a country. Its capital is Lima.'
    assert found[1][0].score > found[1][1].score > 0


def test_what_shares_no_word_is_no_hit(retriever):
    assert retriever.search(["submarine", "iron"], 5)[0] == []
    assert retriever.search([], 5) == []


def test_more_hits_than_passages_may_be_asked_for(retriever):
    (hits,) = retriever.search(["iron gold peru lamas lake metal"], 50)
    assert {hit.id for hit in hits} == {"a", "b", "c", "7", "ü"}


@pytest.mark.parametrize("query", STRANGE, ids=range(len(STRANGE)))
def test_any_text_is_a_query(retriever, query):
    found = retriever.search([query, "peru"], 3)
    assert [hit.id for hit in found[1]] == ["c"]


def test_words_in_upper_case_are_no_operators(retriever):
    (hits,) = retriever.search(["iron NOT Peru"], 5)
    assert {hit.id for hit in hits} >= {"a", "c"}


@pytest.mark.parametrize("topk", [0, -1])
def test_hits_wanted_are_positive(retriever, topk):
    with pytest.raises(ValueError, match="topk must be at least 1"):
        retriever.search(["iron"], topk)


def lucene_scores(texts, query, k1=1.5, b=0.75):
    """BM25 by its formula, on words parted by blanks."""
    documents = [Counter(text.split()) for text in texts]
    mean = sum(map(len, (text.split() for text in texts))) / len(texts)
    scores = np.zeros(len(texts))
    for word in query.split():
        holders = sum(word in document for document in documents)
        idf = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
        for place, document in enumerate(documents):
            length = sum(document.values())
            bound = k1 * (1 - b + b * length / mean)
            scores[place] += idf * document[word] / (document[word] + bound) if holders else 0
    return scores


WORDS = st.lists(st.sampled_from(["kato", "moru", "sevi", "linda", "q"]), min_size=1, max_size=8)


@hypothesis.given(st.lists(WORDS, min_size=1, max_size=8), WORDS)
@hypothesis.settings(max_examples=60)
def test_bm25_is_the_formula(documents, query):
    texts, asked = [" ".join(words) for words in documents], " ".join(query)
    corpus = make_corpus(Passage(str(n), text) for n, text in enumerate(texts))
    (hits,) = build_bm25(corpus, stems=False).search([asked], len(texts))
    expected = lucene_scores(texts, asked)
    found = {int(hit.id): hit.score for hit in hits}
    assert set(found) == set(np.flatnonzero(expected > 0).tolist())
    for place, score in found.items():
        assert score == pytest.approx(expected[place], rel=1e-4)
    assert [hit.score for hit in hits] == sorted(found.values(), reverse=True)


@hypothesis.given(st.lists(st.integers(-2, 4), min_size=1, max_size=30), st.integers(1, 35))
def test_best_places_are_those_of_a_stable_sort(values, count):
    scores = np.array(values, np.float32)
    ranked = sorted(range(len(values)), key=lambda place: (-values[place], place))
    expected = [place for place in ranked if values[place] > 0][:count]
    assert best_places(scores, count).tolist() == expected


def test_stems_join_forms_of_a_word(corpus):
    assert build_bm25(corpus, stems=True).search(["metals"], 3)[0]
    assert build_bm25(corpus, stems=False).search(["metals"], 3)[0] == []


def test_a_corpus_without_words_is_refused():
    with pytest.raises(ValueError, match="no passage holds a word"):
        build_bm25(make_corpus([Passage("1", "!?")]))


def test_an_unknown_retriever_is_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match="retriever must be one of"):
        make_retriever(corpus, "dense")
    with pytest.raises(ValueError, match="retriever must be one of"):
        build_index(corpus, tmp_path / "i", "dense")


def test_an_index_replaces_nothing(corpus, tmp_path):
    build_index(corpus, tmp_path / "i")
    with pytest.raises(FileExistsError, match="there already"):
        build_index(corpus, tmp_path / "i")
    (tmp_path / "empty").mkdir()
    build_index(corpus, tmp_path / "empty")
    assert open_index(tmp_path / "empty").search(["peru"], 1)[0][0].id == "c"


def test_a_build_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="no passage holds a word"):
        build_index(make_corpus([Passage("1", "!?")]), tmp_path / "i")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_or_damaged_index_is_an_error(kind, corpus, tmp_path):
    with pytest.raises(RetrievalError, match="there is no index"):
        open_index(tmp_path / "none")
    build_index(corpus, tmp_path / "i", kind)
    for path in (tmp_path / "i" / "index").iterdir():
        path.write_bytes(b"")
    with pytest.raises(RetrievalError, match="cannot be read"):
        open_index(tmp_path / "i")
    (tmp_path / "i" / "index.json").write_text("{}")
    with pytest.raises(RetrievalError, match="cannot be read"):
        open_index(tmp_path / "i")


def test_bm25_does_not_wake_jax():
    code = (
        "import sys; from envs.retrieval import *; "
        "r = make_retriever(make_corpus([Passage('1', 'iron')])); "
        "assert r.search(['iron'], 1)[0][0].id == '1'; assert 'jax' not in sys.modules; "
        "import jax"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)


class Flaky:
    def __init__(self, outcomes):
        self.outcomes = iter(outcomes)

    def search(self, queries, topk):
        if not next(self.outcomes):
            raise RetrievalError("down")
        return [[] for _ in queries]


def test_failures_in_a_row_are_borne_up_to_a_limit():
    tolerant = Tolerant(Flaky([False, False, True, False, False, False]), failures=2)
    for good in (False, False, True, False, False):
        if good:
            assert tolerant.search(["x"], 1) == [[]]
        else:
            with pytest.warns(RuntimeWarning, match="a search failed .*: down"):
                assert tolerant.search(["x"], 1) is None
    with pytest.raises(RetrievalError, match="down"):
        tolerant.search(["x"], 1)


def build(*arguments):
    command = [sys.executable, "-m", "envs.retrieval", *map(str, arguments)]
    return subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)


def test_the_builder_says_what_it_made_and_what_is_wrong(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "1", "contents": "iron"}\n')
    done = build("--corpus", path, "--out", tmp_path / "index")
    assert done.returncode == 0, done.stderr
    assert "1 passages" in done.stdout
    assert open_index(tmp_path / "index").search(["iron"], 1)[0][0].id == "1"
    path.write_text('{"id": "1"}\n')
    done = build("--corpus", path, "--out", tmp_path / "other")
    assert done.returncode == 1
    assert done.stderr == f"error: {path}, line 1: contents must be text, not None\n"
