"""What a search gives, and what the environments ask of whatever searches."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from envs.failures import TaskError


class RetrievalError(TaskError):
    """A search could not be made; the message says where and why."""


class Hit(NamedTuple):
    """A passage found: its name, its contents and how well it fits, higher is better.

    Contents are a title, in quotation marks or not, a line break and the text, as the field's
    corpora have them; contents of one line are text without a title.
    """

    id: str
    contents: str
    score: float

    @property
    def title(self) -> str:
        """The title without its quotation marks; empty where there is none."""
        title, separator, _ = self.contents.partition("\n")
        return title.strip().strip('"') if separator else ""

    @property
    def text(self) -> str:
        """The contents without the title."""
        title, separator, text = self.contents.partition("\n")
        return text if separator else title


class Retriever(Protocol):
    """Anything that searches many queries at once."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Finds passages.

        Args:
            queries: Q texts, any at all.
            topk: hits wanted of each, at least 1.

        Returns:
            Q lists of at most `topk` hits, the best first; empty where nothing fits.

        Raises:
            RetrievalError: the search could not be made.
        """


@dataclasses.dataclass
class Tolerant:
    """Searches with another retriever and bears some failures of it in a row.

    retriever: the one that searches.
    failures: searches that may fail in a row; the next one raises.
    """

    retriever: Retriever
    failures: int = 8
    failed: int = dataclasses.field(default=0, init=False)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]] | None:
        """Returns what `Retriever.search` does, or None with a warning where it failed."""
        try:
            found = self.retriever.search(queries, topk)
        except RetrievalError as error:
            self.failed += 1
            if self.failed > self.failures:
                raise
            warnings.warn(
                f"a search failed ({self.failed} in a row, up to {self.failures} are borne): "
                f"{error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        self.failed = 0
        return found
