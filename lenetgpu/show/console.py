"""What results are printed to: lines by themselves, tables by Rich, which only they import."""

from __future__ import annotations

import os
import sys
from functools import cached_property
from typing import Any

from lenetgpu.errors import one_line

_FILE_WIDTH = 250
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class Console:
    """stdout or stderr, as Rich's console of that stream: `print` and `width`.

    Text is printed on one line as `one_line` has it, brackets and all; tables escape their own. A
    stream that is no terminal has long lines.
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

        width = None if self._stream.isatty() else _FILE_WIDTH
        return Failing(stderr=self._stderr, width=width, markup=False, emoji=False)

    @property
    def width(self) -> int:
        """Characters of a line: of a terminal its own, elsewhere many."""
        return int(self._rich.width) if self._stream.isatty() else _FILE_WIDTH

    def print(self, what: Any, style: str | None = None, **how: Any) -> None:
        """Print what Rich can; text that is not to be highlighted goes without it.

        Its only styles are `style` "bold" and, with `markup`, "[bold]" up to "[/]".
        """
        if isinstance(what, str):
            what = one_line(what)
        if not isinstance(what, str) or how.get("highlight", True):
            self._rich.print(what, style=style, **how)
            return
        on, off = (_BOLD, _PLAIN) if self._shows_bold else ("", "")
        if how.get("markup"):
            what = what.replace("[bold]", on).replace("[/]", off)
        self._stream.write(f"{on}{what}{off}\n" if style == "bold" else f"{what}\n")
        self._stream.flush()

    @property
    def _shows_bold(self) -> bool:
        return bool(self._stream.isatty()) and os.environ.get("TERM") not in ("dumb", None)
