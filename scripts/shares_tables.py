"""The convnet2 kernels' parts, tiles and instructions, from docs/measured/DEVICE/shares.json."""

from __future__ import annotations

from typing import Any

from measured import GPU, Document, how_sure, load, there, where

from lenetgpu.gpu.instructions import INSTRUCTIONS
from lenetgpu.lab.show.shares import SAME_PROGRAM, between, of_the_plain_kernel, tile_rows
from lenetgpu.papers.convnet2_shares import PARTS

FILE, PICTURE = "shares.json", "shares.png"
NOT_YET = "Not measured on this device yet (`python scripts/measure.py --only shares`)."
_FASTEST = 5


def _said(document: Document, what: str) -> str:
    return f"{where(document)}; {what}. {how_sure([], document, of='a row')}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def parts(document: Document) -> str:
    """A row a kernel and shape: its parts, the paper's computation, the model's, and waiting."""
    rows = [row for case in document["cases"] for row in case["kernels"] if row.get("shares")]
    apart = sum(not of_the_plain_kernel(row) for row in rows)
    least, most = SAME_PROGRAM
    lines = [
        _said(document, "shares of the warps' clocks, of builds checked against float64"),
        "",
        f"In {apart} of {len(rows)} rows the build with clocks takes less than {least}x or more "
        f"than {most}x the plain kernel's time: it is another program there. Their shares, in "
        "brackets, are that program's and say nothing sure of the plain kernel.",
        "",
        f"| shape | figure | kernel | {' | '.join(PARTS)} | compute, the paper "
        "| compute, the model | of it waiting for loads | waiting for sums | us | with clocks |",
        "|---|---|---|" + "---:|" * (len(PARTS) + 6),
    ]
    for case in document["cases"]:
        for row in case["kernels"]:
            if not row.get("shares"):
                continue
            cells = [_share(row["shares"][part]) for part in PARTS]
            cells += [_share(row["paper"]), _share((row["model"] or {}).get("compute"))]
            cells += [_share(share) for share in row["waits"].values()]
            if not of_the_plain_kernel(row):
                own = (*range(len(PARTS)), len(PARTS) + 2, len(PARTS) + 3)
                cells = [f"({one})" if n in own else one for n, one in enumerate(cells)]
            cells += [f"{row['median_us']:,.2f}", f"{row['slowed']:.2f}x"]
            named = [case["label"], row["figure"], row["kernel"]]
            lines.append(f"| {' | '.join(named + cells)} |")
    if there(GPU, PICTURE):
        lines += ["", f"![the kernels' parts](measured/{GPU}/{PICTURE})"]
    return "\n".join(lines)


def _tile_line(label: str, row: dict[str, Any]) -> str:
    cells = [label, row["figure"], row["threads"], str(row["images_per_thread"]),
             str(row["filters_per_thread"]), str(row["cached_pixels"]), f"{row['tile_bytes']:,}",
             f"{row['shared_bytes']:,}", str(row["registers"]), f"{row['blocks']:,}",
             f"{row['blocks_per_sm']} ({row['limited_by']})", f"{row['waves']:.2f}",
             f"{row['median_us']:,.2f}", f"{row['ratio']:.2f}x"]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def tiles(document: Document) -> str:
    """Of each shape the fastest tiles, figure 5's and 6's best, and Table 1's, fastest first."""
    lines = [
        _said(document, f"`convnet2.unrolled`, each tile checked; the {_FASTEST} fastest a shape, "
              "Table 1's, and the fastest of figures 5 and 6"),
        "",
        "| shape | figure | threads | images a thread | filters a thread | cached pixels "
        "| shared bytes by (1) | compiled | registers | blocks (5) | at once (4) | waves | us "
        "| over Table 1's |",
        "|---|---|---|" + "---:|" * 11,
    ]  # fmt: skip
    for case in document["cases"]:
        timed = [row for row in tile_rows(case) if row["median_us"]]
        for place, row in enumerate(timed):
            best = next(one for one in timed if one["figure"] == row["figure"])
            if place < _FASTEST or row["table_1"] or (row is best and row["figure"] in "56"):
                lines.append(_tile_line(case["label"], row))
    return "\n".join(lines)


def latency_said(document: Document) -> str:
    """The load's latency and N_FMA that were measured, beside what planners take."""
    if "latency" not in document:
        return "This run did not record the load's latency that N_FMA hides."
    row = document["latency"]
    return (
        f"A load from global memory takes {row['load']:,.0f} clocks, plans take "
        f"{row['planned_load']:,} (`gpu/machines.py`); N_FMA is {row['n_fma']:,} multiply-adds, "
        f"planned with {row['planned_n_fma']:,}."
    )


def instruction_clocks(document: Document) -> str:
    """A row an instruction: its clocks here, the paper's lines; then what is not measured."""
    lines = [
        _said(document, "clocks until the warp's next instruction, which waits for the result"),
        "",
        "| PTX | SASS | clocks | figure 9 | figure 13 | remark |",
        "|---|---|---:|---:|---:|---|",
    ]
    remarks = {one.ptx: one.remark for one in INSTRUCTIONS}
    for row in document["instructions"]:
        paper = [between(row[f]) if row[f] else "-" for f in ("figure_9", "figure_13")]
        cells = [
            row["ptx"],
            row["sass"],
            f"{row['clocks']:.1f}",
            *paper,
            remarks.get(row["ptx"]) or "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {what}: {why}." for what, why in document["not_measured"].items())]
    lines += ["", latency_said(document)]
    return "\n".join(lines)


_HOISTED = {
    "multiply-adds": ("strength_reduced", "hoisted_checks"),
    "inner product engine": ("inner product, strength reduced", "inner_product"),
    "outer product engine": ("outer product, strength reduced", "outer_product"),
}
"""Section 4.2's step for each way of taking the sums: the steps of the ladder before and after."""


def conditionals() -> str:
    """A row a shape: how many times faster the extracted conditionals are, by the ladder."""
    if not there(GPU, "conv", "convnet2.json"):
        return "Measured with the suite convnet2."
    document = load(GPU, "conv", "convnet2.json")
    lines = [
        _said(document, "time before extracting the conditionals over the time after"),
        "",
        f"| shape | {' | '.join(_HOISTED)} |",
        "|---|" + "---:|" * len(_HOISTED),
    ]
    for case in document["cases"]:
        us = {row["step"]: row["median_us"] for row in case["ladder"]}
        cells = [f"{us[before] / us[after]:.2f}x" for before, after in _HOISTED.values()]
        lines.append(f"| {case['label']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _maker(table: Any) -> Any:
    return lambda: table(load(GPU, FILE)) if there(GPU, FILE) else NOT_YET


SECTIONS = {
    "shares-parts": _maker(parts),
    "shares-tiles": _maker(tiles),
    "shares-instructions": _maker(instruction_clocks),
    "convnet2-conditionals": conditionals,
}
