"""How `--help` reads: arguments explained, options under headings, commands suggested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

HEADINGS: dict[str, tuple[str, ...]] = {
    "Data": (
        "data", "weights", "batch", "limit", "skip", "as_is", "mirror",
        "shard",
    ),
    "What runs": (
        "plan", "conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax", "precision", "device",
        "threads", "streams", "chunk", "transfers", "suite", "lines",
        "model", "epilogue", "bias", "relu", "dtype", "listed", "only", "with_files", "reference",
        "explain", "machine", "tune", "engines", "shares", "workers", "scheduler", "predict",
    ),
    "Time and checks": (
        "repeat", "timing", "seconds", "rounds", "warmup", "watch", "cold_l2", "bitwise",
        "counters", "min_accuracy", "regression", "against", "tries",
    ),
    "Output": (
        "output", "scores", "errors", "json_file", "csv_file", "markdown", "plot", "trace",
        "as_json", "no_progress", "out", "form",
    ),
}  # fmt: skip
"""Heading to the names of its options, as callbacks have them; an option's place is its group."""
OTHER, ALL = "Other", "Options"
_FEW = 6
"""Options up to which a command needs no headings."""
SETTINGS = {
    "help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True,
}  # fmt: skip


class Argument(click.Argument):
    """A positional argument with a sentence that says what it is."""

    def __init__(self, declared: Sequence[str], *, explained: str, **how: Any) -> None:
        super().__init__(declared, **how)
        self.explained = explained


def grouped(options: Iterable[click.Option]) -> dict[str, list[click.Option]]:
    """Heading to its options in the order of the command; one heading where there are few."""
    options = list(options)
    heading_of = {name: heading for heading, names in HEADINGS.items() for name in names}
    found: dict[str, list[click.Option]] = {heading: [] for heading in (*HEADINGS, OTHER)}
    for option in options:
        found[heading_of.get(str(option.name), OTHER)].append(option)
    if len(options) - len(found[OTHER]) <= _FEW:
        return {ALL: options}
    return {heading: members for heading, members in found.items() if members}


def _write(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    params = command.get_params(ctx)
    arguments = [param for param in params if isinstance(param, Argument)]
    if arguments:
        with formatter.section("Arguments"):
            formatter.write_dl([(a.make_metavar(ctx), a.explained) for a in arguments])
    options = grouped(param for param in params if isinstance(param, click.Option))
    for heading, members in options.items():
        with formatter.section(heading):
            formatter.write_dl(
                [row for option in members if (row := option.get_help_record(ctx)) is not None]
            )


class Command(click.Command):
    """A command whose help has its arguments, then its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments and the options."""
        _write(self, ctx, formatter)


class Commands(click.Group):
    """A group of such commands, each with its first sentence, none cut."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options and the commands."""
        _write(self, ctx, formatter)
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl([(n, self.commands[n].get_short_help_str(200)) for n in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with; a usage error suggests one that is near."""
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from lenetgpu.errors import choose

            raise click.UsageError(
                f"command {args[0]!r} does not exist; {choose(args[0], self.list_commands(ctx))}"
            )
        return super().resolve_command(ctx, args)
