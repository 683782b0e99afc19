"""Access to docs/measured/DEVICE/ and captions for its figures.

DEVICE is `nvidia-h200`, `cpu-2-cores`; in it `peers.json`, `cells/STAGE.json`, `plans/NAME.json`,
`conv/SUITE.json`, `ablation/SUITE.json`, `course.json` and `.png`, `counters.json`, `infer.json`
and `.txt`, `weights.json`, `streams.json` and `.png`, `shares.json` and `.png`, `sanitize.json`,
`scale.json`, `winners.json`.
"""

import inspect
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import lenetgpu
from lenetgpu.check.warmup import network_problems
from lenetgpu.gpu.instructions import INSTRUCTIONS
from lenetgpu.gpu.latency import LOAD_LATENCY
from lenetgpu.gpu.nvrtc import source_hash
from lenetgpu.lab.conv.request import shape_of
from lenetgpu.lab.documents import current
from lenetgpu.lab.page.blocks import changed
from lenetgpu.lab.page.blocks import device_name as device_name
from lenetgpu.lab.page.blocks import where as where
from lenetgpu.lab.tables import Column, Table
from lenetgpu.measure.roofline import FMA_RATE
from lenetgpu.network import SPANS, STAGES
from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_measured import kernels as shares_kernels
from lenetgpu.papers.course import APART, MEAN, MERGED, RELU, SERIAL_MEAN, SERIAL_RELU
from lenetgpu.papers.course_ladder import PASSES_OF
from lenetgpu.papers.course_ladder import VARIANTS as LINEAR
from lenetgpu.pipeline import build_steps
from lenetgpu.plan import canonical, resolve
from lenetgpu.stages import Variant, variants

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "measured"
SOURCES = Path(lenetgpu.__file__).resolve().parent.parent
GPU, CPU = "nvidia-h200", "cpu-2-cores"
GPUS = ("nvidia-h100-80gb-hbm3", GPU)  # device folders shown in the pages, last measured first
_BATCHES = (1, 10_000)
_KINDS: dict[Any, str] = {stage.name: stage.kind for stage in STAGES}
_KINDS |= {span.name: span.kind for span in SPANS}
_KINDS |= {"+".join(span.stages): span.kind for span in SPANS}
_PASSES = {
    RELU: PASSES_OF,
    MEAN: PASSES_OF,
    SERIAL_RELU: "serial.loops",
    SERIAL_MEAN: "serial.loops",
}
_SHORT = "lenetgpu/stages/"
# Range of times with clocks over times without, in which shares apply to the plain kernel.
SAME_PROGRAM = (0.9, 1.1)

Document = dict[str, Any]


def of_the_plain_kernel(row: Document) -> bool:
    """Return True if the build with clocks took about as long as the plain kernel."""
    least, most = SAME_PROGRAM
    return bool(least <= row["slowed"] <= most)


def load(*parts: str) -> Document:
    document: Document = json.loads(
        MEASURED.joinpath(*parts).read_text(), object_pairs_hook=current
    )
    return document


def there(*parts: str) -> bool:
    return MEASURED.joinpath(*parts).is_file()


def folder_of(device: dict[str, Any]) -> str:
    """Return the folder of a document's `device`: `nvidia-h200`, `cpu-2-cores`."""
    if device["kind"] == "cpu":
        return f"cpu-{device['cores']}-cores"
    return "-".join(device["name"].lower().split())


def _files(variant: Variant, problems: Iterable[Any]) -> set[Path]:
    """Return the `.cu` files that `variant` launches on `problems`, or a CPU variant's Python."""
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


def _of_plan(name: str, device: str) -> Iterator[Path]:
    for step in build_steps(resolve(canonical(name), device), "uint8"):
        if step.variant is not None:
            yield from _files(step.variant, [step.problem])


def _of_variant(kinds: Iterable[str], name: str, device: str, shape: str = "") -> Iterator[Path]:
    for variant in (v for kind in kinds for v in variants(kind)):
        known = (variant.full_name,) if shape else variant.names
        if name in known and variant.needs.device in (device, "cpu"):
            if shape:
                problem = variant.laid_out(shape_of(shape).problem)
                yield from _files(variant, [] if isinstance(problem, str) else [problem])
            else:
                yield from _files(variant, network_problems(variant))


