"""Readers of question files in the field's four forms."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.nq_search.questions import QuestionSet

_BATCH = 4096  # rows of a parquet file read at once
_COLUMNS = ("question", "golden_answers", "answer", "prompt", "reward_model")


class QuestionFileError(ValueError):
    """A file of questions cannot be read; the message names the file, the row and the field."""


def read_questions(path: str | Path) -> QuestionSet:
    """Reads questions from `.jsonl` or `.parquet`.

    The question is the field `question`, else the last user message of `prompt`, of which
    what follows a last `Question:` counts. The answers are `golden_answers` (FlashRAG, and the
    authors' converted files), else `answer` (NQ-open), else
    `reward_model.ground_truth.target` (Search-R1); one text is a list of one.

    Raises:
        QuestionFileError: a row lacks a field or has it in another form, or there is no row;
            OSError; ImportError: pyarrow is missing.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        rows = _parquet_rows(path)
    elif path.suffix in (".jsonl", ".json"):
        rows = _json_rows(path)
    else:
        raise QuestionFileError(f"{path}: expected a .jsonl or .parquet file")
    questions, golds = [], []
    for where, row in rows:
        questions.append(_question(row, where))
        golds.append(_golds(row, where))
    if not questions:
        raise QuestionFileError(f"{path}: it holds no question")
    return QuestionSet(tuple(questions), tuple(golds))


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise QuestionFileError(f"{where}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise QuestionFileError(f"{where}: expected an object, not {type(row).__name__}")
            yield where, row


def _parquet_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError('parquet files need pyarrow: pip install "freshper-jax[data]"') from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            there = [name for name in _COLUMNS if name in file.schema_arrow.names]
            for batch in file.iter_batches(_BATCH, columns=there):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except pyarrow.ArrowException as error:
        raise QuestionFileError(f"{path}: not a parquet file: {error}") from error


def _question(row: Mapping[str, Any], where: str) -> str:
    question = row.get("question")
    if question is None and row.get("prompt") is not None:
        question = _asked(row["prompt"], where)
    if not isinstance(question, str) or not question.strip():
        shown = f"{question!r}"[:80]
        raise QuestionFileError(f"{where}: question (or prompt) must be text, not {shown}")
    try:
        question.encode()
    except UnicodeEncodeError as error:
        raise QuestionFileError(f"{where}: question is not valid Unicode: {error}") from error
    return question.strip()


def _asked(prompt: Any, where: str) -> str:
    """Returns the question in a prompt: a text, or messages with role and content."""
    if isinstance(prompt, list):
        users = [
            message.get("content")
            for message in prompt
            if isinstance(message, dict) and message.get("role") == "user"
        ]
        prompt = users[-1] if users else None
    if not isinstance(prompt, str):
        raise QuestionFileError(f"{where}: prompt must hold a message with role user and content")
    return prompt.rpartition("Question:")[2]


def _golds(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    field, golds = "golden_answers", row.get("golden_answers")
    if golds is None:
        field, golds = "answer", row.get("answer")
    if golds is None and row.get("reward_model") is not None:
        field, golds = "reward_model.ground_truth.target", _target(row["reward_model"])
    if golds is None:
        raise QuestionFileError(
            f"{where}: golden_answers, answer or reward_model.ground_truth.target is missing"
        )
    golds = [golds] if isinstance(golds, str) else golds
    if not isinstance(golds, list) or not golds or not all(isinstance(g, str) for g in golds):
        shown = f"{golds!r}"[:80]
        raise QuestionFileError(f"{where}: {field} must be a list of texts, not {shown}")
    return tuple(golds)


def _target(reward_model: Any) -> Any:
    truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    return truth.get("target") if isinstance(truth, dict) else truth
