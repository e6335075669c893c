"""Passages on disk: read from jsonl once, then mapped into memory."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

Progress = Callable[[int, int], None]

_REPORT_EVERY = 20_000  # passages between two reports of progress


class CorpusError(ValueError):
    """A corpus cannot be read; the message names the file, the line and the field."""


class Passage(NamedTuple):
    """A passage by name; see `envs.retrieval.Hit` for the form of its contents."""

    id: str
    contents: str


@dataclass(frozen=True)
class Strings:
    """N strings end to end.

    | field   | shape   | dtype | content                              |
    | ------- | ------- | ----- | ------------------------------------ |
    | data    | [bytes] | uint8 | UTF-8                                |
    | offsets | [N + 1] | int64 | where each begins, and the last ends |
    """

    data: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, place: int) -> str:
        return self.data[self.offsets[place] : self.offsets[place + 1]].tobytes().decode()


@dataclass(frozen=True)
class Corpus:
    """N passages as two columns, which may lie on disk."""

    ids: Strings
    contents: Strings

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> Passage:
        return Passage(self.ids[place], self.contents[place])

    def texts(self) -> Iterator[str]:
        """Yields the contents in order."""
        return (self.contents[place] for place in range(len(self)))


def make_corpus(passages: Iterable[Passage]) -> Corpus:
    """Holds passages in memory.

    Raises:
        CorpusError: there are none, or two share an id.
    """
    ids, contents = _Column(), _Column()
    for number, passage in enumerate(passages):
        ids.append(passage.id, f"passage {number}: id")
        contents.append(passage.contents, f"passage {number}: contents")
    corpus = Corpus(ids.strings(), contents.strings())
    _check(corpus.ids, lambda place: f"passage {place}", "the corpus")
    return corpus


def read_corpus(path: str | Path, progress: Progress | None = None) -> Corpus:
    """Reads a jsonl file, of which each line holds an `id` and `contents`.

    An id may be an integer. In place of `contents` a line may hold `text`, with or without
    a `title`.

    Args:
        path: the file.
        progress: called with the bytes read and the bytes there are.

    Raises:
        CorpusError: a line is no such object, two lines share an id, or there is no passage;
            OSError: the file cannot be read.
    """
    path = Path(path)
    ids, contents, lines = _Column(), _Column(), []
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            done += len(line)
            if progress is not None and number % _REPORT_EVERY == 0:
                progress(done, total)
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            passage = _passage(line, where)
            ids.append(passage.id, f"{where}: id")
            contents.append(passage.contents, f"{where}: contents")
            lines.append(number)
    if progress is not None:
        progress(total, total)
    corpus = Corpus(ids.strings(), contents.strings())
    _check(corpus.ids, lambda place: f"line {lines[place]}", str(path))
    return corpus


def write_corpus(folder: Path, corpus: Corpus) -> None:
    """Writes a corpus to a folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("ids", "contents"):
        strings: Strings = getattr(corpus, name)
        np.save(folder / f"{name}.npy", strings.data)
        np.save(folder / f"{name}.offsets.npy", strings.offsets)


def load_corpus(folder: Path) -> Corpus:
    """Maps a corpus that `write_corpus` wrote into memory; nothing is read until it is used.

    Raises:
        CorpusError: a file is missing or damaged.
    """
    columns = {}
    for name in ("ids", "contents"):
        try:
            data = np.load(folder / f"{name}.npy", mmap_mode="r")
            offsets = np.load(folder / f"{name}.offsets.npy", mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise CorpusError(f"{folder}: the passages cannot be read: {error}") from error
        if not len(offsets) or offsets[-1] != len(data):
            raise CorpusError(f"{folder}: {name} are cut short")
        columns[name] = Strings(data, offsets)
    return Corpus(**columns)


class _Column:
    """Strings that are being gathered."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ends = [0]

    def append(self, text: str, where: str) -> None:
        try:
            self._data += text.encode()
        except UnicodeEncodeError as error:
            raise CorpusError(f"{where} is not valid Unicode: {error}") from error
        self._ends.append(len(self._data))

    def strings(self) -> Strings:
        return Strings(np.frombuffer(self._data, np.uint8), np.array(self._ends, np.int64))


def _passage(line: bytes, where: str) -> Passage:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # of JSON and of UTF-8; nested too deep
        raise CorpusError(f"{where}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise CorpusError(f"{where}: expected an object, not {type(record).__name__}")
    name = record.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise CorpusError(f"{where}: id must be a string or an integer, not {name!r}")
    contents = record.get("contents")
    if contents is None and isinstance(record.get("text"), str):
        title = record.get("title")
        contents = record["text"] if title is None else f'"{title}"\n{record["text"]}'
    if not isinstance(contents, str) or not contents.strip():
        shown = f"{contents!r}"[:80]
        raise CorpusError(f"{where}: contents must be text, not {shown}")
    return Passage(str(name), contents)


def _check(ids: Strings, where: Callable[[int], str], source: str) -> None:
    """Refuses a corpus without passages or with two of one id."""
    if not len(ids):
        raise CorpusError(f"{source}: it holds no passage")
    # Sorting hashes takes a tenth of the memory of a set of strings.
    hashes = np.fromiter((hash(ids[place]) for place in range(len(ids))), np.int64, len(ids))
    order = np.argsort(hashes, kind="stable")
    for repeat in np.flatnonzero(np.diff(hashes[order]) == 0):
        first, second = order[repeat], order[repeat + 1]
        if ids[first] == ids[second]:
            raise CorpusError(
                f"{source}: {where(first)} and {where(second)} share the id {ids[first]!r}"
            )


def folder_size(folder: Path) -> int:
    """Returns the bytes of all files under a folder."""
    return sum(
        os.path.getsize(os.path.join(base, name))
        for base, _, names in os.walk(folder)
        for name in names
    )


def texts_of(queries: Sequence[str]) -> list[str]:
    """Returns queries without what UTF-8 cannot carry: a lone surrogate becomes `?`."""
    return [query.encode("utf-8", "replace").decode() for query in queries]
