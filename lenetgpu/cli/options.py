"""Options that commands share, and the request that is built from them by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from lenetgpu.cli.completing import completer
from lenetgpu.cli.help import Argument

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

_TYPES: dict[str, Any] = {"FILE": FILE, "N": int} | dict.fromkeys(
    ("SECONDS", "PCT", "SHARE"), float
)
"""Metavar to the type of an option's value; of any other it is a word."""
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Request = TypeVar("Request")


def together(*decorators: Decorator) -> Decorator:
    """The decorators as one, the first of them shown first in the help."""

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


def option(usage: str, words: str, to: str = "", **how: Any) -> Decorator:
    """An option as its usage shows it: a flag where no metavar follows the name, else a value.

    `to` is the parameter's name where it is another.
    """
    name, _, metavar = usage.partition(" ")
    if metavar:
        param = to or name.removeprefix("--").replace("-", "_")
        known = {"type": _TYPES.get(metavar), "shell_complete": completer(param)}
        how = {"metavar": metavar} | known | how
    else:
        how["is_flag"] = True
    return click.option(name, *filter(None, [to]), help=words, **how)


def argument(name: str, words: str, **how: Any) -> Decorator:
    """A positional argument with the sentence that says what it is; a file unless typed."""
    how = {"type": FILE, "shell_complete": completer(name)} | how
    return click.argument(name, cls=Argument, explained=words, **how)


JSON = option("--json FILE", "Results to a JSON file, - for stdout.", "json_file")
CSV = option("--csv FILE", "Rows to a CSV file, - for stdout.", "csv_file")
MARKDOWN = option("--markdown FILE", "Rows to a Markdown file, - for stdout.")
NO_PROGRESS = option("--no-progress", "Show no progress on the terminal.")
DEVICE = option("--device DEVICE", "Where it runs: auto, cpu, cuda or cuda:K.", default="auto")
WEIGHTS = option(
    "--weights FILE",
    "Weights in HDF5, safetensors, PyTorch, ONNX or .npz form.",
    show_default="the ones that ship",
)
COUNTERS = option("--counters", "Read hardware counters of each kernel by Nsight Compute.")
AS_JSON = option("--json", "Print JSON to stdout.", "as_json")
PLAN = option("--plan PLAN", "Named plan: a variant for every stage.", default="auto")
PRECISION = option(
    "--precision P",
    "Precision that the plan must compute in, as fp16.",
    show_default="the plan's; fp32 of auto",
)
AS_IS = option("--as-is", "Make pictures grey and 28x28, and leave it at that.")
LIMIT = option("--limit N", "Only so many images of the data set.", show_default="all")
_AUTO: dict[str, Any] = {"type": str, "callback": _auto_or_count, "default": "auto"}

run_options = together(
    WEIGHTS,
    option("--batch N", "Images in one pass at most.", show_default="10000"),
    LIMIT,
    option("--skip N", "Leave out the first N images of the data set.", default=0),
    PLAN,
    *(
        option(
            f"--{stage} VARIANT",
            f"Variant of {stage}; `lenetgpu variants {stage}` lists them.",
            show_default="the plan's",
        )
        for stage in STAGES
    ),
    PRECISION,
    DEVICE,
    option("--threads N", "Threads of a CPU.", show_default="all it may use"),
    option("--streams N", "How many CUDA streams, or auto.", **_AUTO),
    option("--chunk N", "How many images pass through all stages together, or auto.", **_AUTO),
    option(
        "--transfers WHERE",
        "Where activations stay between stages: device, or host, which copies each there and back.",
        default="device",
    ),
)
"""The options of a run of the pipeline: infer and profile."""

result_options = together(
    JSON, CSV, MARKDOWN, option("--plot FILE", "Draw a picture of it, .png or .svg."), NO_PROGRESS
)
"""The options of checked and timed candidates' results: compare and conv."""


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
