"""`lenetgpu classify`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from lenetgpu.cli.ending import say
from lenetgpu.cli.options import (
    DEVICE,
    FILE,
    JSON,
    WEIGHTS,
    console,
    is_stdout,
    request,
    write_json,
)
from lenetgpu.cli.signals import INTERRUPTED


@click.command()
@click.argument("sources", nargs=-1, required=True, type=FILE)
@click.option(
    "--out", required=True, type=FILE, help="Folder of the results, new or one to go on with."
)
@WEIGHTS
@click.option("--plan", default="auto", show_default=True, help="Named plan of variants.")
@click.option("--precision", help="Precision that the plan must compute in, as fp32.")
@DEVICE
@click.option("--threads", type=int, help="A CPU's threads, of each worker.  [default: all]")
@click.option("--shard", default=1_000_000, show_default=True, help="Images of a shard at most.")
@click.option("--form", default="npy", show_default=True, help="npy, csv, h5, json or parquet.")
@click.option("--scores", is_flag=True, help="Scores beside the labels.")
@click.option(
    "--tries", default=3, show_default=True, help="Times a shard is begun before it is set aside."
)
@click.option(
    "--workers",
    metavar="N|cuda",
    help="N processes of Dask's, or one a GPU.  [default: this process]",
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="A Dask cluster that is there, as tcp://host:8786."
)
@click.option(
    "--predict", is_flag=True, help="Say what 1 to 64 workers would come to; classify nothing."
)
@JSON
@click.option("--no-progress", is_flag=True, help="No progress line.")
@click.pass_context
def classify(
    ctx: click.Context,
    /,
    no_progress: bool,
    predict: bool,
    json_file: Path | None,
    **options: Any,
) -> None:
    """Classify many files in shards; the same command goes on where it was ended.

    SOURCES are files, folders and patterns of all that `infer` reads. Each shard's labels get a
    file in --out, and a line in its manifest when the file is whole.
    """
    from lenetgpu.commands.classify import ClassifyRequest
    from lenetgpu.commands.classify import classify as job
    from lenetgpu.files.output import require_targets
    from lenetgpu.show.classify import lines, print_predicted
    from lenetgpu.show.progress import status_line

    require_targets(json_file, sources=(*options["sources"], options["weights"]))
    asked, err = request(ClassifyRequest, options), is_stdout(json_file)
    with status_line(enabled=not no_progress, rate=True) as status:
        if predict:
            from lenetgpu.commands.foreseen import foresee

            foreseen = foresee(asked, status)
        else:
            outcome = job(asked, status, partial(say, err=True))
    if json_file is not None:
        write_json(json_file, (foreseen if predict else outcome).document())
    if predict:
        print_predicted(console(err), foreseen)
        return
    for line in lines(outcome):
        say(line, err=err)
    if outcome.interrupted:
        say(
            f"lenetgpu: interrupted: {outcome.left:,} shards left; the same command goes on",
            err=True,
        )
        ctx.exit(INTERRUPTED)
    if outcome.bad or outcome.failed:
        ctx.exit(1)
