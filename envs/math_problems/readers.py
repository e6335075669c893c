"""Readers of problems: GSM8K, tables of competition problems, and data sets of the hub.

A row that lacks a field, or has an answer of the wrong kind, is an error that names file and row.
"""

import csv
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.answers import Verdict, check_aime
from envs.answers.extract import after_hashes, last_boxed
from envs.answers.literal import read_literal
from envs.math_problems.problems import Problems, ProblemSet, separate, split_by_content

Row = Mapping[str, Any]
Problem = tuple[str, str, str]  # question, answer, solution

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_CALCULATION = re.compile(r"<<[^<>\n]*>>")
# Whole words of a file's or a part's name.
_HELD_OUT = re.compile(
    r"(?<![a-z])(?:tests?|testing|held[ _.-]?out|val|valid|validation|dev|eval|evaluation)(?![a-z])"
)
# Columns of the usual tables, in any case; the first there is counts.
_QUESTION = ("problem", "question")
_ANSWER = ("answer", "final_answer", "expected_answer", "solution")
_SOLUTION = ("solution", "rationale")
_MAX_DIGITS = 1000
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


class DataError(ValueError):
    """Data cannot be read; the message names the place and what was expected."""


def gsm8k_problem(row: Row) -> Problem:
    """Reads a row of GSM8K: `question`, and `answer`, a solution that ends in `#### 42`.

    What a calculator would be asked, `<<6*7=42>>`, is left out of the solution.
    """
    solution = _CALCULATION.sub("", _text(row, ("answer",)))
    gold = (after_hashes(solution) or "").replace(",", "")
    if not gold or not _is_number(gold):
        raise DataError(
            f"answer: expected it to end in '#### ' and a number, got {solution[-60:]!r}"
        )
    return _text(row, ("question",)), gold, solution


def aime_problem(row: Row) -> Problem:
    r"""Reads a row of a competition table, whose answer is an integer from 0 to 999.

    The columns are `problem` or `question`, `answer` (or a solution with a box), in any case;
    a solution that ends in another answer, or in none, is not kept.
    """
    row = {str(name).strip().lower().replace(" ", "_"): value for name, value in row.items()}
    written = _text(row, _ANSWER)
    gold = (last_boxed(written) or written).strip().strip("$")
    if re.fullmatch(r"\d+\.0+", gold):  # a column of floats
        gold = gold.split(".")[0]
    if not gold.isdecimal() or len(gold) > _MAX_DIGITS or not 0 <= int(gold) <= 999:
        raise DataError(f"answer: expected an integer from 0 to 999, got {gold[:60]!r}")
    solution = str(next((row[name] for name in _SOLUTION if row.get(name)), ""))
    if check_aime(gold, solution) != Verdict.RIGHT:
        solution = ""
    return _text(row, _QUESTION), gold, solution


KINDS: dict[str, Callable[[Row], Problem]] = {"gsm8k": gsm8k_problem, "aime": aime_problem}


def read_problems(paths: str | Path | Sequence[str | Path], kind: str) -> ProblemSet:
    """Reads files of a kind of `KINDS`: .jsonl, .json, .csv or .parquet.

    Raises:
        DataError: a file cannot be read, a row lacks a field or is malformed, or there is none.
    """
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    return _collect(
        ((f"{file}, row {number}", row) for file in files for number, row in _rows(Path(file))),
        kind,
        ", ".join(map(str, files)),
    )


def load_problems(
    data: str | Path | Sequence[str | Path],
    kind: str,
    *,
    held_out: str | Path | Sequence[str | Path] | None = None,
) -> Problems:
    """Loads problems of a kind of `KINDS` and splits them.

    The split is the source's own where it has one: files of a folder by their names (`test`,
    `validation` and the like are held out), parts of a data set of the hub, or the files given
    as `held_out`. Else it is by content, an eighth held out. A question that is among both is
    kept in the held-out part alone.

    Args:
        data: a folder, files, or the name of a data set of the hub, `owner/name`.
        kind: `gsm8k` or `aime`.
        held_out: files to measure on.

    Raises:
        DataError: the data cannot be found or read.
    """
    if kind not in KINDS:
        raise DataError(f"kind must be one of {tuple(KINDS)}, not {kind!r}")
    train, test = _parts(data, kind)
    if held_out is not None:
        test = read_problems(held_out, kind)
    try:
        return split_by_content(train) if test is None else separate(train, test)
    except ValueError as error:
        raise DataError(f"{data}: {error}") from error


