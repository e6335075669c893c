"""Readers of data: the public set, the formats, and errors that say where."""

import csv
import json
from pathlib import Path

import pytest

from envs.answers import Verdict, make_checker
from envs.math_problems import DataError, load_problems, read_problems, readers

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"
needs_gsm8k = pytest.mark.skipif(not GSM8K.exists(), reason=f"{GSM8K} is not there")

ROWS = [
    {"question": "How many?", "answer": "3 and 4: <<3+4=7>>7\n#### 7"},
    {"question": "How much?", "answer": "$<<1000+80=1080>>1,080\n#### 1,080"},
    {"question": "How far?", "answer": "#### -12"},
]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def write_parquet(path, rows):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write_table(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@needs_gsm8k
def test_all_of_gsm8k():
    problems = load_problems(GSM8K, "gsm8k")
    assert (len(problems.train), len(problems.held_out)) == (7473, 1319)
    golds = problems.train.answers + problems.held_out.answers
    solutions = problems.train.solutions + problems.held_out.solutions
    assert all(str(int(gold)) == gold for gold in golds)
    assert sum(int(gold) < 0 for gold in golds) == 5
    # As it is written in the files.
    lines = [
        json.loads(line)["answer"].split("#### ")[-1]
        for name in ("train", "test")
        for line in (GSM8K / f"{name}.jsonl").read_text("utf-8").splitlines()
    ]
    assert sum("," in line for line in lines) == 93
    assert [line.replace(",", "") for line in lines] == list(golds)
    for name in ("gsm8k", "gsm8k_flexible", "math"):
        assert (make_checker(name)(golds, solutions) == Verdict.RIGHT).all()
    assert (make_checker("gsm8k")(golds, [f"#### {int(g) + 1}" for g in golds]) == 0).all()
    assert not any("<<" in solution for solution in solutions)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_gsm8k_in_every_format(tmp_path, suffix):
    path = tmp_path / f"some.{suffix}"
    if suffix == "json":
        path.write_text(json.dumps(ROWS))
    else:
        {"jsonl": write_lines, "csv": write_table, "parquet": write_parquet}[suffix](path, ROWS)
    problems = read_problems(path, "gsm8k")
    assert problems.questions == ("How many?", "How much?", "How far?")
    assert problems.answers == ("7", "1080", "-12")
    assert problems.solutions[0] == "3 and 4: 7\n#### 7"


@pytest.mark.parametrize(
    ("row", "answer", "keeps"),
    [
        (
            {"ID": "2024-I-1", "Problem": "Find x.", "Solution": r"\boxed{073}", "Answer": 73},
            "73",
            1,
        ),
        ({"Year": 1990, "Question": "Find x.", "Answer": "025"}, "025", 0),
        ({"id": 3, "problem": "Find x.", "solution": r"so \boxed{45}"}, "45", 1),
        ({"problem": "Find x.", "answer": 45.0, "solution": r"\boxed{44}"}, "45", 0),
        ({"problem": "Find x.", "answer": r"$\boxed{45}$"}, "45", 0),
    ],
)
def test_tables_of_competition_problems(tmp_path, row, answer, keeps):
    problems = read_problems(write_lines(tmp_path / "a.jsonl", [row]), "aime")
    assert problems.questions == ("Find x.",)
    assert problems.answers == (answer,)
    assert bool(problems.solutions[0]) == bool(keeps)
    assert read_problems(write_table(tmp_path / "a.csv", [row]), "aime").answers == (answer,)


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        ("gsm8k", {"question": "q"}, r"row 2: expected a field 'answer', found \['question'\]"),
        ("gsm8k", {"question": "", "answer": "#### 1"}, "row 2: expected a field 'question'"),
        ("gsm8k", {"question": "q", "answer": "7"}, "row 2: answer: expected it to end in '#### '"),
        ("gsm8k", {"question": "q", "answer": "#### x"}, "row 2: answer: expected it to end in"),
        ("gsm8k", {"question": "q", "answer": ["7"]}, "row 2: answer: expected text or a number"),
        ("gsm8k", {"question": "q", "answer": "#### 3*4"}, "row 2: answer: expected it to end in"),
        ("gsm8k", {"question": "q", "answer": "#### 5 or 6"}, "row 2: answer: expected it to end"),
        ("gsm8k", {"question": "q", "answer": "#### 2 a, 3 b"}, "row 2: answer: expected it to"),
        ("gsm8k", {"question": "q", "answer": "#### " + "9" * 5000}, "row 2: answer: expected it"),
        ("aime", {"problem": "p", "answer": "9" * 5000}, "row 2: answer: expected an integer"),
        ("gsm8k", ["q"], "row 2: expected an object"),
        ("aime", {"problem": "p"}, "row 2: expected a field 'answer' or 'final_answer'"),
        ("aime", {"problem": "p", "answer": "1000"}, "answer: expected an integer from 0 to 999"),
        ("aime", {"problem": "p", "answer": "x"}, "answer: expected an integer from 0 to 999"),
        ("aime", {"answer": "5"}, "row 2: expected a field 'problem' or 'question'"),
    ],
)
def test_a_bad_row_is_named(tmp_path, kind, row, message):
    good = {"question": "q", "problem": "p", "answer": "#### 1" if kind == "gsm8k" else "1"}
    path = write_lines(tmp_path / "rows.jsonl", [good, row])
    with pytest.raises(
        DataError, match=rf"rows\.jsonl, {message}" if "row 2" in message else message
    ):
        read_problems(path, kind)


