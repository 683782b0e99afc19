"""Progress on a terminal's stderr, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(enabled: bool) -> Iterator[Callable[[int], None] | None]:
    """Yield `progress(count)`, or None where stderr is no terminal or it is not wanted."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), "classifying", MofNCompleteColumn(), "images", TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("classifying", total=None)
        yield lambda count: bar.advance(task, count)


@contextmanager
def status_line(enabled: bool) -> Iterator[Callable[[str], None]]:
    """Yield `say(text)`, which shows what is being done where stderr is a terminal."""
    if not enabled or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(Text(text))
