"""`lenetgpu compare` and `lenetgpu conv`: check and time candidates."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lenetgpu.cli.ending import console, end, is_stdout, write_json, write_text
from lenetgpu.cli.help import Command
from lenetgpu.cli.options import declared, request


@click.command(cls=Command)
@declared("compare")
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
@declared("conv")
@click.pass_context
def conv(ctx: click.Context, /, no_progress: bool, **options: Any) -> None:
    """Check and time every convolution algorithm on a shape or a suite of shapes."""
    from lenetgpu.lab.console import status_line
    from lenetgpu.lab.conv import compared, document, engines, shares
    from lenetgpu.lab.conv.request import ConvRequest, run_list

    if flag := next((flag for flag in _COMBINED if options[flag]), None):
        _require_combinable(ctx, flag)
    targets = _targets(options)
    requested = request(ConvRequest, options, plugins=options["with_files"])
    if flag == "listed":
        _show(targets, document, run_list(requested))
        return
    runs: dict[str | None, Any] = {
        "engines": (engines, engines.run_engines),
        "shares": (shares, shares.run_shares),
    }
    results, run = runs.get(flag, (document, compared.run_conv))
    with status_line(enabled=not no_progress) as say:
        outcome = run(requested, say)
    _show(targets, results, outcome.document)
    end(ctx, outcome)
