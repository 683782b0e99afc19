"""`lenetgpu classify`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from lenetgpu.cli import completing
from lenetgpu.cli.ending import say
from lenetgpu.cli.help import Argument, Command
from lenetgpu.cli.options import (
    AS_IS,
    DEVICE,
    FILE,
    JSON,
    NO_PROGRESS,
    PLAN,
    PRECISION,
    WEIGHTS,
    console,
    is_stdout,
    number,
    request,
    write_json,
)
from lenetgpu.cli.signals import INTERRUPTED


@click.command(cls=Command)
@click.argument(
    "sources",
    cls=Argument,
    nargs=-1,
    required=True,
    type=FILE,
    explained="Files of images (HDF5, IDX, .npy), or pictures: files, folders, patterns.",
)
@click.option(
    "--out", required=True, type=FILE, help="Folder of the results, new or one to go on with."
)
@WEIGHTS
@PLAN
@PRECISION
@DEVICE
@number("--threads", "CPU threads of each worker.", show_default="all it may use")
@AS_IS
@number("--shard", "Images of a shard at most.", show_default="1000000, of pictures 1000")
@click.option(
    "--form",
    default="npy",
    metavar="FORM",
    shell_complete=completing.forms,
    help="Form of a shard's file: npy, csv, h5, json or parquet.",
)
@click.option("--scores", is_flag=True, help="Scores beside the labels.")
@number("--tries", "Times that a shard is begun before it is set aside.", default=3)
@click.option(
    "--workers",
    metavar="N|cuda",
    show_default="this process",
    shell_complete=completing.words(("cuda", "a process for each GPU")),
    help="Dask's processes: N, or one a GPU.",
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="A Dask cluster that is there, as tcp://host:8786."
)
@click.option(
    "--predict", is_flag=True, help="Say what 1 to 64 workers would come to; classify nothing."
)
@JSON
@NO_PROGRESS
@click.pass_context
def classify(
    ctx: click.Context, /, no_progress: bool, predict: bool, json_file: Path | None, **options: Any
) -> None:
    """Classify many files in shards; the same command goes on where it was ended.

    Each shard's labels get a file in the folder, and a line in its manifest when that is whole.
    """
    from lenetgpu.files.output import require_targets
    from lenetgpu.lab.classified import lines, print_predicted
    from lenetgpu.lab.classify import ClassifyRequest, require_outside
    from lenetgpu.lab.classify import classify as job
    from lenetgpu.lab.console import status_line

    require_targets(json_file, sources=(*options["sources"], options["weights"]))
    require_outside(options["out"], json_file)
    asked, err = request(ClassifyRequest, options), is_stdout(json_file)
    with status_line(enabled=not no_progress, rate=True) as status:
        if predict:
            from lenetgpu.lab.foreseen import foresee

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
        left = f"{outcome.left:,} shards left; the same command goes on"
        say(f"lenetgpu: interrupted: {left}", err=True)
        ctx.exit(INTERRUPTED)
    if outcome.bad or outcome.failed or outcome.lacking or outcome.altered:
        ctx.exit(1)
