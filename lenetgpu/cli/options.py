"""Options shared by commands, requests made from them, and the completion of their values."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lenetgpu.cli.help import Argument
from lenetgpu.ini import ini

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
    "polarity": _of("files.orientation", lambda m: ((word, "") for word in m.POLARITIES)),
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

_SECTIONS = ini(Path(__file__).with_suffix(".ini"))
COMBINED = _SECTIONS["conv, combined"]  # flag of `conv`: parameters that it can be combined with
# metavar to the type of the value, and types of arguments; other values are strings
_TYPES: dict[str, Any] = {
    "FILE": FILE, "FOLDER": FILE, "KIND FOLDER": (str, FILE), "N": int, "SECONDS": float,
    "PCT": float, "SHARE": float, "text": str, "folder": FOLDER, "name": Named(readable=False),
}  # fmt: skip
# attribute of an option in options.ini to click's
_ATTRIBUTES = {
    "default": "default", "shown": "show_default", "many": "multiple", "required": "required"
}  # fmt: skip
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Request = TypeVar("Request")


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


def declared(command: str) -> Decorator:
    """Declare the options and arguments that options.ini lists for `command`, in its order."""
    return lambda function: reduce(lambda made, add: add(made), [*_listed(command)][::-1], function)


def _listed(section: str) -> Iterator[Decorator]:
    for usage, text in _SECTIONS[section].items():
        if usage.startswith("*"):
            yield from _listed(usage[1:])
            continue
        words, *attributes = " ".join(text.split()).split(" | ")
        how = dict(attribute.partition(" ")[::2] for attribute in attributes)
        yield (_option if usage.startswith("--") else _argument)(usage, words, how)


def _option(usage: str, words: str, attributes: dict[str, str]) -> Decorator:
    name, _, metavar = usage.partition(" ")
    to, old = attributes.pop("to", ""), attributes.pop("old", "")
    how: dict[str, Any] = {"is_flag": True}
    if metavar:
        param = to or name.removeprefix("--").replace("-", "_")
        completed = complete if param in _BY_NAME else None
        how = {"metavar": metavar, "type": _TYPES.get(metavar), "shell_complete": completed}
    if attributes.pop("auto", None) is not None:
        how |= {"type": str, "callback": _auto_or_count, "default": "auto"}
    how |= {_ATTRIBUTES[key]: value or True for key, value in attributes.items()}
    return click.option(name, *filter(None, [old, to]), help=words, **how)


def _argument(usage: str, words: str, attributes: dict[str, str]) -> Decorator:
    name, required = usage.rstrip(".?"), not usage.endswith("?")
    return click.argument(
        name,
        cls=Argument,
        explained=words,
        required=required,
        nargs=-1 if "..." in usage else 1,
        type=next((_TYPES[key] for key in attributes), FILE),
        shell_complete=complete if name in _BY_NAME else None,
    )
