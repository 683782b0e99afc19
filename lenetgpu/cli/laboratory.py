"""`lenetgpu compare` and `lenetgpu conv`: candidates checked, then timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lenetgpu.cli.ending import end
from lenetgpu.cli.help import Command
from lenetgpu.cli.options import (
    COUNTERS,
    DEVICE,
    WEIGHTS,
    argument,
    console,
    is_stdout,
    option,
    request,
    result_options,
    together,
    write_json,
    write_text,
)

WITH = option(
    "--with FILE",
    "Variants of your own beside ours: a .py file or a folder of them; may be repeated.",
    "with_files",
    multiple=True,
)
ROUNDS = together(
    option(
        "--rounds N",
        "As many rounds, unless the time ends first.",
        show_default="as the time allows",
    ),
    option("--warmup N", "Untimed runs before a sample.", show_default="1 below 50 ms"),
    option(
        "--watch SECONDS",
        "How long each one's clock, power and energy are read on a GPU, 0 for not at all.",
        default=2.0,
    ),
    option("--cold-l2", "Flush the L2 cache before every sample."),
)
GATE = together(
    option(
        "--fail-on-regression PCT",
        "Exit with 1 where a candidate lost more than PCT percent since --against.",
        "regression",
    ),
    option("--against FILE", "JSON file of an earlier run of this command."),
)


@click.command(cls=Command)
@argument("what", "A stage (conv2), a span (conv1+pool1) or plans.", type=str, required=False)
@option("--suite NAME", "A suite instead of WHAT: course, every figure of the course's report.")
@option("--data FILE", "Images to compare on.", show_default="the digits that ship")
@WEIGHTS
@option("--batch N", "How many images, all at once.", default=10_000)
@DEVICE
@option("--reference NAME", "Candidate that ratios are over.", show_default="what auto runs")
@option("--seconds SECONDS", "Time limit of the rounds.", default=20.0)
@option("--only NAMES", "These variants, families or plans and the baseline, with commas between.")
@COUNTERS
@ROUNDS
@WITH
@result_options
@GATE
@click.pass_context
def compare(ctx: click.Context, /, no_progress: bool, **options: Any) -> None:
    """Check, then time the variants of a stage or a span, whole plans, or a suite."""
    from lenetgpu.lab import compare as results
    from lenetgpu.lab.console import status_line

    targets = _targets(options)
    asked = request(results.CompareRequest, options, outside=options["with_files"])
    with status_line(enabled=not no_progress) as say:
        outcome = results.run_compare(asked, say)
    _show(targets, results, outcome.document)
    end(ctx, outcome)


def _targets(options: dict[str, Any]) -> tuple[Path | None, Path | None, Path | None]:
    """Where JSON, CSV and Markdown go; LenetError where one cannot be written, or is read."""
    from lenetgpu.files.output import require_targets

    targets = options["json_file"], options["csv_file"], options["markdown"]
    given = [options.get(name) for name in ("data", "weights", "lines", "model")]
    read = *given, options["against"], *options["with_files"]
    require_targets(*targets, options["plot"], sources=read)
    return targets


def _show(targets: tuple[Path | None, ...], results: Any, document: Any) -> None:
    """Write JSON, CSV and Markdown of a document, and print it, as `results` has its parts."""
    from lenetgpu.lab.render import show

    json_file, csv_file, markdown = targets
    if json_file is not None:
        write_json(json_file, document)
    if csv_file is not None:
        write_text(csv_file, results.table(document).csv())
    if markdown is not None:
        write_text(markdown, results.table(document).markdown())
    show(console(is_stdout(*targets)), results.parts(document))


_FILES = {"json_file", "csv_file", "markdown", "no_progress"}
_SAID = {"batch", "epilogue", "bias", "relu", "dtype"}
_SHAPES = {"shape", "suite", "lines", "model"}
_BESIDE: dict[str, tuple[set[str], str]] = {
    "listed": (
        {*_SHAPES, *_SAID, *_FILES},
        "SHAPE, --suite, --from or --model, what is said of every convolution (--batch, --dtype) "
        "and where results go",
    ),
    "engines": ({"shape", "batch", *_FILES}, "SHAPE, --batch and where results go"),
    "shares": (
        {"shape", "suite", "batch", "device", "plot", *_FILES},
        "SHAPE or --suite, --batch, --device and where results go",
    ),
    "tune": (
        {*_SHAPES, *_SAID, *_FILES, "device", "seconds", "rounds", "warmup", "only"},
        "SHAPE, --suite, --from or --model, --batch, --bias, --relu, --dtype, --epilogue, "
        "--device, --seconds, --rounds, --warmup, --only best and where results go",
    ),
}
"""Flag of `conv` to the parameters that it takes beside it, and how a sentence lists them."""


def _require_only(ctx: click.Context, flag: str) -> None:
    """LenetError where an option was given that this flag of `conv` does not take beside it."""
    from lenetgpu.errors import LenetError

    taken, words = _BESIDE[flag]
    names = {str(param.name): param.opts[0] for param in ctx.command.params}
    for name, shown in names.items():
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in {*taken, flag}:
            raise LenetError(f"{names[flag]}: expected {words} beside it, found {shown}")


@click.command(cls=Command)
@argument(
    "shape",
    "C,H,W,M,K[,stride[,pad]]: channels, height and width of the input, maps of the output, a "
    "filter's width or its sides, as 64,56,56,64,3,1,1; or a line of benchdnn or MIOpenDriver, "
    "with groups, dilation and uneven padding too.",
    type=str,
    required=False,
)
@option("--suite NAME", "Shapes of a paper or a network instead; --list shows which there are.")
@option("--from FILE", "Shapes of a file instead, one a line in any form that SHAPE has.", "lines")
@option("--model FILE", "The convolutions of an ONNX model instead.")
@option(
    "--epilogue",
    "Take the bias that a line or a model has with a convolution, and of a model the ReLU that "
    "alone follows it.",
)
@option("--bias", "Give every convolution a bias, a value a map.")
@option("--relu", "Take ReLU of every convolution's sums.")
@option(
    "--dtype DTYPE",
    "How input, filters, bias and output are held: fp32, fp16 or bf16.",
    show_default="as it is given, else fp32",
)
@option("--list", "List the suites, or what is asked for; nothing runs.", "listed")
@option("--batch N", "How many images.", show_default="1, or what is given with it")
@DEVICE
@option(
    "--seconds SECONDS",
    "Time of the rounds for each candidate, all sharing it; who is too slow runs once.",
    default=1.0,
)
@option("--only NAMES", "These variants or families, with commas between.")
@ROUNDS
@option(
    "--bitwise",
    "Hold runs on the same images against one another: they must agree to the bit, or the row "
    "says that they need not.",
)
@WITH
@option("--reference NAME", "Candidate that ratios are over.", show_default="PyTorch's")
@option("--explain", "Show floors, how variants divide the work, and waves.")
@option(
    "--as GPU", "Explain for gtx1080ti, titanx, h100 or h200.", "machine", show_default="this GPU"
)
@option(
    "--tune", "Time what best.fp32 may run, and keep the fastest for it, beside compiled kernels."
)
@option("--engines", "Simulate the convnet2 paper's engines instead.")
@option("--shares", "Measure the parts of the convnet2 kernels' time, tiles and latencies instead.")
@result_options
@GATE
@click.pass_context
def conv(
    ctx: click.Context,
    /,
    no_progress: bool,
    engines: bool,
    shares: bool,
    listed: bool,
    **options: Any,
) -> None:
    """Check, then time every convolution on a shape, or on those of a paper or a network."""
    from lenetgpu.lab.console import status_line
    from lenetgpu.lab.conv import document as results
    from lenetgpu.lab.conv.request import ConvRequest, run_list

    for flag in ("listed", "engines", "shares", "tune"):
        if ctx.params[flag]:
            _require_only(ctx, flag)
            break
    targets = _targets(options)
    if listed:
        _show(targets, results, run_list(request(ConvRequest, options)))
        return
    with status_line(enabled=not no_progress) as say:
        if engines:
            from lenetgpu.lab.conv import engines as simulated

            document = simulated.run_engines(request(ConvRequest, options), say)
        elif shares:
            from lenetgpu.lab.conv import shares as clocked

            outcome = clocked.run_shares(request(ConvRequest, options), say)
        else:
            from lenetgpu.lab.conv.compared import run_conv

            asked = request(ConvRequest, options, outside=options["with_files"])
            outcome = run_conv(asked, say)
    if engines:
        _show(targets, simulated, document)
        return
    _show(targets, clocked if shares else results, outcome.document)
    end(ctx, outcome)
