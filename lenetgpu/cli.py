"""The command line: options in, one call, results out. No logic lives here."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lenetgpu import __version__
from lenetgpu.errors import LenetError

_STARTED = time.perf_counter()
_STAGES = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax")
_FILE_WIDTH = 160
_FILE = click.Path(path_type=Path)


class _Group(click.Group):
    """Prints a LenetError as one sentence and exits with code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LenetError as error:
            click.echo(f"lenetgpu: error: {error}", err=True)
            ctx.exit(2)


def _stage_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for stage in reversed(_STAGES):
        text = f"variant of {stage}; `lenetgpu variants {stage}` lists them"
        command = click.option(f"--{stage}", metavar="VARIANT", help=text)(command)
    return command


def _overrides(options: dict[str, Any]) -> dict[str, str]:
    return {stage: options[stage] for stage in _STAGES if options.get(stage)}


def _console(stderr: bool = False) -> Any:
    import sys

    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _FILE_WIDTH)


def _write_json(target: Path, document: dict[str, Any]) -> None:
    import json

    from lenetgpu.gpu.nvrtc import write_atomically

    text = json.dumps(document, indent=1) + "\n"
    if str(target) == "-":
        click.echo(text, nl=False)
    else:
        write_atomically(target, text.encode())


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Classify handwritten digits with LeNet, every stage switchable, on a GPU or a CPU."""


@main.command()
@click.argument("data", required=False, type=_FILE)
@click.option("--weights", type=_FILE, help="HDF5 weights; default: the ones that ship")
@click.option("--batch", default=10_000, show_default=True, help="images in one pass")
@click.option("--limit", type=int, help="only the first images of the data set")
@click.option("--plan", default="auto", show_default=True, help="named plan of variants")
@_stage_options
@click.option("--precision", help="precision that the plan must compute in, as fp32")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:K")
@click.option("--streams", default=1, show_default=True, help="CUDA streams for chunks")
@click.option("--chunk", type=int, help="images that pass through all stages together")
@click.option("--timing", is_flag=True, help="print a row per stage")
@click.option("--output", type=_FILE, help="labels to FILE.npy, .csv, .h5 or .json")
@click.option("--scores", is_flag=True, help="scores beside the labels in --output")
@click.option("--json", "json_file", type=_FILE, help="results to a JSON file, - for stdout")
@click.option("--min-accuracy", type=float, help="exit with 1 below this share, as 0.99")
@click.option("--no-progress", is_flag=True, help="no progress bar")
@click.pass_context
def infer(
    ctx: click.Context,
    /,
    data: Path | None,
    weights: Path | None,
    batch: int,
    limit: int | None,
    plan: str,
    precision: str | None,
    device: str,
    streams: int,
    chunk: int | None,
    timing: bool,
    output: Path | None,
    scores: bool,
    json_file: Path | None,
    min_accuracy: float | None,
    no_progress: bool,
    **stages: str | None,
) -> None:
    """Classify images; DATA is HDF5 or IDX, default: the 10,000 digits that ship."""
    from lenetgpu import inference
    from lenetgpu import output as files
    from lenetgpu.lab import report
    from lenetgpu.progress import progress_bar

    if output is not None:
        files.check_target(output)
    if json_file is not None and str(json_file) != "-":
        files.require_folder(json_file)
    import_ms = (time.perf_counter() - _STARTED) * 1e3
    request = inference.Request(
        data, weights, batch, limit, plan, _overrides(stages), precision, device, streams, chunk,
        timing, scores,
    )  # fmt: skip
    with progress_bar(enabled=not no_progress) as progress:
        outcome = inference.infer(request, progress)
    if output is not None:
        files.write_labels(output, outcome.labels, outcome.scores)
    to_stdout = json_file is not None and str(json_file) == "-"
    if json_file is not None:
        _write_json(json_file, report.infer_json(outcome, import_ms))
    report.print_infer(_console(stderr=to_stdout), outcome, import_ms)
    if min_accuracy is not None and outcome.below(min_accuracy):
        ctx.exit(1)


@main.command("variants")
@click.argument("stage", required=False)
@click.option("--json", "as_json", is_flag=True, help="JSON to stdout")
def variants_command(stage: str | None, as_json: bool) -> None:
    """List what can be switched, of all stages or of STAGE (conv2) or a kind (conv)."""
    from lenetgpu.lab import listing

    rows = listing.variant_rows(stage)
    if as_json:
        _write_json(Path("-"), {"schema": 1, "command": "variants", "variants": rows})
    else:
        click.echo("\n".join(listing.variant_lines(rows)))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="JSON to stdout")
def doctor(as_json: bool) -> None:
    """Show the GPU, the libraries, the kernel cache and what would run."""
    from lenetgpu import doctor as checkup

    if as_json:
        _write_json(Path("-"), checkup.as_json())
        return
    for what, found in checkup.findings():
        click.echo(f"{what:13} {found}")


@main.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:K")
def warmup(device: str) -> None:
    """Compile every variant of the network for this machine now."""
    from lenetgpu import inference
    from lenetgpu.lab.warmup import warm_up

    gpu, why = inference.choose_device(device)
    count, seconds = warm_up(gpu)
    click.echo(f"{count} variants ready for {gpu.name if gpu else 'cpu'} ({why}), {seconds:.1f} s")


@main.group()
def data() -> None:
    """Look at image files, convert them, fetch MNIST."""


@data.command("info")
@click.argument("file", type=_FILE, required=False)
def data_info(file: Path | None) -> None:
    """Say what FILE holds (default: the digits that ship)."""
    from lenetgpu import assets
    from lenetgpu.lab import listing

    for what, found in listing.data_rows(file or assets.default_digits()):
        click.echo(f"{what:13} {found}")


@data.command("convert")
@click.argument("source", type=_FILE)
@click.argument("target", type=_FILE)
def data_convert(source: Path, target: Path) -> None:
    """Write the images and labels of SOURCE (IDX or HDF5) to TARGET in the course's HDF5."""
    from lenetgpu.convert import convert_data

    count = convert_data(source, target)
    click.echo(f"{target}: {count:,} images")


@data.command("fetch-mnist")
@click.argument("folder", type=_FILE)
@click.option("--mirror", multiple=True, help="base address to try instead of the known ones")
def fetch_mnist_command(folder: Path, mirror: tuple[str, ...]) -> None:
    """Download the real MNIST into FOLDER, checked against pinned SHA-256 sums."""
    from lenetgpu.mnist import MIRRORS, fetch_mnist

    fetch_mnist(folder, mirror or MIRRORS, click.echo)


@main.group()
def weights() -> None:
    """Look at weight files, check them, convert them."""


@weights.command("info")
@click.argument("file", type=_FILE, required=False)
def weights_info(file: Path | None) -> None:
    """Say what FILE holds and where it came from (default: the weights that ship)."""
    from lenetgpu import assets
    from lenetgpu.lab import listing

    for what, found in listing.weight_rows(file or assets.default_weights()):
        click.echo(f"{what:13} {found}")


@weights.command("verify")
@click.argument("file", type=_FILE)
def weights_verify(file: Path) -> None:
    """Check that FILE holds the network's four arrays, finite; exit code 2 where it does not."""
    from lenetgpu.weights import load_weights

    load_weights(file)
    click.echo(f"{file}: right")


@weights.command("convert")
@click.argument("source", type=_FILE)
@click.argument("target", type=_FILE)
def weights_convert(source: Path, target: Path) -> None:
    """Write SOURCE's weights (any float type or byte order) to TARGET as float32."""
    from lenetgpu.convert import convert_weights

    convert_weights(source, target)
    click.echo(f"{target}: float32")
