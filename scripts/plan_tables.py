"""Tables of plans and of their peers, from docs/measured/*."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lenetgpu.network import STAGE_NAMES
from lenetgpu.plan import NAMED, canonical

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "measured"
PEERS = MEASURED / "peers-nvidia-h200" / "peers.json"
COURSE_MS = 270.0
_REPLAYED = " graph"


def _documents(folder: str) -> list[dict[str, Any]]:
    """Results of `infer --json`, a file a plan, in the plans' order."""
    found = {path.stem: json.loads(path.read_text()) for path in (MEASURED / folder).glob("*.json")}
    return [found[name] | {"plan_name": name} for name in NAMED if name in found]


def _device_line(document: dict[str, Any]) -> str:
    device = document["device"]
    detail = f", {device['cores']} cores" if device["kind"] == "cpu" else ""
    return (
        f"{device['name']}{detail}, {document['date']}; {document['images']:,} MNIST test images, "
        "the course's weights, medians"
    )


def gpu_table() -> str:
    """Plans on the GPU: compute, host to host, against the course's figure."""
    documents = _documents("nvidia-h200")
    lines = [
        f'{_device_line(documents[0])} (5th to 95th percentile). "Compute" is images on the device '
        'to labels on the device; "host to host" adds both copies.',
        "",
        f"| plan | compute ms | host to host ms | images/s | right | the course's {COURSE_MS:.0f} "
        "ms over it |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for document in sorted(documents, key=lambda d: -d["timing_ms"]["compute"]["median"]):
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
    documents = _documents("nvidia-h200")
    lines = [
        f"{_device_line(documents[0])}, each stage timed by itself.",
        "",
        f"| stage, ms | {' | '.join('`' + d['plan_name'] + '`' for d in documents)} |",
        "|---|" + "---:|" * len(documents),
    ]
    for name in ("input", *STAGE_NAMES):
        cells = " | ".join(_stage_cell(document, name) for document in documents)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def cpu_table() -> str:
    """Plans on a CPU."""
    documents = _documents("cpu-2-cores")
    lines = [f"{_device_line(documents[0])}.", "", "| plan | compute s | images/s | right |",
             "|---|---:|---:|---:|"]  # fmt: skip
    for document in sorted(documents, key=lambda d: -d["timing_ms"]["compute"]["median"]):
        compute = document["timing_ms"]["compute"]["median"] / 1e3
        lines.append(
            f"| `{document['plan_name']}` | {compute:.2f} | {document['images_per_second']:,.0f} "
            f"| {document['correct']:,} |"
        )
    return "\n".join(lines)


def _peers() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(PEERS.read_text())
    return document


def _plan_of(row: dict[str, Any]) -> str:
    """The plan that a row of ours ran, by its name of today."""
    return canonical(row["name"].split()[1])


def _contestant(row: dict[str, Any]) -> str:
    """The name of a row, ours by today's."""
    if row["maker"] != "lenetgpu":
        return str(row["name"])
    maker, _, *rest = row["name"].split()
    return " ".join([maker, _plan_of(row), *rest])


def _ours(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Our plans, replayed."""
    return [
        row
        for row in document["rows"]
        if row["maker"] == "lenetgpu" and row["name"].endswith(_REPLAYED)
    ]


def peers_table() -> str:
    """Our plans beside the best of PyTorch and JAX at the same precision, in one run."""
    document = _peers()
    rows = {row["name"]: row for row in document["rows"]}
    lines = [
        f"{document['device']['name']}, {document['date']}, PyTorch {document['torch']} with cuDNN "
        f"{document['cudnn']}; {document['images']:,} digits on the device to labels on the device,"
        " medians (5th to 95th percentile):",
        "",
        "| plan | replayed, ms | launched, ms | best peer | its ms | times faster | labels "
        "| logit error |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in _ours(document):
        launched = rows[row["name"].removesuffix(_REPLAYED)]
        theirs = rows[f"torch eager {row['peer'].split()[-2]} contiguous"]
        error = row["max_logit_error"] / theirs["max_logit_error"]
        lines.append(
            f"| `{_plan_of(row)}` | **{row['median_ms']:.4f}** ({row['p05_ms']:.4f} to "
            f"{row['p95_ms']:.4f}) | {launched['median_ms']:.4f} | {row['peer']} "
            f"| {row['peer_ms']:.3f} | **{row['times_faster']:.1f}x** | {row['flips']} "
            f"| {row['relative_error']:.1e}, {error:,.1f}x |"
        )
    return "\n".join(lines)


def contestants_table() -> str:
    """Every contestant of the peers' run."""
    document = _peers()
    lines = [
        f"{document['device']['name']}, {document['date']}, PyTorch {document['torch']} with cuDNN "
        f"{document['cudnn']}; {document['images']:,} images, the shipped weights, medians of "
        "interleaved rounds.",
        "",
        "| contestant | ms | 5th to 95th percentile |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {_contestant(row)} | {row['median_ms']:.4f} | {row['p05_ms']:.4f} to "
        f"{row['p95_ms']:.4f} |"
        for row in document["rows"]
    ]
    return "\n".join(lines)


def scaling_table() -> str:
    """Nanoseconds of an image, by plan and batch."""
    document = _peers()
    found = {(canonical(r["plan"]), r["images"]): r["ns_per_image"] for r in document["scaling"]}
    plans = list(dict.fromkeys(plan for plan, _ in found))
    batches = list(dict.fromkeys(images for _, images in found))
    lines = [
        f"{document['device']['name']}, {document['date']}; replayed, in samples of their own "
        "before the run above.",
        "",
        "| ns an image | " + " | ".join(f"{images:,} images" for images in batches) + " |",
        "|---|" + "---:|" * len(batches),
    ]
    for plan in plans:
        cells = " | ".join(f"{found[plan, images]:.1f}" for images in batches)
        lines.append(f"| `{plan}` | {cells} |")
    return "\n".join(lines)


SECTIONS = {
    "peers": peers_table,
    "contestants": contestants_table,
    "scaling": scaling_table,
    "gpu": gpu_table,
    "stages": stage_table,
    "cpu": cpu_table,
}
