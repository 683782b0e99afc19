"""What a shell completes a word to; each list comes from where its names are declared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Items = list[CompletionItem[str]]

_WHERE = {("cpu",): "on a CPU", ("cuda",): "on a GPU", ("cpu", "cuda"): "on a CPU or a GPU"}


def _items(found: Iterable[tuple[str, str]], incomplete: str) -> Items:
    """Those of the (word, what it is) pairs that begin as typed, each word once."""
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(word, help=what or None)
        for word, what in dict(found).items()
        if word.startswith(incomplete)
    ]


def _devices(ctx: click.Context) -> tuple[str, ...]:
    """The kinds of device that the command line leaves open; nothing asks for a driver here."""
    wanted = str(ctx.params.get("device") or "auto").partition(":")[0]
    return (wanted,) if wanted in ("cpu", "cuda") else ("cpu", "cuda")


def plans(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Named plans, those of the asked device where one is asked for."""
    return _items(_plans(_devices(ctx)), incomplete)


def _plans(devices: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    from lenetgpu.plan import AUTO, NAMED

    yield AUTO, "the fastest right one"
    for name, on in NAMED.items():
        if not set(on).isdisjoint(devices):
            yield name, _WHERE[tuple(device for device in ("cpu", "cuda") if device in on)]


def variants(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Families and variants of the stage that the option is called by."""
    return _items(_variants(str(param.name), _devices(ctx)), incomplete)


def _variants(stage: str, devices: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Families, then variants, with what each is; nothing for a stage that there is not."""
    from lenetgpu.network import SPANS, STAGES
    from lenetgpu.stages.registry import choices, find, variants

    kinds = {s.name: s.kind for s in STAGES} | {span.name: span.kind for span in SPANS}
    kind = kinds.get(stage)
    if kind is None:
        return
    said = {name: v.summary for v in variants(kind) for name in v.names}
    for device in devices:
        for name in choices(kind, device):
            yield name, said.get(name) or f"family: {find(kind, name, device).full_name}"


def candidates(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """What a comparison is of, after the last comma: plans, or a stage's families and variants."""
    left = [*ctx.args, ""]  # what is before an option without its value yet
    what = "conv1" if ctx.info_name == "conv" else ctx.params.get("what") or left[0]
    before, comma, last = incomplete.rpartition(",")
    found = _plans(_devices(ctx)) if what == "plans" else _variants(what, _devices(ctx))
    return _items(((before + comma + word, said) for word, said in found), before + comma + last)


def listed(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Stages, spans and kinds: what `variants` lists one of."""
    from lenetgpu.lab.listing import kinds

    return _items(((name, f"kind {kind}") for name, kind in kinds().items()), incomplete)


def compared(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """What `compare` takes."""
    from lenetgpu.dispatch.candidates import comparable

    return _items(((name, "") for name in comparable()), incomplete)


def suites(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """The suites of `conv`, or of `compare`."""
    if ctx.info_name == "conv":
        from lenetgpu.papers.shapes import SUITES

        return _items(((name, suite.title) for name, suite in SUITES.items()), incomplete)
    from lenetgpu.papers.course_ladder import NAMES

    return _items([(NAMES[0], "every figure of the course's report")], incomplete)


def precisions(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """What `--precision` takes."""
    from lenetgpu.plan import AUTO_PLANS

    return _items(((name, "") for name in AUTO_PLANS), incomplete)


def dtypes(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """What `conv --dtype` takes."""
    from lenetgpu.problems import ITEM_BYTES

    return _items(((name, f"{width} bytes") for name, width in ITEM_BYTES.items()), incomplete)


def devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """`auto`, `cpu`, `cuda`, and each GPU whose device file the driver made."""
    words = [("auto", "a GPU where there is one"), ("cpu", ""), ("cuda", "the first GPU")]
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return _items([*words, *((f"cuda:{index}", "") for index in range(gpus))], incomplete)


def machines(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """The GPUs whose figures are known."""
    from lenetgpu.gpu.machines import KNOWN

    return _items(((name, machine.name) for name, machine in KNOWN.items()), incomplete)


def transfers(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """What `--transfers` takes."""
    return _items([("device", ""), ("host", "a copy after every stage")], incomplete)


def automatic(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """The one word that a count may be."""
    return _items([("auto", "")], incomplete)


def started(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """The kinds that `variants --new` starts, then its folder."""
    from click.shell_completion import CompletionItem

    from lenetgpu.stages.registry import KINDS

    found = _items(((kind, "a kind of stage") for kind in KINDS), incomplete)
    return found or [CompletionItem(incomplete, type="dir")]


def forms(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """What `--form` takes."""
    from lenetgpu.files.forms import FORMS

    return _items(((ending[1:], "") for ending in FORMS), incomplete)


def workers(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """The one word that `--workers` takes beside a number."""
    return _items([("cuda", "a process for each GPU")], incomplete)


def nothing(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """An address is typed."""
    return []
