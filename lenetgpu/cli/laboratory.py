"""`lenetgpu compare` and `lenetgpu conv`: check and time candidates."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lenetgpu.cli import options as shared
from lenetgpu.cli.ending import console, end, is_stdout, write_json, write_text
from lenetgpu.cli.help import Command
from lenetgpu.cli.options import argument, option, request

WITH = option(
    "--with FILE",
    "Also load variants from a .py file or a folder; may be repeated.",
    "with_files",
    multiple=True,
)
ROUNDS = shared.together(
    option("--rounds N", "Maximum number of rounds.", show_default="limited by time"),
    option(
        "--warmup N",
        "Untimed runs before each sample.",
        show_default="1; 0 for runs of 50 ms or more",
    ),
    option(
        "--watch SECONDS",
        "Time to measure clock, power and energy of each candidate on a GPU; 0: do not measure.",
        default=2.0,
    ),
    option("--cold-l2", "Flush the L2 cache before every sample."),
)
REGRESSION = shared.together(
    option(
        "--fail-on-regression PCT",
        "Exit with 1 if a candidate is more than PCT percent slower than in --against.",
        "regression",
    ),
    option("--against FILE", "JSON file of an earlier run, to compare with."),
)


@click.command(cls=Command)
@argument(
    "what",
    "A stage (conv2), consecutive stages (conv1+pool1), or the word plans.",
    type=str,
    required=False,
)
@option(
    "--suite NAME", "Measure a suite instead of WHAT: course (all figures of the course report)."
)
@option("--data FILE", "Images to use.", show_default="shipped digits")
@shared.WEIGHTS
@option("--batch N", "Number of images.", default=10_000)
@shared.DEVICE
@option(
    "--baseline NAME", "Baseline of ratios.", old="--reference", show_default="the variant of auto"
)
@option("--seconds SECONDS", "Time limit for all rounds together.", default=20.0)
@option(
    "--only NAMES",
    "Compare only these variants, families or plans (comma-separated) with the baseline.",
)
@shared.COUNTERS
@ROUNDS
@WITH
@shared.result_options
@REGRESSION
@click.pass_context
def compare(ctx: click.Context, /, no_progress: bool, **options: Any) -> None:
    """Check and time the variants of a stage, all plans, or a suite."""
    from lenetgpu.lab import compare as results
    from lenetgpu.lab.console import status_line

    targets = _targets(options)
    requested = request(results.CompareRequest, options, plugins=options["with_files"])
    with status_line(enabled=not no_progress) as say:
        outcome = results.run_compare(requested, say)
    _show(targets, results, outcome.document)
    end(ctx, outcome)


def _targets(options: dict[str, Any]) -> tuple[Path | None, Path | None, Path | None]:
    """Return the JSON, CSV and Markdown targets; LenetError for unwritable ones and inputs."""
    from lenetgpu.files.output import require_targets

    targets = options["json_file"], options["csv_file"], options["markdown"]
    given = [options.get(name) for name in ("data", "weights", "lines", "model")]
    read = *given, options["against"], *options["with_files"]
    require_targets(*targets, options["plot"], sources=read)
    return targets


def _show(targets: tuple[Path | None, ...], results: Any, document: Any) -> None:
    """Write a document as JSON, CSV and Markdown, and print it; `results` is its module."""
    from lenetgpu.lab.render import show

    json_file, csv_file, markdown = targets
    if json_file is not None:
        write_json(json_file, document)
    table = results.table(document)
    for target, text in ((csv_file, table.csv), (markdown, table.markdown)):
        if target is not None:
            write_text(target, text())
    show(console(is_stdout(*targets)), results.parts(document))


_FILES = {"json_file", "csv_file", "markdown", "no_progress"}
_SHAPES = {"shape", "suite", "lines", "model", "batch", "epilogue", "bias", "relu", "dtype"}
# flag of `conv`: the parameters it can be combined with
_COMBINED: dict[str, set[str]] = {
    "listed": {*_SHAPES, *_FILES},
    "engines": {"shape", "batch", *_FILES},
    "shares": {"shape", "suite", "batch", "device", "plot", *_FILES},
    "tune": {*_SHAPES, *_FILES, "device", "seconds", "rounds", "warmup", "only"},
}


def _require_combinable(ctx: click.Context, flag: str) -> None:
    from lenetgpu.errors import LenetError

    names = {str(param.name): param.opts[0] for param in ctx.command.params} | {"shape": "SHAPE"}
    for name, shown in names.items():
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in {*_COMBINED[flag], flag}:
            *others, last = (names[other] for other in names if other in _COMBINED[flag])
            only = f"combine it only with {', '.join(others)} or {last}"
            raise LenetError(f"{names[flag]}: cannot be combined with {shown}; {only}")


@click.command(cls=Command)
@argument(
    "shape",
    "C,H,W,M,K[,stride[,pad]]: input channels, height and width; output channels; filter size (3, "
    "or 3x2 for height x width); for example 64,56,56,64,3,1,1. Or a command line of benchdnn or "
    "MIOpenDriver, which may have groups, dilation and unequal padding.",
    type=str,
    required=False,
)
@option("--suite NAME", "Shapes of a paper or network; --list shows them.")
@option("--from FILE", "File with one SHAPE per line.", "lines")
@option("--model FILE", "Convolutions of an ONNX model.")
@option(
    "--epilogue",
    "Compute the bias and ReLU that a line or model specifies; without it they are ignored.",
)
@option("--bias", "Add a bias to every convolution, one value per output channel.")
@option("--relu", "Apply ReLU to every convolution.")
@option(
    "--dtype DTYPE",
    "Type of input, filters, bias and output: fp32, fp16 or bf16.",
    show_default="the line's or model's, else fp32",
)
@option("--list", "List the suites, or the selected shapes; run nothing.", "listed")
@option("--batch N", "Number of images.", show_default="the line's or suite's, else 1")
@shared.DEVICE
@option(
    "--seconds SECONDS",
    "Time limit per shape: SECONDS times the number of candidates. Very slow ones run once.",
    default=1.0,
)
@option("--only NAMES", "Run only these variants or families (comma-separated).")
@ROUNDS
@option("--bitwise", "Run each candidate five times; report whether outputs are bit-identical.")
@WITH
@option("--baseline NAME", "Baseline of ratios.", old="--reference", show_default="PyTorch's cuDNN")
@option("--explain", "Also print lower bounds, tile sizes, waves and the choice of best.fp32.")
@option(
    "--as GPU",
    "GPU that --explain assumes: gtx1080ti, titanx, h100 or h200.",
    "machine",
    show_default="this GPU",
)
@option("--tune", "Time the algorithms of best.fp32 and store the fastest for this GPU.")
@option("--engines", "Simulate the hardware engines of the cuda-convnet2 paper.")
@option("--shares", "Measure time shares, tile sizes and latencies in the convnet2 kernels.")
@shared.result_options
@REGRESSION
@click.pass_context
def conv(ctx: click.Context, /, no_progress: bool, **options: Any) -> None:
    """Check and time every convolution algorithm on a shape or a suite of shapes."""
    from lenetgpu.lab.console import status_line
    from lenetgpu.lab.conv import document as results
    from lenetgpu.lab.conv.request import ConvRequest, run_list

    if flag := next((flag for flag in _COMBINED if options[flag]), None):
        _require_combinable(ctx, flag)
    targets = _targets(options)
    requested = request(ConvRequest, options, plugins=options["with_files"])
    if flag == "listed":
        _show(targets, results, run_list(requested))
        return
    with status_line(enabled=not no_progress) as say:
        if flag == "engines":
            from lenetgpu.lab.conv import engines

            document = engines.run_engines(requested, say)
        elif flag == "shares":
            from lenetgpu.lab.conv import shares

            outcome = shares.run_shares(requested, say)
        else:
            from lenetgpu.lab.conv.compared import run_conv

            outcome = run_conv(requested, say)
    if flag == "engines":
        _show(targets, engines, document)
        return
    _show(targets, shares if flag == "shares" else results, outcome.document)
    end(ctx, outcome)