def test_bad_files_are_named(tmp_path):
    for name, content, message in (
        ("a.jsonl", b"{\n", r"a\.jsonl, row 1: no JSON"),
        ("b.jsonl", b"\xff\xfe", r"b\.jsonl: .*codec can't decode"),
        ("c.json", b"[", r"c\.json: "),
        ("d.json", b"[3]", r"d\.json, row 1: expected an object, got int"),
        ("e.jsonl", b"\n", r"e\.jsonl: expected at least one row"),
        ("f.txt", b"x", r"f\.txt: expected a file that ends in \.jsonl, \.json, \.csv, \.parquet"),
        ("g.parquet", b"x", r"g\.parquet: "),
        ("h.json", b"3", r"h\.json: expected a list of objects, got int"),
        ("i.json", b"null", r"i\.json: expected a list of objects, got NoneType"),
        ("j.json", b'{"1": {}}', r"j\.json: expected a list of objects, got dict"),
        ("k.json", b"[" * 200_000, r"k\.json: no JSON that can be read: it nests too deeply"),
        ("l.jsonl", b"[" * 200_000, r"l\.jsonl, row 1: no JSON .* nests too deeply"),
        ("m.jsonl", b'{"answer": ' + b"9" * 5000 + b"}", r"m\.jsonl, row 1: no JSON: "),
        ("n.json", b'[{"answer": ' + b"9" * 5000 + b"}]", r"n\.json: no JSON: "),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_problems(tmp_path / name, "gsm8k")
    with pytest.raises(DataError, match=r"nowhere\.jsonl: .*No such file"):
        read_problems(tmp_path / "nowhere.jsonl", "gsm8k")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: expected files that end in"):
        load_problems(tmp_path / "empty", "gsm8k")
    with pytest.raises(DataError, match="kind must be one of"):
        load_problems(tmp_path, "algebra")


def test_a_source_keeps_its_own_split_and_leaks_nothing(tmp_path):
    write_lines(tmp_path / "train.jsonl", ROWS)
    write_lines(tmp_path / "test.jsonl", [{**ROWS[0], "question": "HOW  many?"}])
    problems = load_problems(tmp_path, "gsm8k")
    assert problems.train.questions == ("How much?", "How far?")
    assert problems.held_out.questions == ("HOW  many?",)
    assert problems.dropped == 1


@pytest.mark.parametrize("name", ["TEST", "gsm8k-test", "my.dev", "val_1", "held_out", "held-out2"])
def test_files_are_held_out_by_whole_words_of_their_names(tmp_path, name):
    write_lines(tmp_path / "contest_2023.jsonl", ROWS[:1])
    write_lines(tmp_path / "latest-invalid.jsonl", ROWS[1:2])
    write_lines(tmp_path / f"{name}.jsonl", ROWS[2:])
    problems = load_problems(tmp_path, "gsm8k")
    assert (problems.train.answers, problems.held_out.answers) == (("7", "1080"), ("-12",))


@pytest.mark.parametrize("name", ["A.JSONL", "a.Json", "a.CSV"])
def test_byte_order_marks_and_capitals_do_no_harm(tmp_path, name):
    path = tmp_path / name
    if name == "a.Json":
        path.write_text(json.dumps(ROWS), "utf-8")
    else:
        (write_lines if name == "A.JSONL" else write_table)(path, ROWS)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_problems(path, "gsm8k").answers == ("7", "1080", "-12")
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / name)
    other = write_lines(tmp_path / "other.jsonl", [{**ROWS[0], "question": "Who?"}])
    assert len(load_problems(tmp_path / "folder", "gsm8k", held_out=[other]).train) == 3


def test_without_a_split_it_is_by_content_or_by_files(tmp_path):
    rows = [{"question": f"How many are {n}?", "answer": f"#### {n}"} for n in range(400)]
    path = write_lines(tmp_path / "all.jsonl", rows)
    problems = load_problems(path, "gsm8k")
    assert len(problems.train) + len(problems.held_out) == 400
    assert 20 < len(problems.held_out) < 90
    other = write_lines(tmp_path / "other.jsonl", rows[:3])
    given = load_problems([path], "gsm8k", held_out=[other])
    assert given.held_out.answers == ("0", "1", "2")
    assert (len(given.train), given.dropped) == (397, 3)


def test_data_sets_of_the_hub(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(*arguments):
        asked.append(arguments)
        return {"train": ROWS[:2], "test": ROWS[2:]}

    monkeypatch.setattr(datasets, "load_dataset", load)
    problems = load_problems("openai/gsm8k", "gsm8k")
    assert asked == [("openai/gsm8k", "main")]
    assert (problems.train.answers, problems.held_out.answers) == (("7", "1080"), ("-12",))

    def fail(*arguments):
        raise ConnectionError("Couldn't reach the Hub\nand so on")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(
        DataError, match=r"^openai/gsm8k: the hub .* cannot be reached: Couldn't"
    ) as told:
        load_problems("openai/gsm8k", "gsm8k")
    assert "\n" not in str(told.value)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(
        DataError, match=r"need the package datasets: pip install 'freshper-jax\[data\]'"
    ):
        readers.load_hub("openai/gsm8k", "gsm8k")
