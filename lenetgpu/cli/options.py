"""Options that commands share, and the request that is built from them by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

STAGES = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax")
FILE = click.Path(path_type=Path, readable=False)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Request = TypeVar("Request")


def together(decorators: Iterable[Decorator]) -> Decorator:
    """The decorators as one, the first of them shown first in the help."""
    decorators = list(decorators)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def request(kind: Callable[..., Request], options: dict[str, Any], **more: Any) -> Request:
    """A request of dataclass `kind`: the options that are its fields, by name, and `more`."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**({name: options[name] for name in names & options.keys()} | more))


def overrides(options: dict[str, Any]) -> dict[str, str]:
    """Stage to variant, for the stages that were switched."""
    return {stage: options[stage] for stage in STAGES if options.get(stage) is not None}


def _auto_or_count(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """A whole number, or auto: None."""
    if value == "auto":
        return None
    try:
        return int(value)
    except ValueError as error:
        raise click.BadParameter(
            f"expected auto or a whole number, found {value!r}", ctx, param
        ) from error


JSON = click.option("--json", "json_file", type=FILE, help="results to a JSON file, - for stdout")
CSV = click.option("--csv", "csv_file", type=FILE, help="rows to a CSV file, - for stdout")
MARKDOWN = click.option("--markdown", type=FILE, help="rows to a Markdown file, - for stdout")
DEVICE = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:K"
)
WEIGHTS = click.option(
    "--weights",
    type=FILE,
    help="Take the weights from this file (HDF5, safetensors, PyTorch, ONNX or .npz). "
    "Default: those that ship.",
)
COUNTERS = click.option(
    "--counters", is_flag=True, help="hardware counters of each kernel, by Nsight Compute's ncu"
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="JSON to stdout")

run_options = together(
    [
        WEIGHTS,
        click.option("--batch", type=int, help="images in one pass at most  [default: 10000]"),
        click.option("--limit", type=int, help="only so many images of the data set"),
        click.option("--skip", default=0, help="not the first N images of the data set"),
        click.option("--plan", default="auto", show_default=True, help="named plan of variants"),
        *(
            click.option(
                f"--{stage}",
                metavar="VARIANT",
                help=f"variant of {stage}; `lenetgpu variants {stage}` lists them",
            )
            for stage in STAGES
        ),
        click.option("--precision", help="precision that the plan must compute in, as fp32"),
        DEVICE,
        click.option("--threads", type=int, help="a CPU's threads  [default: all it may use]"),
        click.option(
            "--streams",
            metavar="N",
            callback=_auto_or_count,
            default="auto",
            help="auto or N CUDA streams  [default: auto]",
        ),
        click.option(
            "--chunk",
            metavar="N",
            callback=_auto_or_count,
            default="auto",
            help="auto or N images that pass through all stages together  [default: auto]",
        ),
        click.option(
            "--transfers",
            default="device",
            show_default=True,
            help="host: copy every stage's output to the host and back",
        ),
    ]
)
"""What a run of the pipeline takes: infer and profile."""

result_options = together(
    [
        JSON,
        CSV,
        MARKDOWN,
        click.option("--plot", type=FILE, help="a picture of it, .png or .svg"),
        click.option("--no-progress", is_flag=True, help="no progress line"),
    ]
)
"""Where checked and timed candidates go: compare and conv."""


def console(stderr: bool = False) -> Any:
    """Where results for people go: lines at once, tables by Rich, which they import."""
    from lenetgpu.show.console import Console

    return Console(stderr)


def is_stdout(*targets: Path | None) -> bool:
    """Whether one of the targets is stdout, so that tables go to stderr."""
    return "-" in map(str, targets)


def write_json(target: Path, document: dict[str, Any]) -> None:
    """Write `document` to `target`, - for stdout."""
    from lenetgpu.store import json_text

    write_text(target, json_text(document, indent=1) + "\n")


def write_text(target: Path, text: str) -> None:
    """Write `text` to `target`, - for stdout."""
    from lenetgpu.store import write_atomically

    if str(target) == "-":
        click.echo(text, nl=False)
    else:
        write_atomically(target, text.encode(errors="backslashreplace"))
