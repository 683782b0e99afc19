"""What a shell completes a word to; each list comes from where its names are declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Pairs = Iterable[tuple[str, str]]
"""Words, and what each is."""
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def _completing(find: Callable[[click.Context, click.Parameter], Pairs]) -> Complete:
    """Complete to those words that begin as typed, each once."""

    @wraps(find)
    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(word, help=what or None)
            for word, what in dict(find(ctx, param)).items()
            if word.startswith(incomplete)
        ]

    return complete


def words(*found: tuple[str, str]) -> Complete:
    """Complete to these words."""
    return _completing(lambda ctx, param: found)


def _devices(ctx: click.Context) -> tuple[str, ...]:
    """The kinds of device that the command line leaves open; nothing asks for a driver here."""
    wanted = str(ctx.params.get("device") or "auto").partition(":")[0]
    return (wanted,) if wanted in ("cpu", "cuda") else ("cpu", "cuda")


def _plans(ctx: click.Context) -> Iterator[tuple[str, str]]:
    from lenetgpu.plan import AUTO, NAMED

    yield AUTO, "the fastest right one"
    for name, on in NAMED.items():
        if not set(on).isdisjoint(_devices(ctx)):
            where = {"cpu": "a CPU", "cuda": "a GPU"}
            yield name, "on " + " or ".join(where[device] for device in where if device in on)


def _variants(ctx: click.Context, stage: str) -> Iterator[tuple[str, str]]:
    """Families, then variants, with what each is; nothing for a stage that there is not."""
    from lenetgpu.network import SPANS, STAGES
    from lenetgpu.stages.registry import choices, find, variants

    kinds = {s.name: s.kind for s in STAGES} | {span.name: span.kind for span in SPANS}
    kind = kinds.get(stage)
    if kind is None:
        return
    said = {name: v.summary for v in variants(kind) for name in v.names}
    for device in _devices(ctx):
        for name in choices(kind, device):
            yield name, said.get(name) or f"family: {find(kind, name, device).full_name}"


@_completing
def plans(ctx: click.Context, param: click.Parameter) -> Pairs:
    """Named plans, those of the asked device where one is asked for."""
    return _plans(ctx)


@_completing
def variants(ctx: click.Context, param: click.Parameter) -> Pairs:
    """Families and variants of the stage that the option is called by."""
    return _variants(ctx, str(param.name))


def candidates(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete the word after the last comma: a plan, or a stage's families and variants."""
    left = [*ctx.args, ""]  # what is before an option without its value yet
    what = "conv1" if ctx.info_name == "conv" else ctx.params.get("what") or left[0]
    before, comma, _ = incomplete.rpartition(",")
    found = _plans(ctx) if what == "plans" else _variants(ctx, what)
    return words(*((before + comma + word, said) for word, said in found))(ctx, param, incomplete)


def _named(module: str, pairs: Callable[[Any], Pairs]) -> Complete:
    """Complete to what a module of ours declares, which is imported when a shell asks."""
    return _completing(lambda ctx, param: pairs(import_module(f"lenetgpu.{module}")))


compared = _named("dispatch.candidates", lambda module: ((w, "") for w in module.comparable()))
dtypes = _named("problems", lambda m: ((w, f"{width} bytes") for w, width in m.ITEM_BYTES.items()))
forms = _named("files.forms", lambda module: ((ending[1:], "") for ending in module.FORMS))
listed = _named("lab.listing", lambda m: ((w, f"kind {kind}") for w, kind in m.kinds().items()))
machines = _named("gpu.machines", lambda module: ((w, m.name) for w, m in module.KNOWN.items()))
precisions = _named("plan", lambda module: ((w, "") for w in module.AUTO_PLANS))


@_completing
def suites(ctx: click.Context, param: click.Parameter) -> Pairs:
    """The suites of `conv`, or of `compare`."""
    if ctx.info_name != "conv":
        from lenetgpu.papers.course_ladder import NAMES

        return [(NAMES[0], "every figure of the course's report")]
    from lenetgpu.papers.shapes import SUITES

    return ((name, suite.title) for name, suite in SUITES.items())


@_completing
def devices(ctx: click.Context, param: click.Parameter) -> Pairs:
    """`auto`, `cpu`, `cuda`, and each GPU whose device file the driver made."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    known = [("auto", "a GPU where there is one"), ("cpu", ""), ("cuda", "the first GPU")]
    return [*known, *((f"cuda:{index}", "") for index in range(gpus))]


def started(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete to the kinds that `variants --new` starts, then to its folder."""
    from click.shell_completion import CompletionItem

    from lenetgpu.stages.registry import KINDS

    found = words(*((kind, "a kind of stage") for kind in KINDS))(ctx, param, incomplete)
    return found or [CompletionItem(incomplete, type="dir")]
