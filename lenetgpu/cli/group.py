"""The group of all commands: what goes wrong becomes one sentence and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import Any

import click

from lenetgpu.cli.signals import INTERRUPTED, stoppable
from lenetgpu.errors import LenetError

STARTED = time.perf_counter()


class Group(click.Group):
    """Prints bad input and usage as one sentence and exits with code 2; with 130 on Ctrl-C."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; LenetError, bad usage, no memory and a full disk end in exit code 2."""
        try:
            return stoppable(lambda: self._invoke(ctx))
        except KeyboardInterrupt:
            click.echo("lenetgpu: interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            _require_streams()
            return super().invoke(ctx)
        except LenetError as error:
            message = str(error)
        except click.UsageError as error:
            message = error.format_message()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            message = f"stdout: expected room for the results, found: {error.strerror}"
        except Exception as error:
            from lenetgpu.gpu.faults import sentence

            message = sentence(error)
            if not message:
                raise
        click.echo(f"lenetgpu: error: {message}", err=True)
        ctx.exit(2)


def _require_streams() -> None:
    """LenetError where stdout is closed; a closed stderr is nowhere."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = sys.stderr
        raise LenetError("stdout: expected a place for the results, found it closed")


def end(ctx: click.Context, outcome: Any) -> None:
    """Say what failed and draw the picture; exit with 1 where a check failed.

    With 130 where Ctrl-C ended the work, with 2 where there was nothing to draw.
    """
    for sentence in outcome.sentences():
        click.echo(sentence, err=True)
    code = 1 if outcome.failed else INTERRUPTED if outcome.document.get("interrupted") else 0
    try:
        outcome.draw()
    except LenetError as error:
        click.echo(f"lenetgpu: error: {error}", err=True)
        code = code or 2
    ctx.exit(code)
