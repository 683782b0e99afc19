"""How `--help` reads: arguments explained, options under headings, a default said once."""

from __future__ import annotations

import shutil
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
_WIDEST, _LEAST = 100, 20


class Context(click.Context):
    """Help as wide as the terminal, up to a width that reads well."""

    def make_formatter(self) -> click.HelpFormatter:
        """Click's formatter, which would be at least 50 wide in any terminal."""
        columns = shutil.get_terminal_size().columns
        return click.HelpFormatter(width=max(_LEAST, min(columns, _WIDEST) - 2))


class Argument(click.Argument):
    """A positional argument with a sentence that says what it is."""

    def __init__(self, declared: Sequence[str], *, explained: str, **how: Any) -> None:
        super().__init__(declared, **how)
        self.explained = explained


def default_of(option: click.Option, ctx: click.Context) -> str | None:
    """What an option is where it is not given, as the help says it; None where it is nothing.

    `show_default="words"` says it where the default is found out only when the command runs.
    """
    if isinstance(option.show_default, str):
        return option.show_default
    value = option.get_default(ctx, call=False)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    return f"{value:g}" if isinstance(value, float) else str(value)


def option_row(option: click.Option, ctx: click.Context) -> tuple[str, str] | None:
    """An option's names, and its sentence with the default behind it; None where it is hidden."""
    shown, option.show_default = option.show_default, False
    try:
        record = option.get_help_record(ctx)
    finally:
        option.show_default = shown
    if record is None:
        return None
    default = default_of(option, ctx)
    return record[0], record[1] + (f"  [default: {default}]" if default is not None else "")


def heading_of(option: click.Option) -> str:
    """The heading that an option stands under in a command of many."""
    return next((name for name, held in HEADINGS.items() if option.name in held), OTHER)


def grouped(options: Iterable[click.Option]) -> dict[str, list[click.Option]]:
    """Heading to its options in the order of the command; one heading where there are few."""
    options = list(options)
    if sum(heading_of(option) != OTHER for option in options) <= _FEW:
        return {ALL: options} if options else {}
    found: dict[str, list[click.Option]] = {heading: [] for heading in (*HEADINGS, OTHER)}
    for option in options:
        found[heading_of(option)].append(option)
    return {heading: members for heading, members in found.items() if members}


def _write(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    params = command.get_params(ctx)
    arguments = [param for param in params if isinstance(param, Argument)]
    if arguments:
        with formatter.section("Arguments"):
            formatter.write_dl([(a.make_metavar(ctx), a.explained) for a in arguments])
    options = grouped(param for param in params if isinstance(param, click.Option))
    for heading, members in options.items():
        rows = [option_row(option, ctx) for option in members]
        with formatter.section(heading):
            formatter.write_dl([row for row in rows if row is not None])


class Command(click.Command):
    """A command whose help has its arguments, then its options under headings."""

    context_class = Context

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The arguments and the options."""
        _write(self, ctx, formatter)


class Commands(click.Group):
    """A group of such commands, each with its first sentence, none cut."""

    context_class = Context
    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options and the commands."""
        _write(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A row a command."""
        rows = [(name, _first(self.commands[name])) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with; a usage error names one that is spelt like it."""
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from lenetgpu.errors import choose

            raise click.UsageError(
                f"command {args[0]!r} does not exist; {choose(args[0], self.list_commands(ctx))}"
            )
        return super().resolve_command(ctx, args)


def _first(command: click.Command) -> str:
    """The first sentence of a command's help, on one line."""
    words = " ".join((command.help or "").split())
    return words.partition(". ")[0].rstrip(".") + "."
