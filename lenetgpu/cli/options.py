"""Options that commands share, and the request that is built from them by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from lenetgpu.cli import completing

STAGES = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax")


class Named(click.Path):
    """A path; an empty one, which would mean the current folder, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as Click has it."""
        if value == "":
            self.fail("expected a name, found an empty one", param, ctx)
        return super().convert(value, param, ctx)


FILE = Named(path_type=Path, readable=False)
FILE.name = "file"
FOLDER = Named(path_type=Path, readable=False, file_okay=False)

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


def number(name: str, words: str, **how: Any) -> Decorator:
    """An option of a whole number."""
    return click.option(name, type=how.pop("type", int), metavar="N", help=words, **how)


def _auto_or_number(name: str, words: str) -> Decorator:
    """An option of a whole number, or auto."""
    return click.option(
        name,
        metavar="N",
        callback=_auto_or_count,
        shell_complete=completing.words(("auto", "")),
        default="auto",
        help=words,
    )


JSON = click.option("--json", "json_file", type=FILE, help="Results to a JSON file, - for stdout.")
CSV = click.option("--csv", "csv_file", type=FILE, help="Rows to a CSV file, - for stdout.")
MARKDOWN = click.option("--markdown", type=FILE, help="Rows to a Markdown file, - for stdout.")
NO_PROGRESS = click.option("--no-progress", is_flag=True, help="Show no progress on the terminal.")
DEVICE = click.option(
    "--device",
    default="auto",
    metavar="DEVICE",
    shell_complete=completing.devices,
    help="Where it runs: auto, cpu, cuda or cuda:K.",
)
WEIGHTS = click.option(
    "--weights",
    type=FILE,
    show_default="the ones that ship",
    help="Weights in HDF5, safetensors, PyTorch, ONNX or .npz form.",
)
COUNTERS = click.option(
    "--counters", is_flag=True, help="Read hardware counters of each kernel by Nsight Compute."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")

PLAN = click.option(
    "--plan",
    default="auto",
    metavar="PLAN",
    shell_complete=completing.plans,
    help="Named plan: a variant for every stage.",
)
PRECISION = click.option(
    "--precision",
    metavar="P",
    shell_complete=completing.precisions,
    show_default="the plan's; fp32 of auto",
    help="Precision that the plan must compute in, as fp16.",
)
AS_IS = click.option(
    "--as-is", is_flag=True, help="Make pictures grey and 28x28, and leave it at that."
)

run_options = together(
    [
        WEIGHTS,
        number("--batch", "Images in one pass at most.", show_default="10000"),
        number("--limit", "Only so many images of the data set.", show_default="all"),
        number("--skip", "Leave out the first N images of the data set.", default=0),
        PLAN,
        *(
            click.option(
                f"--{stage}",
                metavar="VARIANT",
                shell_complete=completing.variants,
                show_default="the plan's",
                help=f"Variant of {stage}; `lenetgpu variants {stage}` lists them.",
            )
            for stage in STAGES
        ),
        PRECISION,
        DEVICE,
        number("--threads", "Threads of a CPU.", show_default="all it may use"),
        _auto_or_number("--streams", "How many CUDA streams, or auto."),
        _auto_or_number("--chunk", "How many images pass through all stages together, or auto."),
        click.option(
            "--transfers",
            default="device",
            metavar="WHERE",
            shell_complete=completing.words(("device", ""), ("host", "a copy after every stage")),
            help="Where activations stay between stages: device, or host, which copies each there "
            "and back.",
        ),
    ]
)
"""What a run of the pipeline takes: infer and profile."""

result_options = together(
    [
        JSON,
        CSV,
        MARKDOWN,
        click.option("--plot", type=FILE, help="Draw a picture of it, .png or .svg."),
        NO_PROGRESS,
    ]
)
"""Where checked and timed candidates go: compare and conv."""


def console(stderr: bool = False) -> Any:
    """Where results for people go: lines at once, tables by Rich, which they import."""
    from lenetgpu.lab.console import Console

    return Console(stderr)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print a line for each (what, found)."""
    out = console()
    for what, found in pairs:
        out.print(f"{what:13} {found}")


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
