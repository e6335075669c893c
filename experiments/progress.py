"""What a person sees while a run works: messages, a counter, a live line."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Console"]


@dataclasses.dataclass(frozen=True)
class Console:
    """Writes to the terminal; where there is none, a line now and then in place of a bar."""

    out: rich.console.Console = dataclasses.field(default_factory=rich.console.Console)
    every: int = 10

    def say(self, text: str) -> None:
        """Print one line."""
        self.out.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def counting(self, title: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Show how far something has come: call the result with `(done, total, note)`.

        Nothing is shown if it is never called. Without a terminal there is a line each time
        that another tenth is done, or `every` more where the total is given here.
        """
        live = self.out.is_terminal
        shown = 0
        bar = Progress(
            TextColumn(title),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.out,
            transient=total is None,
        )
        task = None

        def show(done: int, of: int | None = total, note: str = "") -> None:
            nonlocal task, shown
            if not live:
                step = self.every if total is not None else max((of or 0) // 10, 1)
                if done - shown >= step or done == of:
                    shown = done
                    self.say(f"{title} {done}/{of}  {note}".rstrip())
                return
            if task is None:
                bar.start()
                task = bar.add_task("", total=of, note=note)
            bar.update(task, completed=done, total=of, note=note)

        try:
            yield show
        finally:
            if task is not None:
                bar.stop()
