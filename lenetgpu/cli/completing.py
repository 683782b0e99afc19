"""Shell completion; each list comes from the module that declares its names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

STAGES = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax")
Pairs = Iterable[tuple[str, str]]  # words, each with a description
Find = Callable[[click.Context], Pairs]


def complete(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
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


def completer(name: str) -> Callable[..., Any] | None:
    """Return the completion function for a parameter of this name, None if it has no list."""
    return complete if name in _BY_NAME else None


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
