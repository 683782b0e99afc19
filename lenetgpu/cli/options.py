"""Options shared by commands, requests made from them, and the completion of their values."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lenetgpu.cli.help import Argument

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

STAGES = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax")
Pairs = Iterable[tuple[str, str]]  # words, each with a description
Find = Callable[[click.Context], Pairs]


def complete(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> "list[CompletionItem[str]]":
    """Complete a parameter's value, or the part after its last comma, from `_BY_NAME`."""
    from click.shell_completion import CompletionItem

    before, comma, last = incomplete.rpartition(",")
    items = [
        CompletionItem(before + comma + word, help=description or None)
        for word, description in dict(_BY_NAME[str(param.name)](ctx)).items()
        if word.startswith(last)
    ]
    if param.name == "new" and not items:  # the second word of --new is a folder
        return [CompletionItem(incomplete, type="dir")]
    return items


def _devices(ctx: click.Context) -> tuple[str, ...]:
    """Return the kinds of device that the command line leaves open, without asking a driver."""
    wanted = str(ctx.params.get("device") or "auto").partition(":")[0]
    return (wanted,) if wanted in ("cpu", "cuda") else ("cpu", "cuda")


def _plans(ctx: click.Context) -> Iterator[tuple[str, str]]:
    from lenetgpu.plan import AUTO, NAMED

    yield AUTO, "the fastest correct plan"
    where = {"cpu": "a CPU", "cuda": "a GPU"}
    for name, on in NAMED.items():
        if not set(on).isdisjoint(_devices(ctx)):
            yield name, "on " + " or ".join(text for device, text in where.items() if device in on)


