"""What a command says by a line, and how it ends where the machine does not let it say it."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import click

from lenetgpu.cli.signals import INTERRUPTED
from lenetgpu.errors import LenetError, one_line

STARTED = time.perf_counter()
BAD_INPUT, BROKEN_PIPE = 2, 141
"""Exit codes: the second is what a shell shows of who is killed for writing to a closed pipe."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def say(text: object, err: bool = False) -> None:
    """A line to stdout or stderr, escaped as `one_line` does."""
    click.echo(one_line(text), err=err)


def complain(message: str) -> None:
    """The sentence of an error to stderr; to nowhere where that takes nothing."""
    with suppress(OSError):
        say(f"lenetgpu: error: {message}", err=True)
    _cut_off(sys.stderr)


def require_streams() -> None:
    """LenetError where stdout is closed; a closed stderr is nowhere.

    What stdout's encoding has no bytes for is escaped from now on.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = sys.stderr
        raise LenetError("stdout: expected a place for the results, found it closed")
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


@contextmanager
def ended() -> Iterator[None]:
    """What goes wrong in the block for a reason outside becomes a sentence and an exit code.

    So do a lack of memory and a GPU that is lost.
    """
    try:
        yield
        return
    except LenetError as error:
        message = str(error)
    except (click.exceptions.NoArgsIsHelpError, click.exceptions.Exit, click.Abort):
        raise
    except click.UsageError as error:
        message = " ".join(error.format_message().split())
    except (OSError, ImportError) as error:
        message = of_system(error)
    except Exception as error:
        from lenetgpu.gpu.faults import sentence

        message = sentence(error)
        if not message:
            raise
    complain(message)
    raise click.exceptions.Exit(BAD_INPUT)


def end(ctx: click.Context, outcome: Any) -> None:
    """Say what failed and draw the picture; exit with 1 where a check failed.

    With 130 where Ctrl-C ended the work, with 2 where there was nothing to draw.
    """
    for sentence in outcome.sentences():
        say(sentence, err=True)
    code = 1 if outcome.failed else INTERRUPTED if outcome.document.get("interrupted") else 0
    try:
        outcome.draw()
    except LenetError as error:
        complain(str(error))
        code = code or BAD_INPUT
    ctx.exit(code)


def of_system(error: OSError | ImportError) -> str:
    """The sentence for what the system or a library refused.

    A pipe that nobody reads ends the command here. A module of ours that is not there is raised.
    """
    if isinstance(error, ImportError):
        if error.name is None or error.name.partition(".")[0] == "lenetgpu":
            raise error
        return f"{error.name}: expected a library that can be imported, found: {error}"
    streams_failed = [_cut_off(stream) for stream in (sys.stdout, sys.stderr)]
    if error.errno == errno.EPIPE and error.filename is None:
        raise click.exceptions.Exit(BROKEN_PIPE) from error
    found = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: expected a file that can be used, found: {found}"
    if any(streams_failed) or error.errno in _FULL:
        return f"stdout: expected room for the results, found: {found}"
    try:
        os.getcwd()
    except OSError:
        return "working folder: expected one that exists, found it deleted"
    return f"system: expected it to do what was asked, found: {found}"


def _cut_off(stream: TextIO | Any) -> bool:
    """Whether `stream` cannot be written; what it still holds, and all that follows, is dropped."""
    try:
        stream.flush()
        return False
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        return True
