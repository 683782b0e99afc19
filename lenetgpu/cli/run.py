"""`lenetgpu infer` and `lenetgpu profile`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from lenetgpu.cli.ending import say
from lenetgpu.cli.group import STARTED
from lenetgpu.cli.options import (
    COUNTERS,
    CSV,
    FILE,
    JSON,
    MARKDOWN,
    console,
    is_stdout,
    overrides,
    request,
    run_options,
    write_json,
    write_text,
)
from lenetgpu.cli.signals import INTERRUPTED


@click.command()
@click.argument("data", nargs=-1, type=click.Path(readable=False))
@run_options
@click.option("--as-is", is_flag=True, help="pictures made grey and 28x28, not prepared as MNIST's")
@click.option("--repeat", default=0, help="pass N more times, for medians and their spread")
@click.option("--timing", is_flag=True, help="a row per stage, timed in passes of their own")
@click.option("--output", type=FILE, help="labels to FILE.npy, .csv, .h5 or .json")
@click.option("--scores", is_flag=True, help="scores beside the labels in --output")
@JSON
@click.option("--min-accuracy", type=float, help="exit with 1 below this share, as 0.99")
@click.option("--no-progress", is_flag=True, help="no progress bar")
@click.pass_context
def infer(
    ctx: click.Context,
    /,
    data: tuple[str, ...],
    output: Path | None,
    json_file: Path | None,
    no_progress: bool,
    as_is: bool,
    **options: Any,
) -> None:
    """Classify images, each once; DATA is HDF5, IDX or .npy, default: the digits that ship.

    Or DATA is your own pictures: any number of files, folders and patterns, - for stdin.
    """
    from lenetgpu.gpu.device import begin

    begin(options["device"])
    from lenetgpu.cli.pictures import given
    from lenetgpu.commands import infer as job
    from lenetgpu.files import output as files
    from lenetgpu.measure.document import infer_json
    from lenetgpu.measure.outcome import Request
    from lenetgpu.show.infer import print_infer
    from lenetgpu.show.progress import progress_bar

    if output is not None:
        files.check_target(output)
    pictures = given(data, as_is, output)
    files.require_targets(output, json_file, sources=(*pictures.files, options["weights"]))
    import_ms = (time.perf_counter() - STARTED) * 1e3
    more = {"data": pictures.data, "roofline": options["timing"]}
    asked = request(Request, options, overrides=overrides(options), **more)
    pictures.read(asked, not no_progress)
    with progress_bar(enabled=not no_progress) as progress:
        outcome = pictures.classified(asked, progress) or job.infer(asked, progress, output)
    if json_file is not None:
        write_json(json_file, infer_json(outcome, import_ms) | outcome.ended() | pictures.json())
    shown = console(stderr=is_stdout(json_file))
    pictures.print(shown)
    print_infer(shown, outcome, import_ms)
    if outcome.interrupted:
        kept = f"; {output} holds their labels only" if output is not None else ""
        say(outcome.sentence() + kept, err=True)
        ctx.exit(INTERRUPTED)
    if outcome.too_low:
        found = f"{outcome.correct:,} of {outcome.done:,} right"
        least = f"a share of at least {options['min_accuracy']:g}"
        say(f"WRONG: --min-accuracy: expected {least}, found {found}", err=True)
        ctx.exit(1)
    if pictures.bad:
        ctx.exit(1)


@click.command()
@click.argument("data", required=False, type=FILE)
@run_options
@JSON
@CSV
@MARKDOWN
@click.option("--trace", type=FILE, help="Chrome trace of stages, copies and streams")
@COUNTERS
@click.option("--no-progress", is_flag=True, help="no progress bar")
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
    """Per-stage report of a plan: times, rates, roofline, launches, occupancy, residual."""
    from lenetgpu.commands import profile as job
    from lenetgpu.files import output as files
    from lenetgpu.measure.outcome import Request
    from lenetgpu.show.progress import progress_bar

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
        (csv_file, found.as_csv, bool(found.rows)),
        (markdown, found.as_markdown, bool(found.rows)),
        (trace, found.as_trace, bool(found.outcome.trace)),
    ):
        if target is not None and there:
            write_text(target, write())
        elif target is not None:
            left.append(f"; {target} is not written, there is nothing for it")
    found.print(console(stderr=is_stdout(json_file, csv_file, markdown, trace)))
    if found.outcome.interrupted:
        say(found.outcome.sentence() + found.passes() + "".join(left), err=True)
        ctx.exit(INTERRUPTED)
