"""`lenetgpu report`: one page to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lenetgpu.cli.ending import say
from lenetgpu.cli.options import DEVICE, FILE, WEIGHTS, request


@click.command()
@click.argument("out", type=FILE)
@click.argument("files", type=FILE, nargs=-1)
@click.option("--plan", default="auto", show_default=True, help="The plan that runs.")
@WEIGHTS
@click.option("--data", type=FILE, help="The images that are read; default: those that ship.")
@click.option("--limit", type=int, help="Only so many images of the data set.")
@DEVICE
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    help="The time for comparing plans and stages; 0 compares none.",
)
@click.option("--no-progress", is_flag=True, help="No progress line.")
@click.pass_context
def report(ctx: click.Context, /, out: Path, no_progress: bool, **options: Any) -> None:
    """Write OUT.html, one page to read: of a fresh run, or of earlier ones' JSON FILES and folders.

    The page is one file that loads nothing: open it in any browser.
    """
    from lenetgpu.commands.report import ReportRequest, run_report
    from lenetgpu.show.progress import status_line

    asked = request(ReportRequest, options, out=out)
    with status_line(enabled=not no_progress) as told:
        made = run_report(asked, told)
    for sentence in made.sentences():
        say(sentence, err=True)
    files = f" from {len(made.documents):,} files" if asked.files else ""
    say(f"{out}: {made.size / 1e6:.1f} MB{files}")
    ctx.exit(1 if made.wrong else 0)
