"""The table of hardware counters beside NVVP's figures, from docs/measured/DEVICE/counters.json."""

from __future__ import annotations

from typing import Any

from measured import GPU, Document, kernels_line, load, there, where

from lenetgpu.measure.counters.metrics import NVVP_CAUSES
from lenetgpu.papers.course_counted import NVVP

FILE = "counters.json"
Row = dict[str, Any]


def by_key(document: Document) -> dict[tuple[str, str], Row]:
    """The rows by (stage, variant): efficiencies, occupancy, throughputs, the largest stall."""
    return {(row["stage"], row["variant"]): row for row in document["rows"]}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _stall(row: Row) -> str:
    if row.get("top_stall") is None:
        return "-"
    nvvp = NVVP_CAUSES.get(row["top_stall"], "other")
    return f"{row['top_stall']} ({nvvp}) {row['top_stall_share']:.0%}"


def _cells(row: Row) -> list[str]:
    return [
        f"{_rate(row.get('dram_read_gbs'))} / {_rate(row.get('dram_write_gbs'))}",
        _percent(row.get("global_load_efficiency")),
        _percent(row.get("global_store_efficiency")),
        _percent(row.get("shared_efficiency")),
        _percent(row.get("occupancy")),
        _stall(row),
    ]


_HEADS = "DRAM read / written, GB/s | loads | stores | shared | active warps | most wait for"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """The figures' kernels beside NVVP, then every variant of the suite, then the plans."""
    if not there(GPU, FILE):
        return "Not measured on this device yet (`python scripts/measure.py --only counters`)."
    document = load(GPU, FILE)
    rows = by_key(document)
    lines = [
        f"{where(document)}; Nsight Compute {document['version']}, {document['images']:,} images, "
        "each kernel alone, one pass counted; a variant's kernels together, its copies too; "
        f'{kernels_line((document,))}. "There" is NVVP\'s figure of the course.',
        "",
        f"| figure | stage | variant | loads there | stores there | {_HEADS} |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for figure in NVVP:
        row = rows.get((figure.stage, figure.variant))
        if row is not None:
            name, there_l, there_s = f"`{figure.variant}`", figure.loads, figure.stores
            cells = [figure.figure, figure.stage, name, f"{there_l:.1f} %", f"{there_s:.1f} %"]
            lines.append(_line(*cells, *_cells(row)))
    lines += ["", f"| stage | variant | {_HEADS} |", "|---|---|---:|---:|---:|---:|---:|---|"]
    named = [("", row) for row in document["rows"]]
    named += [
        (f" (plan {name})", row) for name, p in document["plans"].items() for row in p["rows"]
    ]
    for plan, row in named:
        lines.append(_line(row["stage"], f"`{row['variant']}`{plan}", *_cells(row)))
    return "\n".join(lines)


SECTIONS = {"counters": table}
