"""The command line: options in, one call, results out. No logic lives here."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lenetgpu import __version__, cli_files
from lenetgpu.errors import LenetError

_STARTED = time.perf_counter()
_STAGES = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax")
_FILE_WIDTH = 250
_FILE = click.Path(path_type=Path)


class _Group(click.Group):
    """Prints bad input and usage as one sentence and exits with code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LenetError as error:
            message = str(error)
        except click.UsageError as error:
            message = error.format_message()
        except MemoryError as error:
            reason = str(error).splitlines()[0] if str(error) else "no more memory"
            message = f"memory: expected enough for this job, found: {reason}; take less at once"
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            message = f"stdout: expected room for the results, found: {error.strerror}"
        click.echo(f"lenetgpu: error: {message}", err=True)
        ctx.exit(2)


def _stage_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for stage in reversed(_STAGES):
        text = f"variant of {stage}; `lenetgpu variants {stage}` lists them"
        command = click.option(f"--{stage}", metavar="VARIANT", help=text)(command)
    return command


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a run, which infer and profile share."""
    named: list[Callable[..., Any]] = [
        click.argument("data", required=False, type=_FILE),
        click.option("--weights", type=_FILE, help="HDF5 weights; default: the ones that ship"),
        click.option("--batch", default=10_000, show_default=True, help="images in one pass"),
        click.option("--limit", type=int, help="only the first images of the data set"),
        click.option("--plan", default="auto", show_default=True, help="named plan of variants"),
        _stage_options,
        click.option("--precision", help="precision that the plan must compute in, as fp32"),
        click.option(
            "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:K"
        ),
        click.option("--streams", default=1, show_default=True, help="CUDA streams for chunks"),
        click.option("--chunk", type=int, help="images that pass through all stages together"),
        click.option(
            "--transfers",
            default="device",
            show_default=True,
            help="host: copy every stage's output to the host and back",
        ),
    ]
    for decorate in reversed(named):
        command = decorate(command)
    return command


def _result_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where checked and timed candidates go, which compare and conv share."""
    named: list[Callable[..., Any]] = [
        click.option(
            "--json", "json_file", type=_FILE, help="results to a JSON file, - for stdout"
        ),
        click.option("--csv", "csv_file", type=_FILE, help="rows to a CSV file, - for stdout"),
        click.option("--markdown", type=_FILE, help="rows to a Markdown file, - for stdout"),
        click.option("--plot", type=_FILE, help="a picture of it, .png or .svg"),
        click.option("--no-progress", is_flag=True, help="no progress line"),
    ]
    for decorate in reversed(named):
        command = decorate(command)
    return command


def _overrides(options: dict[str, Any]) -> dict[str, str]:
    return {stage: options[stage] for stage in _STAGES if options.get(stage) is not None}


def _console(stderr: bool = False) -> Any:
    import sys

    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _FILE_WIDTH)


def _write_json(target: Path, document: dict[str, Any]) -> None:
    import json

    _write_text(target, json.dumps(document, indent=1) + "\n")


