"""The group `lenetgpu` with all commands."""

from __future__ import annotations

from typing import Any

import click

from lenetgpu import __version__
from lenetgpu.cli import files, laboratory, machine, run
from lenetgpu.cli.ending import ended, require_streams, say
from lenetgpu.cli.help import SETTINGS, Commands
from lenetgpu.cli.signals import INTERRUPTED, stoppable


class Group(Commands):
    """Group of all commands; errors end in one sentence and an exit code."""

    def make_context(self, *words: Any, **more: Any) -> click.Context:
        """Parse a command line; errors and --help end like a command."""
        with ended():
            require_streams()
            return super().make_context(*words, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C ends it with 130."""
        try:
            return stoppable(lambda: self._invoke(ctx))
        except KeyboardInterrupt:
            say("lenetgpu: interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def _invoke(self, ctx: click.Context) -> Any:
        with ended():
            return super().invoke(ctx)


@click.group(cls=Group, context_settings=SETTINGS)
@click.version_option(__version__)
def main() -> None:
    """Classify handwritten digits with LeNet, every stage switchable, on a GPU or a CPU."""


for _command in (
    run.infer, run.profile, run.classify, run.report, laboratory.compare, laboratory.conv,
    machine.variants, machine.doctor, machine.warmup, machine.completion, files.data, files.weights,
):  # fmt: skip
    main.add_command(_command)