def load_hub(name: str, kind: str) -> tuple[ProblemSet, ProblemSet | None]:
    """Loads the training and, where there is one, the held-out part of a data set of the hub.

    Raises:
        DataError: the package `datasets` is missing, the hub cannot be reached, or the data set
            is not of the kind.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{name}: data sets of the hub need the package datasets: "
            "pip install 'freshper-jax[data]'"
        ) from error
    # The library tells of each of its retries; one error at the end says it all.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        parts = datasets.load_dataset(name, *(["main"] if kind == "gsm8k" else []))
    except Exception as error:  # the library raises whatever its network layer does
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(
            f"{name}: the hub gave no such data set, or cannot be reached: {reason[0]}; "
            "a folder or files of your own need no network"
        ) from error
    train, test = _sides(list(parts))
    found = [
        _collect(
            (
                (f"{name}, {part}, row {number}", row)
                for part in side
                for number, row in enumerate(parts[part], 1)
            ),
            kind,
            name,
        )
        if side
        else None
        for side in (train, test)
    ]
    if found[0] is None:  # all there is are problems to measure on
        found.reverse()
    assert found[0] is not None
    return found[0], found[1]


def _parts(
    data: str | Path | Sequence[str | Path], kind: str
) -> tuple[ProblemSet, ProblemSet | None]:
    """Reads what the source has to train on and, if it says so, to measure on."""
    if not isinstance(data, str | Path):
        return read_problems(data, kind), None
    path = Path(data)
    if not path.exists() and _HUB_NAME.fullmatch(str(data)) and path.suffix.lower() not in SUFFIXES:
        return load_hub(str(data), kind)
    if not path.is_dir():
        return read_problems(path, kind), None
    files = {file.name: file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES}
    if not files:
        raise DataError(f"{path}: expected files that end in {', '.join(SUFFIXES)}")
    train, test = _sides(list(files))
    sets = [
        read_problems([files[name] for name in side], kind) if side else None
        for side in (train, test)
    ]
    if sets[0] is None:
        sets.reverse()
    assert sets[0] is not None
    return sets[0], sets[1]


def _sides(names: list[str]) -> tuple[list[str], list[str]]:
    """Parts names of files or splits into those to train on and those to measure on."""
    test = [name for name in names if _HELD_OUT.search(_stem(name).lower())]
    return [name for name in names if name not in test], test


def _stem(name: str) -> str:
    """Returns a name without the suffix of a file."""
    suffix = Path(name).suffix
    return name.removesuffix(suffix) if suffix.lower() in SUFFIXES else name


def _collect(rows: Iterable[tuple[str, Row]], kind: str, source: str) -> ProblemSet:
    read, problems = KINDS[kind], []
    for place, row in rows:
        try:
            problems.append(read(row))
        except DataError as error:
            raise DataError(f"{place}: {error}") from error
    if not problems:
        raise DataError(f"{source}: expected at least one row")
    questions, answers, solutions = zip(*problems, strict=True)
    return ProblemSet(questions, answers, solutions)


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yields the rows of a file, numbered from 1; of .jsonl the numbers are those of lines."""
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            rows: Iterable[Any] = _parquet_rows(path)
        elif suffix == ".csv":
            with path.open(encoding="utf-8-sig", newline="") as file:
                rows = list(csv.DictReader(file))
        elif suffix == ".json":
            rows = _json(path.read_text("utf-8-sig"))
            if not isinstance(rows, list):
                raise DataError(f"{path}: expected a list of objects, got {type(rows).__name__}")
        elif suffix == ".jsonl":
            yield from _json_lines(path)
            return
        else:
            raise DataError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    except (OSError, UnicodeDecodeError, _NoJSONError, csv.Error) as error:
        raise DataError(f"{path}: {error}") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(f"{path}, row {number}: expected an object, got {type(row).__name__}")
        yield number, row


def _json_lines(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = _json(line)
            except _NoJSONError as error:
                raise DataError(f"{path}, row {number}: {error}") from error
            if not isinstance(row, Mapping):
                raise DataError(f"{path}, row {number}: expected an object")
            yield number, row


class _NoJSONError(Exception):
    """A text is no JSON, or none that Python can hold."""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise _NoJSONError("no JSON that can be read: it nests too deeply") from error
    except ValueError as error:  # malformed, or an integer of thousands of digits
        raise _NoJSONError(f"no JSON: {error}") from error


def _parquet_rows(path: Path) -> Iterable[Row]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise DataError(
            f"{path}: parquet files need the package pyarrow: pip install 'freshper-jax[data]'"
        ) from error
    try:
        return parquet.read_table(path).to_pylist()
    except ArrowException as error:
        raise DataError(f"{path}: {error}") from error


def _text(row: Row, names: Sequence[str]) -> str:
    """Returns the first of the named fields that the row has, as text."""
    for name in names:
        value = row.get(name)
        if value is None or value == "":
            continue
        if not isinstance(value, str | int | float):
            raise DataError(f"{name}: expected text or a number, got {type(value).__name__}")
        if text := str(value).strip():
            return text
    expected = " or ".join(repr(name) for name in names)
    raise DataError(f"expected a field {expected}, found {sorted(map(str, row))}")


def _is_number(gold: str) -> bool:
    return len(gold) <= _MAX_DIGITS and read_literal(gold, alone=True) is not None
