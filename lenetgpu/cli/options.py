"""Options shared by commands, and construction of requests from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from lenetgpu.cli.completing import STAGES, completer
from lenetgpu.cli.help import Argument


class Named(click.Path):
    """A path; an empty one, which would mean the current folder, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert `value` to a path."""
        if value == "":
            self.fail("expected a name, found an empty one", param, ctx)
        return super().convert(value, param, ctx)


FILE = Named(path_type=Path, readable=False)
FILE.name = "file"
FOLDER = Named(path_type=Path, readable=False, file_okay=False)

# metavar to the type of the value; others are strings
_TYPES: dict[str, Any] = {"FILE": FILE, "N": int, "SECONDS": float, "PCT": float, "SHARE": float}
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Request = TypeVar("Request")


def together(*decorators: Decorator) -> Decorator:
    """Combine decorators; the first appears first in the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def request(kind: Callable[..., Request], options: dict[str, Any], **more: Any) -> Request:
    """Create a `kind` dataclass from the options that match its fields, and `more`."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**({name: options[name] for name in names & options.keys()} | more))


def overrides(options: dict[str, Any]) -> dict[str, str]:
    """Return the overridden stages with their variants."""
    return {stage: options[stage] for stage in STAGES if options.get(stage) is not None}


def _auto_or_count(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Convert a whole number, or auto to None."""
    if value == "auto":
        return None
    try:
        return int(value)
    except ValueError as error:
        sentence = f"expected auto or a whole number, found {value!r}"
        raise click.BadParameter(sentence, ctx, param) from error


def option(usage: str, words: str, to: str = "", old: str = "", **how: Any) -> Decorator:
    """Declare an option by its usage: "--flag", or "--name METAVAR" with a value.

    `to` is the parameter's name if it differs; `old` is a former name that is still accepted.
    """
    name, _, metavar = usage.partition(" ")
    if metavar:
        param = to or name.removeprefix("--").replace("-", "_")
        known = {"type": _TYPES.get(metavar), "shell_complete": completer(param)}
        how = {"metavar": metavar} | known | how
    else:
        how["is_flag"] = True
    return click.option(name, *filter(None, [old, to]), help=words, **how)


def argument(name: str, words: str, **how: Any) -> Decorator:
    """Declare a positional argument with its description; a file unless `type` is given."""
    how = {"type": FILE, "shell_complete": completer(name)} | how
    return click.argument(name, cls=Argument, explained=words, **how)


JSON = option("--json FILE", "Write results as JSON to FILE, - for stdout.", "json_file")
CSV = option("--csv FILE", "Write rows as CSV to FILE, - for stdout.", "csv_file")
MARKDOWN = option("--markdown FILE", "Write rows as Markdown to FILE, - for stdout.")
NO_PROGRESS = option("--no-progress", "Do not show progress.")
DEVICE = option("--device DEVICE", "Device: auto, cpu, cuda or cuda:K.", default="auto")
WEIGHTS = option(
    "--weights FILE",
    "Weights as HDF5, safetensors, PyTorch, ONNX or .npz.",
    show_default="the ones that ship",
)
COUNTERS = option("--counters", "Read each kernel's hardware counters with Nsight Compute.")
AS_JSON = option("--json", "Print JSON to stdout.", "as_json")
PLAN = option("--plan PLAN", "Plan: a variant for every stage.", default="auto")
PRECISION = option(
    "--precision P",
    "Precision of the plan, such as fp16.",
    show_default="the plan's; auto: fp32",
)
AS_IS = option("--as-is", "Only convert pictures to grey and 28x28.")
LIMIT = option("--limit N", "Use only N images.", show_default="all")
_AUTO: dict[str, Any] = {"type": str, "callback": _auto_or_count, "default": "auto"}

run_options = together(
    WEIGHTS,
    option("--batch N", "Maximum images per pass.", show_default="10000"),
    LIMIT,
    option("--skip N", "Skip the first N images.", default=0),
    PLAN,
    *(
        option(
            f"--{stage} VARIANT",
            f"Variant of {stage} (see `lenetgpu variants {stage}`).",
            show_default="the plan's",
        )
        for stage in STAGES
    ),
    PRECISION,
    DEVICE,
    option("--threads N", "CPU threads.", show_default="all available"),
    option("--streams N", "CUDA streams, or auto.", **_AUTO),
    option("--chunk N", "Images that pass through all stages together, or auto.", **_AUTO),
    option(
        "--transfers WHERE",
        "Location of activations between stages: device, or host (copied there and back).",
        default="device",
    ),
)
# options of infer and profile

result_options = together(
    JSON, CSV, MARKDOWN, option("--plot FILE", "Draw the result as .png or .svg."), NO_PROGRESS
)
# options of compare and conv for results
