"""The table of hardware counters beside NVVP's figures, from docs/measured/DEVICE/counters.json."""

from __future__ import annotations

from typing import Any

from measured import GPU, Document, kernels_line, load, there, where

from lenetgpu.measure.counters.metrics import NVVP_CAUSES
from lenetgpu.papers.course import MEAN
from lenetgpu.papers.course_counted import NVVP, Profiled
from lenetgpu.papers.course_counters import MORE
from lenetgpu.papers.course_ladder import PASSES_OF

FILE = "counters.json"
Row = dict[str, Any]


def by_key(document: Document) -> dict[tuple[str, str], Row]:
    """The rows by (stage, variant): efficiencies, occupancy, throughputs, the largest stall."""
    return {(row["stage"], row["variant"]): row for row in document["rows"]}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


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
_FIGURE = "figure | stage | variant | DRAM there | loads there | stores there | shared there"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _of_figure(line: Profiled, rows: dict[tuple[str, str], Row]) -> Row | None:
    """The kernel that NVVP's line is of: the mean of the pool in place, else the longest."""
    own = MEAN if line.variant == PASSES_OF else line.variant
    kernels = rows.get((line.stage, own), {}).get("kernels")
    return max(kernels, key=lambda kernel: float(kernel["ms"])) if kernels else None


def _figures(rows: dict[tuple[str, str], Row]) -> list[str]:
    """The kernels of the figures, NVVP's values before ours."""
    lines = [f"| {_FIGURE} | {_HEADS} |", "|---|---|---|" + "---:|" * 9 + "---|"]
    for line in NVVP:
        read, written, shared = MORE[line.figure, line.stage]
        found = _of_figure(line, rows)
        if found is not None:
            told = [f"{_rate(read)} / {_rate(written)}"]
            told += [f"{share:.1f} %" for share in (line.loads, line.stores, shared)]
            lines.append(_line(line.figure, line.stage, f"`{line.variant}`", *told, *_cells(found)))
    return lines


def table() -> str:
    """The figures' kernels beside NVVP, then every variant of the suite, then the plans."""
    if not there(GPU, FILE):
        return "Not measured on this device yet (`python scripts/measure.py --only counters`)."
    document = load(GPU, FILE)
    named = [(row["variant"], row) for row in document["rows"]]
    for name, plan in document["plans"].items():
        named += [(f"{row['variant']} in plan {name}", row) for row in plan["rows"]]
    return "\n".join(
        [
            f"{where(document)}; Nsight Compute {document['version']}, {document['images']:,} "
            f'images, each kernel alone; {kernels_line((document,))}. "There": NVVP on the '
            "course's GPU, beside the kernel that is ours of it; in the second table all kernels "
            "of a variant together, its copies too.",
            "",
            *_figures(by_key(document)),
            "",
            f"| stage | variant | {_HEADS} |",
            "|---|---|" + "---:|" * 5 + "---|",
            *(_line(row["stage"], f"`{name}`", *_cells(row)) for name, row in named),
        ]
    )


SECTIONS = {"counters": table}
