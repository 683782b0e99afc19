"""Progress on a terminal's stderr, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from lenetgpu.errors import one_line
from lenetgpu.lab.show.console import columns, styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task


Told = Callable[[int, int], None]


class Tally:
    """Images that have passed, of those that are to pass, an image once a pass."""

    def __init__(self, images: int, progress: Told | None) -> None:
        self._images, self._progress = images, progress
        self._done = self._total = 0

    def expect(self, passes: int) -> None:
        """So many passes over all images are still to come."""
        self._total = self._done + passes * self._images

    def passed(self, count: int | None = None) -> None:
        """`count` images passed, or all."""
        self._done += self._images if count is None else count
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))


class Say(Protocol):
    """Shows what is being done and, where a total is given, how far it is."""

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        """`done` of `total` parts of `text` are through."""


@contextmanager
def progress_bar(enabled: bool, what: str = "images, all passes") -> Iterator[Told | None]:
    """Yield `progress(done, total)`, in images through the pipeline; None where none is shown.

    None is where stderr is no terminal or it is not wanted. An image counts once a pass.
    """
    shown = enabled and sys.stderr.isatty()  # Rich before 15 puts what is none in its place
    with status_line(enabled, rate=True) as say:
        yield (lambda done, total: say(what, done, total)) if shown else None


@contextmanager
def status_line(enabled: bool, rate: bool = False) -> Iterator[Say]:
    """Yield `say(text, done, total)`, which shows what is being done where stderr is a terminal.

    `rate`: with how many parts a second are done, and the time that is left.
    """
    if not enabled or not sys.stderr.isatty():
        yield lambda text, done=0, total=0: None
        return
    if not styled(sys.stderr):
        line = _Line()
        try:
            yield line.say
        finally:
            line.end()
        return
    from rich.console import Console

    with _bar(Console(stderr=True), rate) as bar:
        task = bar.add_task("starting", total=None)

        def say(text: str, done: int = 0, total: int = 0) -> None:
            bar.update(task, description=one_line(text), completed=done, total=total or None)

        yield say


class _Line:
    """What is done on one line, written over without an escape code, a percent at a time."""

    def __init__(self) -> None:
        self._shown = ""

    def say(self, text: str, done: int = 0, total: int = 0) -> None:
        """As `Say` has it."""
        share = f" {done / total:.0%}" if total else ""
        self._show(f"{one_line(text)}{share}"[: columns(sys.stderr) - 1])

    def end(self) -> None:
        """Leave nothing behind."""
        self._show("")

    def _show(self, line: str) -> None:
        if line != self._shown:
            sys.stderr.write(f"\r{line:{len(self._shown)}}" + "\r" * (not line))
            sys.stderr.flush()
            self._shown = line


def _bar(console: Console, rate: bool = False) -> Progress:
    """A spinner with what is done and, once a total is known, a bar and its two numbers.

    `rate`: also how many a second, and the time that is left. A narrow terminal has fewer of them.
    """
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Amount(TextColumn):
        def render(self, task: Task) -> Text:
            known = task.total is not None
            return Text(f"{task.completed:,.0f}/{task.total:,.0f}" if known else "")

    class Rate(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    wide, usual = console.width >= 80, console.width >= 60
    left: tuple[ProgressColumn, ...] = (Rate(""), TextColumn("left"), TimeRemainingColumn())
    columns = (
        SpinnerColumn("dots" if console.encoding.startswith("utf") else "line"),
        TextColumn("{task.description}", markup=False),
        *((BarColumn(),) if wide else ()),
        Amount(""),
        *((TimeElapsedColumn(),) if wide or (usual and not rate) else ()),
        *(left if rate and usual else ()),
    )
    return Progress(*columns, console=console, transient=True)
