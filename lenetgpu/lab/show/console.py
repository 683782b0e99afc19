"""What results are printed to: lines by themselves, tables by Rich, which only they import."""

from __future__ import annotations

import os
import re
import sys
from functools import cached_property
from typing import Any

from lenetgpu.errors import one_line

_FILE_WIDTH, _USUAL_WIDTH = 250, 80
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_ON, _OFF = "\1", "\2"
"""Where bold begins and ends in a line that is still to be folded; `one_line` leaves neither."""
_LABEL = re.compile(r"\S+(?: \S+)? {2,}(?=\S)")


def styled(stream: Any) -> bool:
    """Whether `stream` may have escape codes: a terminal that knows them, or where they are forced.

    NO_COLOR and a dumb terminal have none at all, FORCE_COLOR asks for them elsewhere.
    """
    told = os.environ
    if told.get("NO_COLOR") or told.get("TERM") in ("dumb", "unknown"):
        return False
    return bool(told.get("FORCE_COLOR")) or (bool(stream.isatty()) and "TERM" in told)


def columns(stream: Any) -> int:
    """Characters of a line of the terminal that `stream` is: as COLUMNS says, or its own."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH


def folded(text: str, width: int) -> str:
    """`text` in lines of `width` broken between words, all below what a label at its start says."""
    if len(text) <= width:
        return text
    import textwrap

    label = _LABEL.match(text)
    indent = len(label[0].lstrip(_ON)) if label is not None and 3 * len(label[0]) < width else 2
    return "\n".join(
        textwrap.wrap(
            text,
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


class Console:
    """stdout or stderr, as Rich's console of that stream: `print` and `width`.

    Text is printed as `one_line` has it, brackets and all; tables escape their own. A terminal gets
    lines that it holds, a stream that is none long ones without spaces at their ends.
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
        """Characters of a line: of a terminal its own, elsewhere many."""
        return columns(self._stream) if self._stream.isatty() else _FILE_WIDTH

    def print(self, what: Any, style: str | None = None, **how: Any) -> None:
        """Print what Rich can; text that is not to be highlighted goes without it.

        Its only styles are `style` "bold" and, with `markup`, "[bold]" up to "[/]".
        """
        if isinstance(what, str):
            what = one_line(what)
        if not isinstance(what, str) or how.get("highlight", True):
            self._print_rich(what, style, how)
            return
        if how.get("markup"):
            what = what.replace("[bold]", _ON).replace("[/]", _OFF)
        elif style == "bold":
            what = f"{_ON}{what}{_OFF}"
        if self._stream.isatty():
            what = folded(what, self.width)
        on, off = (_BOLD, _PLAIN) if styled(self._stream) else ("", "")
        self._write(what.replace(_ON, on).replace(_OFF, off))

    def _print_rich(self, what: Any, style: str | None, how: dict[str, Any]) -> None:
        if self._stream.isatty():
            self._rich.print(what, style=style, **how)
            return
        with self._rich.capture() as kept:
            self._rich.print(what, style=style, **how)
        for line in kept.get().splitlines():
            self._write(line.rstrip())

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()
