"""Output to stdout and stderr: plain lines directly, tables and progress bars through Rich."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress, Task

_FILE_WIDTH, _USUAL_WIDTH = 250, 80
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
# Markers of bold text in a line not yet folded; `one_line` output never contains them
_ON, _OFF = "\1", "\2"
_LABEL = re.compile(r"\S+(?: \S+)? {2,}(?=\S)")
Advance = Callable[[int, int], None]
# say(text, done, total) shows the current activity and, with a total, the progress
Say = Callable[..., None]


def styled(stream: Any) -> bool:
    """Return True if `stream` gets escape codes: NO_COLOR disables and FORCE_COLOR enables them."""
    environ = os.environ
    if environ.get("NO_COLOR") or environ.get("TERM") in ("dumb", "unknown"):
        return False
    return bool(environ.get("FORCE_COLOR")) or (bool(stream.isatty()) and "TERM" in environ)


def columns(stream: Any) -> int:
    """Return the width of a line in characters, from COLUMNS or the terminal."""
    text = os.environ.get("COLUMNS", "")
    if text.isdecimal() and int(text):
        return int(text)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH


def folded(text: str, width: int) -> str:
    """Return `text` broken between words at `width`; later lines are indented under its label."""
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
    """stdout or stderr: lines pass through `one_line`, and are folded on a terminal."""

    def __init__(self, stderr: bool = False) -> None:
        self._stderr = stderr

    @property
    def _stream(self) -> Any:
        return sys.stderr if self._stderr else sys.stdout

    @cached_property
    def _rich(self) -> Any:
        from rich.console import Console as Rich

        class Failing(Rich):
            """A Rich console that raises on a broken pipe, where Rich would end the process."""

            def on_broken_pipe(self) -> None:
                raise

        system: Any = "auto" if styled(self._stream) else None
        return Failing(
            stderr=self._stderr, width=self.width, color_system=system, markup=False, emoji=False
        )

    @property
    def width(self) -> int:
        """Characters per line: the terminal's width, or _FILE_WIDTH for other streams."""
        return columns(self._stream) if self._stream.isatty() else _FILE_WIDTH

    def print(self, what: Any, bold: str = "") -> None:
        """Print a line, with `bold` in bold before it, or an object that Rich prints."""
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
        how = {"highlight": False, "soft_wrap": hasattr(what, "plain")}  # Text, not a table
        if self._stream.isatty():
            self._rich.print(what, **how)
            return
        with self._rich.capture() as captured:
            self._rich.print(what, **how)
        for line in captured.get().splitlines():
            self._write(line.rstrip())

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()


class Tally:
    """Counter of processed images; every image counts once per pass."""

    def __init__(self, images: int, progress: Advance | None) -> None:
        self._images, self._progress = images, progress
        self._done = self._total = 0

    def expect(self, passes: int) -> None:
        """Expect `passes` more passes over all images."""
        self._total = self._done + passes * self._images

    def passed(self, count: int | None = None) -> None:
        """Count `count` images (default: all) as processed."""
        self._done += self._images if count is None else count
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))


@contextmanager
def progress_bar(enabled: bool, what: str = "images, all passes") -> Iterator[Advance]:
    """Yield `progress(done, total)`, shown if `enabled` and stderr is a terminal."""
    with status_line(enabled, rate=True) as say:
        yield partial(say, what)


@contextmanager
def status_line(enabled: bool, rate: bool = False) -> Iterator[Say]:
    """Yield `say(text, done, total)`, shown on a terminal; `rate` adds items per second."""
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
            share = f" {100 * done // total:.0f}%" if done < total else ""
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
            more = total if done < total else None  # else a spinner: some work still follows
            bar.update(task, description=one_line(text), completed=done, total=more)

        yield say


def _bar(console: RichConsole, rate: bool = False) -> Progress:
    """Return a spinner with the current activity and, once a total is known, a bar and a count."""
    from rich import progress
    from rich.text import Text

    class Amount(progress.TextColumn):
        def render(self, task: Task) -> Text:
            known = task.total is not None
            return Text(f"{task.completed:,.0f}/{task.total:,.0f}" if known else "")

    class Rate(progress.TextColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    wide, usual = console.width >= 80, console.width >= 60
    left = Rate(""), progress.TextColumn("left"), progress.TimeRemainingColumn()
    columns = (
        progress.SpinnerColumn("dots" if console.encoding.startswith("utf") else "line"),
        progress.TextColumn("{task.description}", markup=False),
        *((progress.BarColumn(),) if wide else ()),
        Amount(""),
        *((progress.TimeElapsedColumn(),) if wide or (usual and not rate) else ()),
        *(left if rate and usual else ()),
    )
    return progress.Progress(*columns, console=console, transient=True)
