"""`lenetgpu report`: one page to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lenetgpu.cli import completing
from lenetgpu.cli.ending import say
from lenetgpu.cli.help import Argument, Command
from lenetgpu.cli.options import DEVICE, FILE, NO_PROGRESS, WEIGHTS, number, request


@click.command(cls=Command)
@click.argument(
    "out", cls=Argument, type=FILE, explained="The page to write, a name ending in .html."
)
@click.argument(
    "files",
    cls=Argument,
    type=FILE,
    nargs=-1,
    explained="JSON of earlier runs, and folders of such files; without any, a fresh run.",
)
@click.option(
    "--plan",
    default="auto",
    metavar="PLAN",
    shell_complete=completing.plans,
    help="The plan that runs.",
)
@WEIGHTS
@click.option(
    "--data", type=FILE, show_default="the digits that ship", help="The images that are read."
)
@number("--limit", "Only so many images of the data set.", show_default="all")
@DEVICE
@click.option(
    "--seconds",
    default=60.0,
    metavar="S",
    help="The time for comparing plans and stages, with their checks and beside the run itself; "
    "what does not fit is left out and said; 0 compares none.",
)
@NO_PROGRESS
@click.pass_context
def report(ctx: click.Context, /, out: Path, no_progress: bool, **options: Any) -> None:
    """Write one page to read, of a fresh run or of the JSON of earlier ones.

    The page is one file that loads nothing: open it in any browser.
    """
    from lenetgpu.lab.console import status_line
    from lenetgpu.lab.report import ReportRequest, run_report

    given = tuple(str(option.name) for option in ctx.command.params
                  if isinstance(option, click.Option) and option.name in options
                  and ctx.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
                  )  # fmt: skip
    asked = request(ReportRequest, options, out=out, given=given)
    with status_line(enabled=not no_progress) as told:
        made = run_report(asked, told)
    for sentence in made.sentences():
        say(sentence, err=True)
    files = f" from {made.files:,} file{'s' * (made.files != 1)}" if asked.files else ""
    say(f"{out}: {made.size / 1e6:.1f} MB{files}")
    ctx.exit(1 if made.wrong else 0)