def _write_text(target: Path, text: str) -> None:
    from lenetgpu.gpu.nvrtc import write_atomically

    if str(target) == "-":
        click.echo(text, nl=False)
    else:
        write_atomically(target, text.encode())


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Classify handwritten digits with LeNet, every stage switchable, on a GPU or a CPU."""


main.add_command(cli_files.data)
main.add_command(cli_files.weights)


@main.command()
@_run_options
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
    transfers: str,
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
    files.require_targets(output, json_file)
    import_ms = (time.perf_counter() - _STARTED) * 1e3
    request = inference.Request(
        data, weights, batch, limit, plan, _overrides(stages), precision, device, streams, chunk,
        timing, scores, transfers, roofline=timing, min_accuracy=min_accuracy,
    )  # fmt: skip
    with progress_bar(enabled=not no_progress) as progress:
        outcome = inference.infer(request, progress)
    if output is not None:
        files.write_labels(output, outcome.labels, outcome.scores)
    to_stdout = json_file is not None and str(json_file) == "-"
    if json_file is not None:
        _write_json(json_file, report.infer_json(outcome, import_ms))
    report.print_infer(_console(stderr=to_stdout), outcome, import_ms)
    if outcome.too_low:
        ctx.exit(1)


@main.command()
@_run_options
@click.option("--json", "json_file", type=_FILE, help="results to a JSON file, - for stdout")
@click.option("--csv", "csv_file", type=_FILE, help="rows to a CSV file, - for stdout")
@click.option("--markdown", type=_FILE, help="rows to a Markdown file, - for stdout")
@click.option("--trace", type=_FILE, help="Chrome trace of stages, copies and streams")
def profile(
    data: Path | None,
    weights: Path | None,
    batch: int,
    limit: int | None,
    plan: str,
    precision: str | None,
    device: str,
    streams: int,
    chunk: int | None,
    transfers: str,
    json_file: Path | None,
    csv_file: Path | None,
    markdown: Path | None,
    trace: Path | None,
    **stages: str | None,
) -> None:
    """Per-stage report of a plan: times, rates, roofline, launches, occupancy, residual."""
    from lenetgpu import inference
    from lenetgpu import output as files
    from lenetgpu.lab import profiling

    files.require_targets(json_file, csv_file, markdown, trace)
    request = inference.Request(
        data, weights, batch, limit, plan, _overrides(stages), precision, device, streams, chunk,
        True, False, transfers, roofline=True, trace=trace is not None,
    )  # fmt: skip
    report = profiling.profile(request)
    for target, text in (
        (json_file, report.as_json()),
        (csv_file, report.as_csv()),
        (markdown, report.as_markdown()),
        (trace, report.as_trace()),
    ):
        if target is not None:
            _write_text(target, text)
    to_stdout = "-" in map(str, (json_file, csv_file, markdown, trace))
    report.print(_console(stderr=to_stdout))


@main.command()
@click.argument("what", required=False)
@click.option("--suite", help="a suite instead: report")
@click.option("--data", type=_FILE, help="images; default: the digits that ship")
@click.option("--weights", type=_FILE, help="HDF5 weights; default: the ones that ship")
@click.option("--batch", default=10_000, show_default=True, help="images")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:K")
@click.option("--reference", help="candidate that ratios are over; default: what auto runs")
@click.option("--seconds", default=20.0, show_default=True, help="time limit of the rounds")
@click.option("--cold-l2", is_flag=True, help="flush the L2 cache before every sample")
@_result_options
@click.option(
    "--fail-on-regression",
    "regression",
    type=float,
    metavar="PCT",
    help="exit with 1 where a candidate lost more than PCT percent",
)
@click.option("--against", type=_FILE, help="JSON of an earlier compare")
@click.pass_context
def compare(
    ctx: click.Context,
    /,
    what: str | None,
    suite: str | None,
    data: Path | None,
    weights: Path | None,
    batch: int,
    device: str,
    reference: str | None,
    seconds: float,
    cold_l2: bool,
    json_file: Path | None,
    csv_file: Path | None,
    markdown: Path | None,
    plot: Path | None,
    regression: float | None,
    against: Path | None,
    no_progress: bool,
) -> None:
    """Check, then time the variants of WHAT: a stage (conv2), a span (conv1+pool1) or plans."""
    from lenetgpu import output as files
    from lenetgpu.lab import session
    from lenetgpu.progress import status_line

    files.require_targets(json_file, csv_file, markdown, plot)
    request = session.CompareRequest(
        what, suite, data, weights, batch, device, reference, seconds, cold_l2, plot, regression,
        against,
    )  # fmt: skip
    with status_line(enabled=not no_progress) as say:
        outcome = session.run_compare(request, say)
    _show(outcome, json_file, csv_file, markdown)
    _end(ctx, outcome)


def _show(
    outcome: Any, json_file: Path | None, csv_file: Path | None, markdown: Path | None
) -> None:
    """Write and print a CompareOutcome."""
    from lenetgpu.lab import results

    if json_file is not None:
        _write_json(json_file, outcome.document)
    for target, text in (
        (csv_file, results.as_csv(outcome.document)),
        (markdown, results.as_markdown(outcome.document)),
    ):
        if target is not None:
            _write_text(target, text)
    to_stdout = "-" in map(str, (json_file, csv_file, markdown))
    results.print_document(_console(stderr=to_stdout), outcome.document)


def _end(ctx: click.Context, outcome: Any) -> None:
    """Say what failed; exit with 1 where a check did, with 130 where Ctrl-C ended the work."""
    for sentence in outcome.sentences():
        click.echo(sentence, err=True)
    if outcome.failed:
        ctx.exit(1)
    if outcome.document.get("interrupted"):
        ctx.exit(130)


@main.command()
@click.argument("shape", required=False)
@click.option("--suite", help="pascal-single, pascal-multi, overfeat, convnet2 or lenet")
@click.option("--batch", type=int, help="images; default: 1, or the suite's own")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:K")
@click.option(
    "--seconds",
    default=1.0,
    show_default=True,
    help="time of a candidate's samples; a slower one runs once",
)
@click.option("--only", metavar="VARIANTS", help="these variants or families, with commas between")
@click.option("--reference", help="candidate that ratios are over; default: PyTorch's")
@click.option("--explain", is_flag=True, help="floors, how variants divide the work, waves")
@_result_options
@click.pass_context
def conv(
    ctx: click.Context,
    /,
    shape: str | None,
    suite: str | None,
    batch: int | None,
    device: str,
    seconds: float,
    only: str | None,
    reference: str | None,
    explain: bool,
    json_file: Path | None,
    csv_file: Path | None,
    markdown: Path | None,
    plot: Path | None,
    no_progress: bool,
) -> None:
    """Check, then time every convolution on SHAPE: C,H,W,M,K[,stride[,pad]], as 64,56,56,64,3."""
    from lenetgpu import output as files
    from lenetgpu.lab import convolution
    from lenetgpu.progress import status_line

    files.require_targets(json_file, csv_file, markdown, plot)
    request = convolution.ConvRequest(
        shape, suite, batch, device, seconds, only, reference, explain, plot
    )
    with status_line(enabled=not no_progress) as say:
        outcome = convolution.run_conv(request, say)
    _show(outcome, json_file, csv_file, markdown)
    convolution.plot(request, outcome)
    _end(ctx, outcome)


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
    """Compile every variant of the network for this machine now; on a GPU, measure plan auto."""
    from lenetgpu import inference
    from lenetgpu.lab.choice import choose_all
    from lenetgpu.lab.warmup import warm_up

    gpu, why = inference.choose_device(device)
    count, seconds = warm_up(gpu)
    for choice in choose_all(gpu) if gpu is not None else ():
        click.echo(f"auto {choice.precision:7} {choice}")
    click.echo(f"{count} variants ready for {gpu.name if gpu else 'cpu'} ({why}), {seconds:.1f} s")


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL; for bash: eval "$(lenetgpu completion bash)"."""
    from click.shell_completion import get_completion_class

    chosen = get_completion_class(shell)
    if chosen is None:
        raise LenetError(f"completion: expected a shell that click completes, found {shell}")
    click.echo(chosen(main, {}, "lenetgpu", "_LENETGPU_COMPLETE").source())