def _ran(node: Any, device: str, kinds: tuple[str, ...], shape: str = "") -> Iterator[Path]:
    """Yield the sources of every right variant and plan in a part of a document."""
    for item in node if isinstance(node, list) else ():
        yield from _ran(item, device, kinds, shape)
    if not isinstance(node, dict) or node.get("status", "right") != "right":
        return
    shape = node["shape"] if isinstance(node.get("shape"), str) else shape
    stage = node.get("stage") or "+".join(s for s in node.get("stages", ()) if isinstance(s, str))
    kinds = (_KINDS[stage],) if stage in _KINDS else kinds
    name = str(node.get("variant") or node.get("name") or "")
    if name in (APART, MERGED):
        for kind in (_KINDS[part] for part in stage.split("+")):
            yield from _of_variant((kind,), LINEAR[device][kind], device)
    yield from _of_variant(kinds, _PASSES.get(name, name), device, shape)
    plans = [name.removeprefix("plan ").partition(",")[0]] if name.startswith("plan ") else []
    plans += [node["plan"]] if isinstance(node.get("plan"), str) else []
    named_plans = node["plans"] if isinstance(node.get("plans"), dict) else {}
    plans += [plan for plan, entry in named_plans.items() if "plan" not in entry]
    for plan in plans:
        if plan != "auto":
            yield from _of_plan(plan, device)
    for value in node.values():
        yield from _ran(value, device, kinds, shape)


def _paths(document: Document) -> Iterator[Path]:
    device, command = document["device"]["kind"], document["command"]
    if document.get("ceilings") and device == "cuda":
        yield FMA_RATE.source.resolve()
    if command == "shares":
        yield from (kernel.source for kernel in shares_kernels(TABLE_1, TABLE_1_BATCH))
        yield from (kernel.source for one in INSTRUCTIONS for kernel in one.kernels())
        yield from (kernel.source for kernel in LOAD_LATENCY if "latency" in document)
    else:
        conv = command == "conv"
        kinds = ("conv",) if conv else (_KINDS.get(document.get("what"), ""), "scale", "relayout")
        yield from _ran(document["cases"] if conv else document, device, kinds)


def kernels_of(document: Document) -> dict[str, str]:
    """Return each source that `document`'s times depend on, relative to the root, with its hash.

    Kernels include their headers; CPU variants are their Python.
    """
    paths = sorted(set(_paths(document)))
    return {str(path.relative_to(SOURCES)): source_hash(path) for path in paths}


def kernels_line(documents: tuple[Document, ...]) -> str:
    """Return whether the sources of `documents` have changed since."""
    recorded = [document for document in documents if document.get("kernels")]
    if not recorded:
        return "kernels not recorded"
    names = sorted({name for document in recorded for name in changed(document)})
    words = "kernels as they are in the sources"
    if names:
        words = "since then changed: " + ", ".join(name.removeprefix(_SHORT) for name in names)
    return words + (", some kernels not recorded" if len(recorded) < len(documents) else "")


def _range(counts: list[int], of: str) -> str:
    if not counts:
        return "samples not recorded"
    low, high = min(counts), max(counts)
    counted = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{counted} sample{'s' * (high > 1)} {of}"


def how_sure(counts: Iterable[int], *documents: Document, of: str = "a row") -> str:
    """Return the end of a caption: samples per row, and whether the kernels have changed since."""
    return f"{_range(list(counts), of)}; {kernels_line(documents)}."


def said_of(document: Document) -> str:
    quick = "A quick run, not to be quoted. " if document.get("quick") else ""
    return f"{quick}{where(document)}; PyTorch {document.get('torch') or 'not installed'}"


def filled(page: str, text: str, name: str, content: str) -> str:
    """Return `text` with part `name`, which must occur once, replaced by `content`."""
    begin, end = f"<!-- begin:{name} -->", f"<!-- end:{name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if text.count(begin) != 1 or rest.count(end) != 1:
        raise click.ClickException(f"{page}: expected {begin} and {end} once each")
    return f"{before}{begin}\n{content}\n{end}{after}"


def md(heads: str, rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; a heading that ends in > is right-aligned, None is a dash."""
    named = [head.strip() for head in heads.split("|")]
    columns = [
        Column(head.removesuffix(">"), str(at), numeric=head.endswith(">"), empty="-")
        for at, head in enumerate(named)
    ]
    cells = [{str(at): value for at, value in enumerate(row)} for row in rows]
    return Table(columns, cells).markdown().rstrip()


def lines(*parts: str) -> str:
    """Return the non-empty parts, separated by empty lines."""
    return "\n\n".join(filter(None, parts))
