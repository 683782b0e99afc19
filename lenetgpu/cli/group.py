"""The group of all commands: what goes wrong becomes one sentence and an exit code."""

from __future__ import annotations

import time
from typing import Any

import click

from lenetgpu.cli.ending import BAD_INPUT, complain, ended, require_streams, say
from lenetgpu.cli.help import Commands
from lenetgpu.cli.signals import INTERRUPTED, stoppable
from lenetgpu.errors import LenetError

COMPLETE = "_LENETGPU_COMPLETE"
"""The variable by which a shell asks for completions."""
STARTED = time.perf_counter()


class Group(Commands):
    """Prints bad input and usage as one sentence and exits with code 2; with 130 on Ctrl-C."""

    def make_context(self, *words: Any, **more: Any) -> click.Context:
        """The context of a command line; --help, --version and bad options end like a command."""
        with ended():
            require_streams()
            return super().make_context(*words, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; code 2 for LenetError, bad usage, no memory, what the system refuses."""
        try:
            return stoppable(lambda: self._invoke(ctx))
        except KeyboardInterrupt:
            say("lenetgpu: interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def _invoke(self, ctx: click.Context) -> Any:
        with ended():
            return super().invoke(ctx)


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
