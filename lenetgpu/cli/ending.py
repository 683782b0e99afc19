"""Output of a command, and its end when the system refuses to write it."""

import errno
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

import click

from lenetgpu.cli.signals import INTERRUPTED
from lenetgpu.errors import LenetError, one_line

STARTED = time.perf_counter()
_LONGEST_S = 60.0
# Exit codes; 141 (128 + SIGPIPE) is what a shell shows when a process is killed for writing to a
# closed pipe.
BAD_INPUT, BROKEN_PIPE = 2, 141
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def phases_before() -> dict[str, float]:
    """Return this process' milliseconds: "import" since STARTED, "start" before it, if known."""
    phases = {"import": 1e3 * (time.perf_counter() - STARTED)}
    with suppress(OSError, ValueError, IndexError, AttributeError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        if age_s < _LONGEST_S:  # older: another program's process, or times counted otherwise
            phases["start"] = max(0.0, 1e3 * age_s - phases["import"])
    return phases


def say(text: object, err: bool = False) -> None:
    """Write a line to stdout or stderr, escaped by `one_line`."""
    click.echo(one_line(text), err=err)


def complain(message: str) -> None:
    """Write an error message to stderr; do nothing if stderr is not writable."""
    with suppress(OSError):
        say(f"lenetgpu: error: {message}", err=True)
    _cut_off(sys.stderr)


def require_streams() -> None:
    """Raise LenetError if stdout is closed; replace a closed stderr by the null device."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = sys.stderr
        raise LenetError("stdout: expected an open stream for the results, found a closed one")
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")  # characters that its encoding lacks


def console(stderr: bool = False) -> Any:
    """Return the console for human-readable results."""
    from lenetgpu.lab.console import Console

    return Console(stderr)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print a line for each (name, value)."""
    out = console()
    for name, value in pairs:
        out.print(f"{name:13} {value}")


def is_stdout(*targets: Path | None) -> bool:
    """Return True if a target is stdout, so that tables go to stderr."""
    return "-" in map(str, targets)


def write_json(target: Path, document: dict[str, Any]) -> None:
    """Write `document` as JSON to `target`, - for stdout."""
    from lenetgpu.store import json_text

    write_text(target, json_text(document, indent=1) + "\n")


def write_text(target: Path, text: str) -> None:
    """Write `text` to `target`, - for stdout."""
    from lenetgpu.store import write_atomically

    if str(target) == "-":
        click.echo(text, nl=False)
    else:
        write_atomically(target, text.encode(errors="backslashreplace"))


@contextmanager
def ended() -> Iterator[None]:
    """Turn errors of input, system, memory and GPU into a message and an exit code."""
    try:
        yield
        return
    except LenetError as error:
        message = str(error)
    except (click.exceptions.NoArgsIsHelpError, click.exceptions.Exit, click.Abort):
        raise
    except click.UsageError as error:
        message = _of_usage(error)
    except (OSError, ImportError) as error:
        message = of_system(error)
    except Exception as error:
        from lenetgpu.gpu.faults import sentence

        message = sentence(error)
        if not message:
            raise
    complain(message)
    raise click.exceptions.Exit(BAD_INPUT)


def _of_usage(error: click.UsageError) -> str:
    """Return the message of a usage error on one line; suggest only similar options."""
    if isinstance(error, click.NoSuchOption):
        name = error.option_name.lstrip("-")
        known = {option.lstrip("-"): option for option in error.possibilities or ()}
        similar = [known[word] for word in get_close_matches(name, known)]
        for param in error.ctx.command.params if error.ctx else ():
            if isinstance(param, click.Argument) and param.name == name:
                return f"{name.upper()} is an argument, not an option; give it without --{name}"
        error = click.NoSuchOption(error.option_name, possibilities=similar, ctx=error.ctx)
    return " ".join(error.format_message().split())


def end(ctx: click.Context, outcome: Any) -> None:
    """Print failures and draw the picture; exit with 1 if a check failed, 130 after Ctrl-C."""
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
    """Return the message for an error of the system or a library; end the command on EPIPE."""
    cause: BaseException | None = error
    while cause is not None:
        if "failed to map segment" in str(cause) or getattr(cause, "errno", 0) == errno.ENOMEM:
            return "memory: expected enough to load the libraries, found less; raise `ulimit -v`"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, ImportError):
        if error.name is None or error.name.partition(".")[0] == "lenetgpu":
            raise error  # one of our modules is broken
        return f"{error.name}: expected a library that can be imported, found: {error}"
    streams_failed = [_cut_off(stream) for stream in (sys.stdout, sys.stderr)]
    if error.errno == errno.EPIPE and error.filename is None:
        raise click.exceptions.Exit(BROKEN_PIPE) from error
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: expected a file that can be used, found: {reason}"
    if any(streams_failed) or error.errno in _FULL:
        return f"stdout: expected space for the results, found: {reason}"
    try:
        os.getcwd()
    except OSError:
        return "working folder: expected an existing folder, found a deleted one"
    return f"system error: {reason}"


def _cut_off(stream: TextIO | Any) -> bool:
    """Flush `stream`; return True if it fails, and discard what it holds and all further output."""
    try:
        stream.flush()
        return False
    except (OSError, ValueError):
        with suppress(OSError, ValueError), open(os.devnull, "w") as null:
            os.dup2(null.fileno(), stream.fileno())
        return True
