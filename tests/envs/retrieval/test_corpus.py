import json

import numpy as np
import pytest

from envs.retrieval import CorpusError, Hit, Passage, make_corpus, read_corpus
from envs.retrieval.corpus import load_corpus, write_corpus


def write(path, *lines):
    path.write_bytes(
        b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines)
    )
    return path


def test_lines_become_passages_in_order(tmp_path):
    path = write(
        tmp_path / "c.jsonl",
        {"id": "0", "contents": '"Title"\ntext'},
        b"",
        {"id": 12, "contents": "grüße"},
        {"id": "x", "title": "T", "text": "body"},
        {"id": "y", "text": "bare"},
    )
    corpus = read_corpus(path)
    assert [corpus[place] for place in range(len(corpus))] == [
        ("0", '"Title"\ntext'),
        ("12", "grüße"),
        ("x", '"T"\nbody'),
        ("y", "bare"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ([1], "expected an object, not list"),
        ({"contents": "x"}, "id must be a string or an integer, not None"),
        ({"id": True, "contents": "x"}, "id must be"),
        ({"id": "", "contents": "x"}, "id must be"),
        ({"id": "1"}, "contents must be text, not None"),
        ({"id": "1", "contents": "  "}, "contents must be text"),
        ({"id": "1", "contents": 3}, "contents must be text, not 3"),
        (b'{"id": "1", "contents": "\\ud800"}', "contents is not valid Unicode"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, reason):
    path = write(tmp_path / "c.jsonl", {"id": "0", "contents": "fine"}, line)
    with pytest.raises(CorpusError) as error:
        read_corpus(path)
    assert str(error.value).startswith(f"{path}, line 2: ")
    assert reason in str(error.value)


def test_repeated_ids_are_named_with_both_lines(tmp_path):
    lines = [{"id": n, "contents": "x"} for n in (5, 3, 4)]
    path = write(tmp_path / "c.jsonl", *lines, b"", {"id": "3", "contents": "y"})
    with pytest.raises(CorpusError, match="line 2 and line 5 share the id '3'"):
        read_corpus(path)


def test_an_empty_corpus_is_refused(tmp_path):
    with pytest.raises(CorpusError, match="holds no passage"):
        read_corpus(write(tmp_path / "c.jsonl", b"", b" "))
    with pytest.raises(CorpusError, match="holds no passage"):
        make_corpus([])
    with pytest.raises(FileNotFoundError):
        read_corpus(tmp_path / "none.jsonl")


def test_progress_counts_bytes_to_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("envs.retrieval.corpus._REPORT_EVERY", 2)
    path = write(tmp_path / "c.jsonl", *({"id": n, "contents": "x"} for n in range(5)))
    calls = []
    read_corpus(path, lambda done, total: calls.append((done, total)))
    size = path.stat().st_size
    assert [total for _, total in calls] == [size] * 3
    assert 0 < calls[0][0] < calls[1][0] < calls[2][0] == size


def test_a_written_corpus_is_mapped(tmp_path, corpus):
    write_corpus(tmp_path / "f", corpus)
    mapped = load_corpus(tmp_path / "f")
    assert isinstance(mapped.contents.data, np.memmap)
    assert [mapped[p] for p in range(len(mapped))] == [corpus[p] for p in range(len(corpus))]
    assert list(mapped.texts()) == [corpus[p].contents for p in range(len(corpus))]


@pytest.mark.parametrize("damage", ["missing", "cut", "junk"])
def test_a_damaged_corpus_is_an_error(tmp_path, corpus, damage):
    write_corpus(tmp_path, corpus)
    path = tmp_path / "contents.npy"
    if damage == "missing":
        path.unlink()
    elif damage == "junk":
        path.write_bytes(b"junk")
    else:
        np.save(path, np.load(path)[:-3])
    with pytest.raises(CorpusError, match=r"contents|passages"):
        load_corpus(tmp_path)


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Iron"\nA metal.\nTwo.', "Iron", "A metal.\nTwo."),
        ("Iron\nA metal.", "Iron", "A metal."),
        ("One line", "", "One line"),
        ("", "", ""),
    ],
)
def test_contents_are_title_and_text(contents, title, text):
    hit = Hit("1", contents, 0.5)
    assert (hit.title, hit.text) == (title, text)


def test_passages_in_memory_share_no_id():
    with pytest.raises(CorpusError, match="passage 0 and passage 1 share the id 'a'"):
        make_corpus([Passage("a", "x"), Passage("a", "y")])