def _variants(stage: str, ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Yield families, then variants, with their descriptions; nothing for an unknown stage."""
    from lenetgpu import network
    from lenetgpu.stages.registry import choices, find, variants

    kinds = {s.name: s.kind for s in network.STAGES} | {s.name: s.kind for s in network.SPANS}
    kind = kinds.get(stage)
    if kind is None:
        return
    summaries = {name: v.summary for v in variants(kind) for name in v.names}
    for device in _devices(ctx):
        for name in choices(kind, device):
            yield name, summaries.get(name) or f"family: {find(kind, name, device).full_name}"


def _candidates(ctx: click.Context) -> Pairs:
    words = [*ctx.args, ""]  # before an option whose value is missing
    what = "conv1" if ctx.info_name == "conv" else ctx.params.get("what") or words[0]
    return _plans(ctx) if what == "plans" else _variants(what, ctx)


def _suites(ctx: click.Context) -> Pairs:
    if ctx.info_name != "conv":
        return [("course", "every figure of the course's report")]
    from lenetgpu.papers.shapes import SUITES

    return ((name, suite.title) for name, suite in SUITES.items())


def _device_names(ctx: click.Context) -> Pairs:
    """Return `auto`, `cpu`, `cuda`, and each GPU whose device file the driver created."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    known = [("auto", "a GPU where there is one"), ("cpu", ""), ("cuda", "the first GPU")]
    return [*known, *((f"cuda:{index}", "") for index in range(gpus))]


def _of(module: str, pairs: Callable[[Any], Pairs]) -> Find:
    """Return a finder of names in a module of ours, imported when the shell asks for them."""
    return lambda ctx: pairs(import_module(f"lenetgpu.{module}"))


# parameter name to the words that may be its value
_BY_NAME: dict[str, Find] = {
    **{stage: partial(_variants, stage) for stage in STAGES},
    "chunk": lambda ctx: [("auto", "")],
    "device": _device_names,
    "dtype": _of("problems", lambda m: ((w, f"{size} bytes") for w, size in m.ITEM_BYTES.items())),
    "form": _of("files.forms", lambda m: ((ending[1:], "") for ending in m.FORMS)),
    "machine": _of("gpu.machines", lambda m: ((w, gpu.name) for w, gpu in m.KNOWN.items())),
    "new": _of("stages.registry", lambda m: ((kind, "a kind of stage") for kind in m.KINDS)),
    "only": _candidates,
    "plan": _plans,
    "precision": _of("plan", lambda m: ((name, "") for name in m.AUTO_PLANS)),
    "baseline": _candidates,
    "stage": _of("lab.listing", lambda m: ((w, f"kind {kind}") for w, kind in m.kinds().items())),
    "streams": lambda ctx: [("auto", "")],
    "suite": _suites,
    "transfers": lambda ctx: [("device", ""), ("host", "a copy after every stage")],
    "what": _of("dispatch.candidates", lambda m: ((name, "") for name in m.comparable())),
    "workers": lambda ctx: [("cuda", "a process for each GPU")],
}


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
    return lambda command: reduce(lambda made, add: add(made), reversed(decorators), command)


def request(kind: Callable[..., Request], options: dict[str, Any], **more: Any) -> Request:
    """Create a `kind` dataclass from the options that match its fields, and `more`."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**({name: options[name] for name in names & options.keys()} | more))


def overrides(options: dict[str, Any]) -> dict[str, str]:
    """Return the overridden stages with their variants."""
    return {stage: options[stage] for stage in STAGES if options.get(stage) is not None}


def _auto_or_count(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
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
        known = {"metavar": metavar, "type": _TYPES.get(metavar)}
        how = known | {"shell_complete": complete if param in _BY_NAME else None} | how
    else:
        how["is_flag"] = True
    return click.option(name, *filter(None, [old, to]), help=words, **how)


def argument(name: str, words: str, **how: Any) -> Decorator:
    """Declare a positional argument with its description; a file unless `type` is given."""
    how = {"type": FILE, "shell_complete": complete if name in _BY_NAME else None} | how
    return click.argument(name, cls=Argument, explained=words, **how)


JSON = option("--json FILE", "Write results as JSON to FILE, - for stdout.", "json_file")
CSV = option("--csv FILE", "Write rows as CSV to FILE, - for stdout.", "csv_file")
MARKDOWN = option("--markdown FILE", "Write rows as Markdown to FILE, - for stdout.")
NO_PROGRESS = option("--no-progress", "Do not show progress.")
DEVICE = option("--device DEVICE", "Device: auto, cpu, cuda or cuda:K.", default="auto")
WEIGHTS = option(
    "--weights FILE", "Weights as HDF5, safetensors, PyTorch, ONNX or .npz.", show_default="shipped"
)
COUNTERS = option("--counters", "Read hardware counters of each kernel with Nsight Compute.")
AS_JSON = option("--json", "Print JSON to stdout.", "as_json")
PLAN = option("--plan PLAN", "Plan: a variant for every stage.", default="auto")
PRECISION = option(
    "--precision P", "Promised precision, such as fp16.", show_default="the plan's; auto: fp32"
)
AS_IS = option(
    "--as-is", "Do not prepare pictures like MNIST; only convert them to grey and 28x28."
)
LIMIT = option("--limit N", "Use only N images.", show_default="all")
_AUTO: dict[str, Any] = {"type": str, "callback": _auto_or_count, "default": "auto"}

run_options = together(
    WEIGHTS,
    option("--batch N", "Maximum images per batch.", show_default="10000"),
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
    option("--threads N", "Number of CPU threads.", show_default="all available"),
    option("--streams N", "Number of CUDA streams, or auto.", **_AUTO),
    option("--chunk N", "Images that go through all stages together, or auto.", **_AUTO),
    option(
        "--transfers WHERE",
        "Where activations are kept between stages: device, or host (copy after every stage).",
        default="device",
    ),
)
# options of infer and profile

result_options = together(
    JSON, CSV, MARKDOWN, option("--plot FILE", "Draw the result as .png or .svg."), NO_PROGRESS
)
# options of compare and conv for results
