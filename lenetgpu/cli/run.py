"""`lenetgpu infer` and `lenetgpu profile`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from lenetgpu.cli.ending import STARTED, say
from lenetgpu.cli.help import Argument, Command
from lenetgpu.cli.options import (
    AS_IS,
    COUNTERS,
    CSV,
    FILE,
    JSON,
    MARKDOWN,
    NO_PROGRESS,
    Named,
    console,
    is_stdout,
    number,
    overrides,
    request,
    run_options,
    write_json,
    write_text,
)
from lenetgpu.cli.signals import INTERRUPTED


@click.command(cls=Command)
@click.argument(
    "data",
    cls=Argument,
    nargs=-1,
    type=Named(readable=False),
    explained="Images in HDF5, IDX or .npy form; or pictures: files, folders, "
    "patterns, - for stdin; without it, the digits that ship.",
)
@run_options
@AS_IS
@number("--repeat", "Pass N more times, for medians and their spread.", default=0)
@click.option("--timing", is_flag=True, help="Print a row per stage, timed in passes of their own.")
@click.option("--output", type=FILE, help="Labels to FILE.npy, .csv, .h5, .json or .parquet.")
@click.option(
    "--scores", is_flag=True, help="Scores beside the labels in --output; without it, printed."
)
@click.option(
    "--errors",
    type=FILE,
    help="What is read wrong, drawn in FILE.png or .html, or listed in FILE.csv.",
)
@JSON
@click.option(
    "--min-accuracy",
    type=float,
    metavar="SHARE",
    help="Exit with 1 where a smaller share is right, as 0.99.",
)
@NO_PROGRESS
@click.pass_context
def infer(
    ctx: click.Context,
    /,
    data: tuple[str, ...],
    output: Path | None,
    errors: Path | None,
    json_file: Path | None,
    no_progress: bool,
    as_is: bool,
    **options: Any,
) -> None:
    """Classify images, each once."""
    from lenetgpu.gpu.device import begin

    begin(options["device"])
    from lenetgpu.cli.pictures import given
    from lenetgpu.files import output as files
    from lenetgpu.lab import infer as job
    from lenetgpu.lab.console import progress_bar
    from lenetgpu.lab.mistakes import check_errors, write_errors
    from lenetgpu.lab.summary import print_infer, print_scores
    from lenetgpu.measure.document import infer_json
    from lenetgpu.measure.outcome import Request

    if output is not None:
        files.check_target(output)
    if errors is not None:
        check_errors(errors)
    pictures = given(data, as_is)
    read = *pictures.files, options["weights"]
    files.require_targets(output, json_file, errors, sources=read)
    import_ms = (time.perf_counter() - STARTED) * 1e3
    asked = request(
        Request,
        options,
        overrides=overrides(options),
        data=pictures.data,
        roofline=options["timing"],
        mistakes=errors is not None,
        each=True,
    )
    pictures.read(asked, not no_progress)
    with progress_bar(enabled=not no_progress) as progress:
        outcome = pictures.classified(asked, progress, output) or job.infer(asked, progress, output)
    pictures.take(outcome)
    if json_file is not None:
        write_json(json_file, infer_json(outcome, import_ms) | outcome.ended() | pictures.json())
    if errors is not None:
        write_errors(errors, outcome)
    shown = console(stderr=is_stdout(json_file))
    pictures.print(shown, outcome)
    print_infer(shown, outcome, import_ms)
    if options["scores"] and output is None:
        print_scores(shown, outcome)
    if outcome.interrupted:
        kept = f"; {output} holds their labels only" if output is not None else ""
        say(outcome.sentence() + kept, err=True)
        ctx.exit(INTERRUPTED)
    if outcome.too_low:
        found = f"{outcome.correct:,} of {outcome.done:,} right"
        least = f"a share of at least {asked.min_accuracy:g}"
        say(f"WRONG: --min-accuracy: expected {least}, found {found}", err=True)
    if outcome.too_low or pictures.bad:
        ctx.exit(1)


@click.command(cls=Command)
@click.argument(
    "data",
    cls=Argument,
    required=False,
    type=FILE,
    explained="Images in HDF5, IDX or .npy form; without it, the digits that ship.",
)
@run_options
@JSON
@CSV
@MARKDOWN
@click.option("--trace", type=FILE, help="Chrome trace of stages, copies and streams.")
@COUNTERS
@NO_PROGRESS
@click.pass_context
def profile(
    ctx: click.Context,
    /,
    json_file: Path | None,
    csv_file: Path | None,
    markdown: Path | None,
    trace: Path | None,
    counters: bool,
    no_progress: bool,
    **options: Any,
) -> None:
    """Time a plan stage by stage: rates, roofline, launches, occupancy, residual."""
    from lenetgpu.files import output as files
    from lenetgpu.lab import profile as job
    from lenetgpu.lab.console import progress_bar
    from lenetgpu.lab.render import show
    from lenetgpu.measure.outcome import Request

    read = options["data"], options["weights"]
    files.require_targets(json_file, csv_file, markdown, trace, sources=read)
    asked = request(
        Request,
        options,
        overrides=overrides(options),
        timing=True,
        roofline=True,
        trace=trace is not None,
    )
    with progress_bar(enabled=not no_progress) as progress:
        found = job.profile(asked, progress, counters)
    left = []
    for target, write, there in (
        (json_file, found.as_json, True),
        (csv_file, found.table().csv, bool(found.rows)),
        (markdown, found.table().markdown, bool(found.rows)),
        (trace, found.as_trace, bool(found.outcome.trace)),
    ):
        if target is not None and there:
            write_text(target, write())
        elif target is not None:
            left.append(f"; {target} is not written, there is nothing for it")
    show(console(stderr=is_stdout(json_file, csv_file, markdown, trace)), found.parts())
    if found.outcome.interrupted:
        say(found.outcome.sentence() + found.passes() + "".join(left), err=True)
        ctx.exit(INTERRUPTED)
