"""What results and progress are printed to: lines by themselves, tables and bars by Rich."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress, Task

_FILE_WIDTH, _USUAL_WIDTH = 250, 80
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_ON, _OFF = "\1", "\2"
"""Where bold begins and ends in a line that is still to be folded; `one_line` leaves neither."""
_LABEL = re.compile(r"\S+(?: \S+)? {2,}(?=\S)")
Told = Callable[[int, int], None]
Say = Callable[..., None]
"""`say(text, done, total)` shows what is being done and, with a total, how far it is."""


def styled(stream: Any) -> bool:
    """Return whether `stream` may have escape codes: NO_COLOR refuses them, FORCE_COLOR forces."""
    told = os.environ
    if told.get("NO_COLOR") or told.get("TERM") in ("dumb", "unknown"):
        return False
    return bool(told.get("FORCE_COLOR")) or (bool(stream.isatty()) and "TERM" in told)


def columns(stream: Any) -> int:
    """Return the characters of a terminal's line: as COLUMNS says, or its own."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH


def folded(text: str, width: int) -> str:
    """Return `text` in lines of `width` between words, below what a label at its start says.

    A word that is longer than a line stays whole.
    """
    if len(text) <= width:
        return text
    import textwrap

    label = _LABEL.match(text)
    indent = len(label[0].lstrip(_ON)) if label is not None and 3 * len(label[0]) < width else 2
    lines = textwrap.wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


class Console:
    """stdout or stderr: `print` and `width`.

    A line is printed as `one_line` has it. A terminal gets lines that it holds, a stream that is
    none long ones without spaces at their ends.
    """

    def __init__(self, stderr: bool = False) -> None:
        self._stderr = stderr

    @property
    def _stream(self) -> Any:
        return sys.stderr if self._stderr else sys.stdout

    @cached_property
    def _rich(self) -> Any:
        from rich.console import Console as Rich

        class Failing(Rich):
            """A console whose pipe breaks like a stream's; Rich would end the process."""

            def on_broken_pipe(self) -> None:
                raise

        system: Any = "auto" if styled(self._stream) else None
        return Failing(
            stderr=self._stderr, width=self.width, color_system=system, markup=False, emoji=False
        )

    @property
    def width(self) -> int:
        """Return the characters of a line: of a terminal its own, elsewhere many."""
        return columns(self._stream) if self._stream.isatty() else _FILE_WIDTH

    def print(self, what: Any, bold: str = "") -> None:
        """Print a line, behind the part of it that is `bold`, or what Rich prints."""
        if not isinstance(what, str):
            self._print_rich(what)
            return
        line = one_line(what)
        if bold:
            line = f"{_ON}{one_line(bold)}{_OFF}{line}"
        if self._stream.isatty():
            line = folded(line, self.width)
        on, off = (_BOLD, _PLAIN) if styled(self._stream) else ("", "")
        self._write(line.replace(_ON, on).replace(_OFF, off))

    def _print_rich(self, what: Any) -> None:
        how = {"highlight": False, "soft_wrap": hasattr(what, "plain")}  # a text is no table
        if self._stream.isatty():
            self._rich.print(what, **how)
            return
        with self._rich.capture() as kept:
            self._rich.print(what, **how)
        for line in kept.get().splitlines():
            self._write(line.rstrip())

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()


class Tally:
    """Images that have passed, of those that are to pass, an image once a pass."""

    def __init__(self, images: int, progress: Told | None) -> None:
        self._images, self._progress = images, progress
        self._done = self._total = 0

    def expect(self, passes: int) -> None:
        """Expect so many more passes over all images."""
        self._total = self._done + passes * self._images

    def passed(self, count: int | None = None) -> None:
        """Count `count` images that passed, or all."""
        self._done += self._images if count is None else count
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))


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

    `rate`: with how many parts a second are done, and the time that is left. Without escape codes
    a line is written over, a percent at a time.
    """
    if not enabled or not sys.stderr.isatty():
        yield lambda text, done=0, total=0: None
        return
    if not styled(sys.stderr):
        last = ""

        def write(line: str) -> None:
            nonlocal last
            if line != last:
                sys.stderr.write(f"\r{line:{len(last)}}" + "\r" * (not line))
                sys.stderr.flush()
                last = line

        def percents(text: str, done: int = 0, total: int = 0) -> None:
            share = f" {done / total:.0%}" if total else ""
            write(f"{one_line(text)}{share}"[: columns(sys.stderr) - 1])

        try:
            yield percents
        finally:
            write("")
        return
    from rich.console import Console as Rich

    with _bar(Rich(stderr=True), rate) as bar:
        task = bar.add_task("starting", total=None)

        def say(text: str, done: int = 0, total: int = 0) -> None:
            bar.update(task, description=one_line(text), completed=done, total=total or None)

        yield say


def _bar(console: RichConsole, rate: bool = False) -> Progress:
    """Return a spinner with what is done and, once a total is known, a bar and its two numbers.

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
