"""Formatting of `--help`: arguments, options under headings, examples; command suggestions."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from lenetgpu.ini import ini

OTHER, ALL = "Other", "Options"
_FEW = 6  # commands with at most this many options have no headings
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


def texts(section: str) -> dict[str, str]:
    """Return a section of help.ini: headings of parameters, or examples of commands."""
    return ini(Path(__file__).with_suffix(".ini"))[section]


class Argument(click.Argument):
    """A positional argument with a description."""

    def __init__(self, declared: Sequence[str], *, explained: str, **how: Any) -> None:
        super().__init__(declared, **how)
        self.explained = explained


def grouped(options: Iterable[click.Option]) -> dict[str, list[click.Option]]:
    """Group options by heading, in command order; few options have a single heading."""
    options, headings = list(options), texts("headings")
    heading_of = {name: heading for heading, names in headings.items() for name in names.split()}
    groups: dict[str, list[click.Option]] = {heading: [] for heading in (*headings, OTHER)}
    for option in options:
        groups[heading_of.get(str(option.name), OTHER)].append(option)
    if len(options) - len(groups[OTHER]) <= _FEW:
        return {ALL: options}
    return {heading: members for heading, members in groups.items() if members}


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
    words, examples = ctx.command_path.split()[-2:], texts("examples")
    name = next((name for name in (" ".join(words), words[-1]) if name in examples), "")
    if name:
        with formatter.section("Examples"):
            for line in examples[name].splitlines():
                formatter.write_text(f"lenetgpu {name} {line}".rstrip())


class Command(click.Command):
    """A command whose help has arguments, grouped options and examples."""

    format_options = _write


class Commands(click.Group):
    """A group of such commands; summaries are not shortened."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options and commands."""
        _write(self, ctx, formatter)
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl([(n, self.commands[n].get_short_help_str(200)) for n in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command in `args`; the usage error suggests similar names."""
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from lenetgpu.errors import choose

            raise click.UsageError(
                f"command {args[0]!r} does not exist; {choose(args[0], self.list_commands(ctx))}"
            )
        return super().resolve_command(ctx, args)
