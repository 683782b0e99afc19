"""The tables of convolutions, from docs/measured/conv-*/SUITE.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lenetgpu.papers.shapes import SUITES, Suite
from lenetgpu.show.conv import ladder_rows
from lenetgpu.show.conv_document import geometric_mean

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "measured" / "conv-nvidia-h200"


def _of_paper(suite: Suite, name: str) -> bool:
    return name in suite.kernels or name.split(".")[0] in suite.kernels


def _fastest(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    timed = [entry for entry in entries if entry.get("median_ms")]
    return min(timed, key=lambda entry: entry["median_ms"]) if timed else None


def _cells(entry: dict[str, Any] | None) -> tuple[str, str]:
    """(time and name, speed-up) of a candidate."""
    if entry is None:
        return "-", "-"
    speedup = f"{entry['speedup']:.2f}x" if "speedup" in entry else "-"
    precision = "" if entry["precision"] == "fp32" else f", {entry['precision']}"
    return f"{1e3 * entry['median_ms']:,.1f} (`{entry['name']}`{precision})", speedup


def _mean(values: list[float]) -> str:
    mean = geometric_mean(values)
    return "-" if mean is None else f"**{mean:.2f}x**"


def _images(document: dict[str, Any]) -> str:
    """How many images its cases have, where they are as many."""
    found = {case["images"] for case in document["cases"]}
    if len(found) > 1:
        return "images as named"
    return "1 image" if found == {1} else f"{min(found):,} images"


def table(name: str) -> str:
    """A suite's shapes: the reference, our fastest fp32, the paper's kernel, the paper's figure."""
    path, suite = FOLDER / f"{name}.json", SUITES[name]
    if not path.is_file():
        place = path.relative_to(ROOT)
        return f"Not measured yet: `lenetgpu conv --suite {name} --json {place}` on a GPU fills it."
    document = json.loads(path.read_text())
    reference = document["reference"]
    lines = [
        f"{suite.title}: {document['device']['name']}, {document['peer'] or 'no PyTorch'}, "
        f"{document['date']}; {_images(document)}; fp32 without TF32, medians of interleaved "
        "replays of CUDA graphs, warm L2, every row checked against float64."
        + (f" The paper: {suite.says}." if suite.says else "")
        + (" Copies between layouts are counted in." if name == "convnet2" else ""),
        "",
        f"| shape | {reference}, us | fastest fp32 here, us | times faster | of the roof "
        "| the paper's kernel here, us | times faster | the paper |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    ours: list[float] = []
    papers: list[float] = []
    for case in document["cases"]:
        entries = case["candidates"]
        base = next((e for e in entries if e["name"] == reference), {})
        best = next((e for e in entries if e["name"] == case["best"]), None)
        paper = _fastest([e for e in entries if _of_paper(suite, e["name"])])
        for entry, means in ((best, ours), (paper, papers)):
            if entry is not None and "speedup" in entry:
                means.append(entry["speedup"])
        there = f"{1e3 * base['median_ms']:,.1f}" if base.get("median_ms") else "-"
        roof = f"{best['roofline']:.0%}" if best and best.get("roofline") else "-"
        cells = [case["label"], there, *_cells(best), roof, *_cells(paper), case["paper"] or "-"]
        lines.append("| " + " | ".join(cells) + " |")
    claim = f"{suite.claim[0]}x" if suite.claim else "-"
    lines.append(f"| geometric mean | | | {_mean(ours)} | | | {_mean(papers)} | {claim} |")
    return "\n".join(lines)


def _range(entries: list[dict[str, Any] | None]) -> str:
    """Geometric mean of speed-ups, with the least and the most."""
    found = [entry["speedup"] for entry in entries if entry is not None and "speedup" in entry]
    if not found:
        return "-"
    return f"**{geometric_mean(found):.2f}x** ({min(found):.2f}x to {max(found):.2f}x)"


def overview() -> str:
    """A line a suite: how many times faster than the reference, ours and the paper's kernel."""
    lines = [
        "| suite | shapes | fastest fp32 here | the paper's kernel here | the paper |",
        "|---|---:|---:|---:|---|",
    ]
    where = ""
    for name, suite in SUITES.items():
        path = FOLDER / f"{name}.json"
        if not path.is_file():
            continue
        document = json.loads(path.read_text())
        where = (
            f"{document['device']['name']}, {document['peer'] or 'no PyTorch'}, "
            f"{document['date']}: how many times "
            f"faster than `{document['reference']}`, geometric mean (least to most)."
        )
        best, paper = [], []
        for case in document["cases"]:
            best += [e for e in case["candidates"] if e["name"] == case["best"]]
            paper.append(_fastest([e for e in case["candidates"] if _of_paper(suite, e["name"])]))
        lines.append(
            f"| `{name}` | {len(document['cases'])} | {_range([*best])} | {_range(paper)} "
            f"| {suite.says or '-'} |"
        )
    return f"{where}\n\n" + "\n".join(lines) if where else "Not measured yet."


def _number(value: Any, write: str = "{:,}") -> str:
    return "-" if value is None else write.format(value)


def steps_table() -> str:
    """The cuda-convnet2 paper's steps, each shape of its suite."""
    path = FOLDER / "convnet2.json"
    if not path.is_file():
        return "Measured with the suite convnet2."
    document = json.loads(path.read_text())
    parts = []
    for case in document["cases"]:
        rows = [row for row in ladder_rows(case.get("ladder", [])) if row.get("median_us")]
        lines = [
            f"{case['label']} ({case['shape']}, batch {case['images']:,}), the convolution alone; "
            "a gain is the time of the step named under `over`, divided by this step's:",
            "",
            "| section | step | us | cycles | cycles there | registers | local bytes "
            "| instructions | gain | gain there | over |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
        ]
        lines += [
            f"| {row['section']} | {row['step']} | {row['median_us']:,.2f} "
            f"| {_number(row['cycles'])} | {_number(row['paper_cycles'])} | {row['registers']} "
            f"| {row['local_bytes']} | {_number(row['instructions'])} "
            f"| {_number(row['ratio'], '{:.2f}x')} | {_number(row.get('paper_ratio'), '{:.2f}x')} "
            f"| {row['before'] or '-'} |"
            for row in rows
        ]
        parts.append("\n".join(lines))
    where = f"{document['device']['name']}, {document['date']}, a row a step of the paper."
    return "\n\n".join([where, *parts, *document["notes"]])


def _maker(name: str) -> Callable[[], str]:
    return lambda: table(name)


SECTIONS = {f"conv-{name}": _maker(name) for name in SUITES}
SECTIONS |= {"conv": overview, "convnet2-steps": steps_table}
