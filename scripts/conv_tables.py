"""The README's convolution tables, from docs/measured/conv-*/SUITE.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lenetgpu.lab.conv_json import geometric_mean
from lenetgpu.lab.conv_suites import SUITES, Suite

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
    return f"{1e3 * entry['median_ms']:,.1f} (`{entry['name']}`)", speedup


def _mean(values: list[float]) -> str:
    mean = geometric_mean(values)
    return "-" if mean is None else f"**{mean:.2f}x**"


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
        f"{document['date']}; fp32 without TF32, medians of interleaved replays of CUDA graphs, "
        f"warm L2, every row checked against float64."
        + (f" The paper: {suite.says}." if suite.says else ""),
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


def _maker(name: str) -> Callable[[], str]:
    return lambda: table(name)


SECTIONS = {f"conv-{name}": _maker(name) for name in SUITES}
