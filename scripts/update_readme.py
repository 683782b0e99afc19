"""Write the measured tables into README.md between their markers, from docs/measured/*.

`--check` writes nothing and exits with 1 where the README is not what it would write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import conv_tables

from lenetgpu.network import STAGE_NAMES
from lenetgpu.plan import NAMED

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
MEASURED = ROOT / "docs" / "measured"
REPORT_MS = 270.0


def _documents(folder: str) -> list[dict[str, Any]]:
    found = {path.stem: json.loads(path.read_text()) for path in (MEASURED / folder).glob("*.json")}
    return [found[name] | {"plan_name": name} for name in NAMED if name in found]


def _device_line(document: dict[str, Any]) -> str:
    device = document["device"]
    detail = f", {device['cores']} cores" if device["kind"] == "cpu" else ""
    return (
        f"{device['name']}{detail}, {document['date']}; {document['images']:,} MNIST test images, "
        "the course's weights, medians (5th to 95th percentile)."
    )


def gpu_table() -> str:
    """Plans on the GPU: compute, host to host, against the report's figure."""
    documents = _documents("nvidia-h200")
    lines = [
        f'{_device_line(documents[0])} "Compute" is images on the device to labels on the '
        'device; "host to host" adds both copies.',
        "",
        "| plan | compute ms | host to host ms | images/s | right | the report's 270 ms over it |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for document in sorted(documents, key=lambda d: -d["timing_ms"]["compute"]["median"]):
        compute = document["timing_ms"]["compute"]
        whole = document["timing_ms"]["end_to_end"]
        lines.append(
            f"| `{document['plan_name']}` | {compute['median']:.2f} "
            f"({compute['p05']:.2f} to {compute['p95']:.2f}) | {whole['median']:.2f} "
            f"| {document['images_per_second']:,.0f} | {document['correct']:,} "
            f"| {REPORT_MS / compute['median']:.0f}x |"
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
    names = ["input", *STAGE_NAMES]
    lines = [
        f"| stage, ms | {' | '.join('`' + d['plan_name'] + '`' for d in documents)} |",
        "|---|" + "---:|" * len(documents),
    ]
    for name in names:
        cells = []
        for document in documents:
            cells.append(_stage_cell(document, name))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cpu_table() -> str:
    """Plans on a CPU."""
    documents = _documents("cpu-2-cores")
    lines = [_device_line(documents[0]), "", "| plan | compute s | images/s | right |",
             "|---|---:|---:|---:|"]  # fmt: skip
    for document in sorted(documents, key=lambda d: -d["timing_ms"]["compute"]["median"]):
        compute = document["timing_ms"]["compute"]["median"] / 1e3
        lines.append(
            f"| `{document['plan_name']}` | {compute:.2f} | {document['images_per_second']:,.0f} "
            f"| {document['correct']:,} |"
        )
    return "\n".join(lines)


def _suite() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (MEASURED / "lab-nvidia-h200" / "suite-report.json").read_text()
    )
    return document


def report_table() -> str:
    """The report's figures beside this device's, each (stage, variant) once."""
    document = _suite()
    lines = [
        f"{document['device']['name']}, {document['date']}, {document['images']:,} images; "
        "every row checked against float64 before it was timed.",
        "",
        "| report | what | stage | variant | report, ms | here, ms | ratio | measured |",
        "|---|---|---|---|---:|---:|---:|---|",
    ]
    seen = set()
    for row in document["rows"]:
        key = (row["stage"], row["variant"])
        if key in seen or "median_ms" not in row:
            continue
        seen.add(key)
        figure = row.get("report_ms")
        ratio = f"{row['speedup']:,.0f}x" if "speedup" in row else "-"
        bound = ">" if row.get("at_least") else ""
        there = "could not run or left unbuilt" if figure is None else f"{bound}{figure:,.1f}"
        here = f"{row['median_ms']:,.3f}"
        why = row.get("explanation") or row.get("note") or ""
        where = f"table {row['table']}" if row["table"][0].isdigit() and figure else row["table"]
        lines.append(
            f"| {where} | {row['label']} | {row['stage']} | `{row['variant']}` | {there} | {here} "
            f"| {ratio} | {why} |"
        )
    return "\n".join(lines)


def ladder_table() -> str:
    """Which of the report's steps still gain something."""
    lines = [
        "| stage | step | gain there | gain here | today |",
        "|---|---|---:|---:|---|",
    ]
    lines += [
        f"| {step['stage']} | {step['step']} | {step['report_gain']:.2f}x | {step['gain']:.2f}x "
        f"| {step['verdict']} |"
        for step in _suite()["ladder"]
    ]
    return "\n".join(lines)


PEERS = MEASURED / "peers-nvidia-h200" / "peers.json"


def _peers() -> dict[str, Any] | None:
    if not PEERS.is_file():
        return None
    document: dict[str, Any] = json.loads(PEERS.read_text())
    return document


def peers_table() -> str:
    """Our plans beside the best of PyTorch and JAX at the same precision, in one run."""
    document = _peers()
    if document is None:
        return f"Not measured yet: `scripts/peers.py --json {PEERS.relative_to(ROOT)}` fills it."
    rows = {row["name"]: row for row in document["rows"]}
    lines = [
        f"{document['device']['name']}, {document['date']}, PyTorch {document['torch']}, cuDNN "
        f"{document['cudnn']}; {document['images']:,} device-resident images to labels, the "
        "shipped weights, interleaved rounds, medians (5th to 95th percentile); labels that differ "
        "from float64's, and the largest error of a logit against float64, over the largest "
        "logit and over PyTorch's own (eager, fp16 for `fast` and `int8`, else fp32).",
        "",
        "| plan | replayed, ms | launched, ms | best peer | its ms | times faster | labels "
        "| logit error |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        name = row["name"]
        if row["maker"] != "lenetgpu" or not name.endswith(" graph"):
            continue
        launched = rows[name.removesuffix(" graph")]
        theirs = rows[f"torch eager {row['peer'].split()[-2]} contiguous"]
        error = row["max_logit_error"] / theirs["max_logit_error"]
        lines.append(
            f"| `{name.split()[1]}` | **{row['median_ms']:.4f}** ({row['p05_ms']:.4f} to "
            f"{row['p95_ms']:.4f}) | {launched['median_ms']:.4f} | {row['peer']} "
            f"| {row['peer_ms']:.3f} | **{row['times_faster']:.1f}x** | {row['flips']} "
            f"| {row['relative_error']:.1e}, {error:,.1f}x |"
        )
    by_plan: dict[str, list[str]] = {}
    for row in document["scaling"]:
        text = f"{row['ns_per_image']:.1f} ns at {row['images']:,}"
        by_plan.setdefault(row["plan"], []).append(text)
    flat = "; ".join(f"`{plan}` {', '.join(texts)}" for plan, texts in by_plan.items())
    return "\n".join(
        [*lines, "", f"Time of an image by batch, in samples of their own before that run: {flat}."]
    )


def contestants_table() -> str:
    """Every contestant of the peers' run."""
    lines = ["| contestant | ms | 5th to 95th percentile |", "|---|---:|---:|"]
    lines += [
        f"| {row['name']} | {row['median_ms']:.4f} | {row['p05_ms']:.4f} to {row['p95_ms']:.4f} |"
        for row in (_peers() or {"rows": []})["rows"]
    ]
    return "\n".join(lines)


SECTIONS = {
    "peers": peers_table,
    "contestants": contestants_table,
    "gpu": gpu_table,
    "stages": stage_table,
    "cpu": cpu_table,
    "report": report_table,
    "ladder": ladder_table,
    **conv_tables.SECTIONS,
}


def updated(text: str) -> str:
    """`text` with every section between its markers written anew."""
    for name, make in SECTIONS.items():
        begin, end = f"<!-- begin:{name} -->", f"<!-- end:{name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise click.ClickException(f"README.md: expected markers {begin} and {end}")
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


@click.command()
@click.option("--check", is_flag=True, help="exit with 1 where the README is stale")
def main(check: bool) -> None:
    """Write README.md's generated sections."""
    text = README.read_text()
    new = updated(text)
    if check:
        if new != text:
            click.echo("README.md is stale: run scripts/update_readme.py", err=True)
        sys.exit(0 if new == text else 1)
    README.write_text(new)


if __name__ == "__main__":
    main()
