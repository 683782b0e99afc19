"""What lies in docs/measured/DEVICE/: reading it, and saying what it is of.

DEVICE is `nvidia-h200`, `cpu-2-cores`; in it `peers.json`, `cells/STAGE.json`, `plans/NAME.json`,
`conv/SUITE.json`, `ablation/SUITE.json`, `course.json` and `.png`, `counters.json`, `infer.json`
and `.txt`, `weights.json`, `streams.json` and `.png`, `shares.json` and `.png`, `sanitize.json`,
`scale.json`, `winners.json`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

import lenetgpu
from lenetgpu.check.warmup import network_problems
from lenetgpu.gpu.instructions import INSTRUCTIONS
from lenetgpu.gpu.latency import LOAD_LATENCY
from lenetgpu.gpu.nvrtc import source_hash
from lenetgpu.lab.conv.given import taken
from lenetgpu.lab.page.blocks import changed
from lenetgpu.lab.page.blocks import device_name as device_name
from lenetgpu.lab.page.blocks import where as where
from lenetgpu.measure.roofline import FMA_RATE
from lenetgpu.network import SPANS, STAGES
from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_shares import kernels as shares_kernels
from lenetgpu.papers.course import APART, MEAN, MERGED, RELU, SERIAL_MEAN, SERIAL_RELU
from lenetgpu.papers.course_ladder import PASSES_OF
from lenetgpu.papers.course_merged import VARIANTS as LINEAR
from lenetgpu.pipeline import build_steps
from lenetgpu.plan import canonical, resolve
from lenetgpu.stages import Variant, variants

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "measured"
SOURCES = Path(lenetgpu.__file__).resolve().parent.parent
GPU, CPU = "nvidia-h200", "cpu-2-cores"
GPUS = ("nvidia-h100-80gb-hbm3", GPU)
"""The folders that the pages are written of, the GPU that was measured last first."""
_BATCHES = (1, 10_000)
_KINDS: dict[Any, str] = {stage.name: stage.kind for stage in STAGES}
_KINDS |= {(stage.name,): stage.kind for stage in STAGES}
_KINDS |= {span.name: span.kind for span in SPANS} | {span.stages: span.kind for span in SPANS}
_PASSES = {
    RELU: PASSES_OF,
    MEAN: PASSES_OF,
    SERIAL_RELU: "serial.loops",
    SERIAL_MEAN: "serial.loops",
}
_SHORT = "lenetgpu/stages/"

Document = dict[str, Any]


def load(*parts: str) -> Document:
    """The document at docs/measured/PARTS."""
    document: Document = json.loads(MEASURED.joinpath(*parts).read_text())
    return document


def there(*parts: str) -> bool:
    """Whether docs/measured/PARTS has been measured."""
    return MEASURED.joinpath(*parts).is_file()


def folder_of(device: dict[str, Any]) -> str:
    """The folder of a document's `device`: `nvidia-h200`, `cpu-2-cores`."""
    if device["kind"] == "cpu":
        return f"cpu-{device['cores']}-cores"
    return "-".join(device["name"].lower().split())


def _files(variant: Variant, problems: Iterable[Any]) -> set[Path]:
    """The `.cu` files that `variant` launches on `problems`; of a CPU's, the Python it is."""
    if variant.needs.device == "cpu":
        own = Path(inspect.getfile(inspect.unwrap(variant.run))).resolve()
        return {own, *(SOURCES / "lenetgpu" / "cpu").glob("*.py")}
    if variant.kernels is None:
        return set()
    return {
        kernel.source.resolve()
        for problem in problems
        for batch in _BATCHES
        for kernel in variant.kernels(problem, batch)
    }


def _of_plan(name: str, device: str) -> set[Path]:
    plan = resolve(canonical(name), device)
    return {
        path
        for step in build_steps(plan, "uint8")
        if step.variant is not None
        for path in _files(step.variant, [step.problem])
    }


def _of_variant(kind: str, name: str, device: str) -> set[Path]:
    return {
        path
        for variant in variants(kind)
        if name in variant.names and variant.needs.device in (device, "cpu")
        for path in _files(variant, network_problems(variant))
    }


def _of_conv(document: Document) -> Iterator[Path]:
    """Of every shape's candidates."""
    device = document["device"]["kind"]
    by_name = {v.full_name: v for v in variants("conv") if v.needs.device in (device, "cpu")}
    for case in document["cases"]:
        for entry in case["candidates"]:
            variant = by_name.get(entry["name"])
            if variant is None or entry["status"] != "right":
                continue
            problem = variant.laid_out(taken(case["shape"]).problem)
            if not isinstance(problem, str):
                yield from _files(variant, [problem])


def _of_course(document: Document) -> Iterator[Path]:
    device = document["device"]["kind"]
    for row in document["rows"]:
        name = row["variant"]
        if row["status"] != "right":
            continue
        if name.startswith("plan "):
            plan, _, _ = name.removeprefix("plan ").partition(",")
            yield from _of_plan(plan, device)
        elif name in _PASSES:
            yield from _of_variant("pool", _PASSES[name], device)
        elif name in (APART, MERGED):
            for part in row["stage"].split("+"):
                yield from _of_variant(_KINDS[part], LINEAR[device][_KINDS[part]], device)
        else:
            yield from _of_variant(_KINDS[row["stage"]], name, device)


