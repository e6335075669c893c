import json

import pyarrow
import pytest
from pyarrow import parquet

from envs.nq_search import (
    QuestionFileError,
    QuestionSet,
    question_hash,
    read_questions,
    separate_questions,
    split_questions,
)

USER = "Answer the question. Think first. Question: who wrote it?\n"
SEARCH_R1 = {
    "id": "train_0",
    "question": "who wrote it?",
    "golden_answers": ["Ann", "Bob"],
    "data_source": "nq",
    "prompt": [{"role": "user", "content": USER}],
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["Ann", "Bob"]}},
    "extra_info": {"split": "train", "index": 0},
}
FORMS = {
    "FlashRAG": {
        "id": "1",
        "question": "who wrote it?",
        "golden_answers": ["Ann", "Bob"],
        "metadata": {},
    },
    "NQ-open": {"question": "who wrote it?", "answer": ["Ann", "Bob"]},
    "Search-R1": SEARCH_R1,
    "Search-R1 without columns of its own": {
        name: SEARCH_R1[name] for name in ("data_source", "prompt", "reward_model")
    },
    "converted": {
        "prompt": [
            {"role": "system", "content": "Be good."},
            {"role": "user", "content": "who wrote it?"},
        ],
        "golden_answers": ["Ann", "Bob"],
    },
}


def write(path, rows):
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_question_and_its_answers(tmp_path, form, suffix):
    row = FORMS[form]
    if suffix == ".parquet":
        row = {name: value for name, value in row.items() if value != {}}
    questions = read_questions(write(tmp_path / f"q{suffix}", [row, row]))
    assert questions == QuestionSet(("who wrote it?",) * 2, (("Ann", "Bob"),) * 2)


def test_one_answer_may_be_a_bare_text(tmp_path):
    path = write(tmp_path / "q.jsonl", [{"question": "q", "answer": "Ann"}])
    assert read_questions(path).golds == (("Ann",),)


BAD = [
    ({"answer": ["x"]}, "question (or prompt) must be text, not None"),
    ({"question": " ", "answer": ["x"]}, "question (or prompt) must be text"),
    ({"question": 3, "answer": ["x"]}, "question (or prompt) must be text, not 3"),
    ({"prompt": [{"role": "system", "content": "x"}], "answer": ["x"]}, "prompt must hold"),
    ({"prompt": 7, "answer": ["x"]}, "prompt must hold"),
    ({"question": "q"}, "golden_answers, answer or reward_model.ground_truth.target is missing"),
    ({"question": "q", "golden_answers": []}, "golden_answers must be a list of texts, not []"),
    ({"question": "q", "answer": [1]}, "answer must be a list of texts, not [1]"),
    ({"question": "q", "answer": {"a": 1}}, "answer must be a list of texts"),
    ({"question": "q", "reward_model": {"style": "rule"}}, "is missing"),
    ({"question": "q", "reward_model": {"ground_truth": {"target": [2]}}}, "target must be a list"),
]


@pytest.mark.parametrize(("row", "reason"), BAD, ids=range(len(BAD)))
def test_a_bad_line_is_named(tmp_path, row, reason):
    path = write(tmp_path / "q.jsonl", [FORMS["NQ-open"], row])
    with pytest.raises(QuestionFileError) as error:
        read_questions(path)
    assert str(error.value).startswith(f"{path}, line 2: ")
    assert reason in str(error.value)


def test_a_bad_row_of_a_parquet_file_is_named(tmp_path):
    rows = [{"question": "q", "golden_answers": ["x"]}, {"question": None, "golden_answers": ["x"]}]
    path = write(tmp_path / "q.parquet", rows)
    with pytest.raises(QuestionFileError, match=r"q\.parquet, row 2: question"):
        read_questions(path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("q.jsonl", b"{", "line 1: not JSON"),
        ("q.jsonl", b"\xff", "line 1: not JSON"),
        ("q.jsonl", b'{"question": "\\ud800", "answer": "x"}', "line 1: question is not valid"),
        ("q.jsonl", b"[1]", "line 1: expected an object, not list"),
        ("q.jsonl", b"\n \n", "holds no question"),
        ("q.parquet", b"PAR1 junk", "not a parquet file"),
        ("q.csv", b"", "expected a .jsonl or .parquet file"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(QuestionFileError) as error:
        read_questions(path)
    assert str(path) in str(error.value)
    assert reason in str(error.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_questions(tmp_path / "q.jsonl")


def test_the_split_is_by_content():
    texts = [f"Who is number {n}?" for n in range(400)]
    doubled = [*texts, *(text.upper().replace("?", "") for text in texts)]
    questions = QuestionSet(tuple(doubled), tuple((text,) for text in doubled))
    split = split_questions(questions)
    sides = [
        {normal.lower().rstrip("?") for normal in part.questions}
        for part in (split.train, split.held_out)
    ]
    assert not sides[0] & sides[1]
    assert len(split.train) + len(split.held_out) == 800
    assert 0.07 < len(split.held_out) / 800 < 0.18
    assert split_questions(questions) == split
    for part in (split.train, split.held_out):
        assert part.questions == tuple(golds[0] for golds in part.golds)


def test_a_hash_is_the_same_in_every_process():
    assert question_hash("Who wrote it?") == question_hash("who wrote THE it")
    assert question_hash("who wrote it") == 14643928449723283346
    assert question_hash("who wrote it") != question_hash("who wrote them")


def test_too_few_questions_cannot_be_split():
    with pytest.raises(ValueError, match="too few to be split"):
        split_questions(QuestionSet(("q",), (("x",),)))


def test_every_question_has_golds():
    with pytest.raises(ValueError, match="one tuple a question"):
        QuestionSet(("q",), ())


def test_what_is_held_out_is_not_trained_on():
    train = QuestionSet(("Who wrote it?", "Where is Rome?", "Why?"), (("a",), ("b",), ("c",)))
    held_out = QuestionSet(("where is the rome",), (("b",),))
    split = separate_questions(train, held_out)
    assert split.train.questions == ("Who wrote it?", "Why?")
    assert split.train.golds == (("a",), ("c",))
    assert split.held_out == held_out
    with pytest.raises(ValueError, match="all 1 to train on are held out as well"):
        separate_questions(held_out, held_out)


def test_a_line_nested_too_deep_is_refused_by_its_number(tmp_path):
    path = tmp_path / "deep.jsonl"
    path.write_text('{"question": "q", "answer": "a"}\n' + "[" * 100_000 + "\n")
    with pytest.raises(QuestionFileError, match=r"deep\.jsonl, line 2: not JSON"):
        read_questions(path)
