"""Tables of plans, from docs/measured/DEVICE/plans/ and infer.json."""

from __future__ import annotations

from typing import Any

from measured import CPU, GPU, MEASURED, Document, how_sure, load, where

from lenetgpu.network import STAGE_NAMES
from lenetgpu.papers.course import FIGURES, TOTAL
from lenetgpu.plan import NAMED, resolve

COURSE_MS = next(figure.milliseconds for figure in FIGURES if figure.variant == TOTAL)


def plans(folder: str) -> list[Document]:
    """Results of `infer --json`, a file a plan, in the plans' order."""
    found = {path.stem for path in (MEASURED / folder / "plans").glob("*.json")}
    return [
        load(folder, "plans", f"{name}.json") | {"plan_name": name}
        for name in NAMED
        if name in found
    ]


def _samples(document: Document) -> int:
    return len(document["timing_ms"]["compute"]["samples"])


def _median(document: Document) -> float:
    return float(document["timing_ms"]["compute"]["median"])


def _other_variants(documents: list[Document]) -> str:
    """A sentence on the plans that ran other variants than they do by that name today, if any."""
    names = []
    for document in documents:
        then = [slot["variant"] for slot in document["plan"]]
        now = [slot.variant.names for slot in resolve(document["plan_name"], "cuda").slots]
        same = len(then) == len(now) and all(map(lambda one, known: one in known, then, now))
        if not same:
            names.append(f"`{document['plan_name']}`")
    said = f" Measured with other variants than the plan has now: {', '.join(names)}."
    return said if names else ""


def gpu_table() -> str:
    """Plans on the GPU: compute, host to host, against the course's figure."""
    documents = plans(GPU)
    lines = [
        f"{where(*documents)}; {documents[0]['images']:,} MNIST test images, the course's weights, "
        'medians (5th to 95th percentile). "Compute" is images on the device to labels on the '
        'device; "host to host" adds both copies. '
        + how_sure(map(_samples, documents), *documents)
        + _other_variants(documents),
        "",
        f"| plan | compute ms | host to host ms | images/s | right | the course's {COURSE_MS:.0f} "
        "ms over it |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for document in sorted(documents, key=lambda d: -_median(d)):
        compute = document["timing_ms"]["compute"]
        whole = document["timing_ms"]["end_to_end"]
        lines.append(
            f"| `{document['plan_name']}` | {compute['median']:.2f} "
            f"({compute['p05']:.2f} to {compute['p95']:.2f}) | {whole['median']:.2f} "
            f"| {document['images_per_second']:,.0f} | {document['correct']:,} "
            f"| {COURSE_MS / compute['median']:,.0f}x |"
        )
    return "\n".join(lines)


def _stage_cell(document: dict[str, Any], name: str) -> str:
    for row in document["stages"]:
        stages = row["stages"] or [row["name"]]
        if name in stages:
            first = stages[0] == name
            return f"{row['median_ms']:.3f}" if first else "with " + stages[0]
    return "-"


def stage_table() -> str:
    """Milliseconds of each stage, by plan."""
    documents = plans(GPU)
    lines = [
        f"{where(*documents)}; the runs of the table above, medians, each stage timed by itself. "
        + how_sure([], *documents)
        + _other_variants(documents),
        "",
        f"| stage, ms | {' | '.join('`' + d['plan_name'] + '`' for d in documents)} |",
        "|---|" + "---:|" * len(documents),
    ]
    for name in ("input", *STAGE_NAMES):
        cells = " | ".join(_stage_cell(document, name) for document in documents)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def infer_block() -> str:
    """What `make infer` printed, and where."""
    document = load(CPU, "infer.json")
    text = (MEASURED / CPU / "infer.txt").read_text().rstrip()
    sure = how_sure([_samples(document)], document, of="of a pass").rstrip(".")
    return (
        f"What `make infer` prints without a GPU ({where(document)}; {sure}):\n\n```\n{text}\n```"
    )


SECTIONS = {"gpu": gpu_table, "stages": stage_table, "infer": infer_block}