def _of_counters(document: Document, device: str) -> Iterator[Path]:
    """Of every row's variant, and of the plans'."""
    for row in document["rows"]:
        name = _PASSES.get(row["variant"], row["variant"])
        yield from _of_variant(_KINDS[row["stage"]], name, device)
    for plan in document["plans"].values():
        for slot in plan["plan"]:
            yield from _of_variant(_KINDS[tuple(slot["stages"])], slot["variant"], device)


def _paths(document: Document) -> Iterator[Path]:
    device = document["device"]["kind"]
    if document.get("ceilings") and device == "cuda":
        yield FMA_RATE.source.resolve()
    if document["command"] in ("conv", "winners"):
        yield from _of_conv(document)
    elif document["command"] == "compare" and "candidates" in document:
        for entry in document["candidates"]:
            yield from _of_variant(_KINDS[document["what"]], entry["name"], device)
    elif document["command"] == "compare":
        yield from _of_course(document)
    elif document["command"] == "counters":
        yield from _of_counters(document, device)
    elif document["command"] == "weights":
        for name in document["rows"][0]["plans"]:
            yield from _of_plan(name, device)
    elif document["command"] == "peers":
        for row in document["rows"]:
            if row.get("plan", "auto") != "auto":
                yield from _of_plan(row["plan"], device)
    elif document["command"] == "shares":
        yield from (kernel.source for kernel in shares_kernels(TABLE_1, TABLE_1_BATCH))
        yield from (kernel.source for one in INSTRUCTIONS for kernel in one.kernels())
        if "latency" in document:
            yield from (kernel.source for kernel in LOAD_LATENCY)
    elif document["command"] == "scale":
        yield from _of_plan(document["plan"], device)
    elif document["command"] == "streams":
        for sweep in document["sweeps"]:
            yield from _of_plan(sweep["plan"], device)
    else:
        yield from _of_infer(document, device)


def _of_infer(document: Document, device: str) -> Iterator[Path]:
    """Of a plan's slots, and of the conversions between them that it timed."""
    for slot in document["plan"]:
        yield from _of_variant(_KINDS[tuple(slot["stages"])], slot["variant"], device)
    between = {row["variant"] for row in document["stages"] if not row["stages"]}
    for kind in ("scale", "relayout"):
        for name in between:
            yield from _of_variant(kind, name, device)


def kernels_of(document: Document) -> dict[str, str]:
    """Each source that `document`'s times depend on, from the repository's root, to its hash.

    Kernels with the headers that they include; of a CPU's variants the Python that they are.
    """
    found = sorted(set(_paths(document)))
    return {str(path.relative_to(SOURCES)): source_hash(path) for path in found}


def joined(document: Document) -> list[str]:
    """The stages' sources that `document`'s plans run today and did not when it was taken."""
    new = set(kernels_of(document)) - set(document.get("kernels") or {})
    return sorted(name for name in new if name.startswith(_SHORT))


def _named(what: str, sources: set[str]) -> str:
    names = ", ".join(name.removeprefix(_SHORT) for name in sorted(sources))
    return f"{what}: {names}" if names else ""


def kernels_line(documents: tuple[Document, ...]) -> str:
    """Whether what `documents` ran is still what the sources are."""
    without = [document for document in documents if not document.get("kernels")]
    if len(without) == len(documents):
        return "kernels not recorded"
    recorded = [document for document in documents if document.get("kernels")]
    since = {name for document in recorded for name in changed(document)}
    new = {name for document in recorded for name in joined(document)}
    said = "kernels as they are in the sources"
    if since or new:
        said = "; ".join(filter(None, (_named("since then changed", since),
                                       _named("run today and not then", new))))  # fmt: skip
    return said + (", some kernels not recorded" if without else "")


def _range(counts: list[int], of: str) -> str:
    if not counts:
        return "samples not recorded"
    low, high = min(counts), max(counts)
    found = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{found} sample{'s' * (high > 1)} {of}"


def how_sure(counts: Iterable[int], *documents: Document, of: str = "a row") -> str:
    """How many samples each row has, and whether the kernels are still those: a line's end."""
    return f"{_range(list(counts), of)}; {kernels_line(documents)}."


def said_of(document: Document) -> str:
    """Return device, date and commit of a run beside peers, and the peers' versions."""
    quick = "A quick run, not to be quoted. " if document.get("quick") else ""
    return f"{quick}{where(document)}; PyTorch {document.get('torch') or 'not installed'}"


def filled(page: str, text: str, name: str, content: str) -> str:
    """Return `text` with `content` as the part of that name, which has to be there once."""
    begin, end = f"<!-- begin:{name} -->", f"<!-- end:{name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if text.count(begin) != 1 or rest.count(end) != 1:
        raise click.ClickException(f"{page}: expected {begin} and {end} once each")
    return f"{before}{begin}\n{content}\n{end}{after}"
