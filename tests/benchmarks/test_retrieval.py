import collections

import numpy as np
import pytest

from benchmarks.retrieval import (
    TARGETS,
    WORDS,
    main,
    make_queries,
    measure,
    synthetic_corpus,
    synthetic_texts,
)
from envs.retrieval import build_bm25


@pytest.fixture(scope="module")
def texts():
    return synthetic_texts(2000)


def test_words_fall_off_as_zipf_has_it(texts):
    counts = collections.Counter(word for text in texts for word in text.split())
    assert sum(counts.values()) == 2000 * WORDS
    ranked = np.array([count for _, count in counts.most_common(100)])
    slope = np.polyfit(np.log(np.arange(1, 101)), np.log(ranked), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)


def test_queries_come_from_passages(texts):
    queries = make_queries(texts, 50)
    places = np.random.default_rng(1).integers(2000, size=50)
    for query, place in zip(queries, places, strict=True):
        assert len(query.split()) == 5
        assert set(query.split()) <= set(texts[place].split())
    found = build_bm25(synthetic_corpus(texts)).search(queries, 1)
    assert np.mean([hits[0].id == str(p) for hits, p in zip(found, places, strict=True)]) > 0.8


@pytest.mark.slow
def test_targets_are_met_on_fewer_passages():
    figures = measure(passages=5000, queries=200)
    assert set(TARGETS) <= set(figures)
    assert figures["bm25_1000_queries_s"] < TARGETS["bm25_1000_queries_s"]
    assert figures["server_queries_per_s"] > TARGETS["server_queries_per_s"]


def test_a_missing_folder_is_told_before_the_measurement(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["benchmarks.retrieval", "--json", f"{tmp_path}/no/f.json"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "there is no folder" in capsys.readouterr().err
