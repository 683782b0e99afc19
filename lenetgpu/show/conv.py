"""Convolutions of any shape as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.show.tables import (
    LAUNCH_COLUMNS,
    MACHINE_COLUMNS,
    STATUS_WORDS,
    Column,
    as_rich,
    candidate_row,
    fixed,
    legend,
    noted,
    percent,
    short_error,
    significant,
    used,
)

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = (
    Column("shape", "label", numeric=False),
    Column("candidate", "name", numeric=False),
    Column("precision", "precision", numeric=False),
    Column("layout", "layout", numeric=False),
    Column("check", "check", numeric=False),
    Column("error", "relative_error", short_error),
    Column("median us", "median_us", fixed(2)),
    Column("p05 us", "p05_us", fixed(2)),
    Column("p95 us", "p95_us", fixed(2)),
    Column("p99 us", "p99_us", fixed(2)),
    Column("ratio", "ratio", fixed(3)),
    Column("95 % from", "low", fixed(3)),
    Column("to", "high", fixed(3)),
    Column("verdict", "verdict", numeric=False),
    Column("speed-up", "speedup", fixed(2)),
    Column("TFLOP/s", "tflops", significant(3)),
    Column("GB/s", "gbs", fixed(0)),
    Column("of the roof", "roofline", percent),
    Column("bound by", "bound", numeric=False),
    *LAUNCH_COLUMNS,
    *MACHINE_COLUMNS,
    Column("timed by", "method", numeric=False),
    Column("note", "note", numeric=False),
)
SUMMARY_COLUMNS = (
    Column("candidate", "name", numeric=False),
    Column("shapes", "shapes"),
    Column("geometric mean", "geomean", fixed(2)),
    Column("least", "least", fixed(2)),
    Column("most", "most", fixed(2)),
    Column("the paper's", "paper", numeric=False),
)
LADDER_COLUMNS = (
    Column("section", "section", numeric=False),
    Column("the paper's step", "step", numeric=False),
    Column("over", "before", numeric=False),
    Column("check", "check", numeric=False),
    Column("us", "median_us", fixed(2)),
    Column("with relayouts", "whole_us", fixed(2)),
    Column("cycles", "cycles", fixed(0)),
    Column("there", "paper_cycles", fixed(0)),
    Column("regs/thread", "registers"),
    Column("local B/thread", "local_bytes"),
    Column("shared B/block", "shared_bytes"),
    Column("instructions", "instructions", fixed(0)),
    Column("gain here", "ratio", fixed(2)),
    Column("gain there", "paper_ratio", fixed(2)),
    Column("since the first", "total_ratio", fixed(2)),
    Column("note", "note", numeric=False),
)
EXPLANATION_COLUMNS = (
    Column("about", "about", numeric=False),
    Column("what", "what", numeric=False),
    Column("found", "found", numeric=False),
)
_IN_THE_FILES_ONLY = ("label", "note", "blocks_per_sm", "limited_by")
_IN_A_CASE = tuple(column for column in COLUMNS if column.key not in _IN_THE_FILES_ONLY)


def case_rows(case: dict[str, Any]) -> list[dict[str, Any]]:
    """A shape's candidates as table rows, fastest first, those without times last."""
    rows = []
    again = case["reference_again"]
    for entry in case["candidates"] + ([again] if again and "name" in again else []):
        row = candidate_row(entry) | {"label": case["label"]}
        for key in ("median", "p05", "p95", "p99"):
            if f"{key}_ms" in entry:
                row[f"{key}_us"] = 1e3 * entry[f"{key}_ms"]
        if "reads" in entry:
            both = (entry["reads"], entry["writes"])
            row["layout"] = both[0] if both[0] == both[1] else " to ".join(both)
        if entry["status"] == "wrong" and not entry.get("note"):
            error, tolerance = entry["relative_error"], entry["tolerance"]
            row["note"] = f"error {error:.1e}, tolerance {tolerance:.0e}"
        row["note"] = noted(row)
        rows.append(row)
    return sorted(rows, key=lambda row: row.get("median_ms", float("inf")))


def ladder_rows(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps with the paper's saving of time as a ratio, and its remark where there is no note."""
    rows = []
    for step in steps:
        row = step | {"check": STATUS_WORDS[step["status"]]}
        if step.get("paper_gain") is not None:
            row["paper_ratio"] = 1 / (1 - step["paper_gain"])
        row["note"] = step["note"] or step.get("what")
        rows.append(row)
    return rows


def table(document: dict[str, Any]) -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    """Every shape's candidates in one table, for Markdown and CSV."""
    rows = [row for case in document["cases"] for row in case_rows(case)]
    return used(COLUMNS, rows), rows


def print_conv(console: Console, document: dict[str, Any]) -> None:
    """A table a shape, what its ratios rest on, explanations where asked, and a suite's summary."""
    device, peer = document["device"]["name"], document["peer"] or "no PyTorch beside it"
    heading = f"suite {document['suite']}: {document['title']}, " if document["suite"] else ""
    cache = "cold L2" if document["cold_l2"] else "warm L2"
    console.print(f"{heading}{device}, {peer}, {cache}", highlight=False)
    if document["claim"]:
        console.print(f"the paper: {document['claim']}", highlight=False)
    for note in document["notes"]:
        console.print(note, highlight=False, soft_wrap=True)
    for case in document["cases"]:
        _print_case(console, case, document["suite"] is not None)
    if document.get("summary"):
        title = f"speed-up over {document['reference']}, all shapes"
        rows = document["summary"]
        console.print(as_rich(used(SUMMARY_COLUMNS, rows), rows, title, width=console.width))
    if document["interrupted"]:
        console.print("interrupted: what was measured until then", highlight=False)


def _print_case(console: Console, case: dict[str, Any], in_suite: bool) -> None:
    rows = case_rows(case)
    label = f"{case['label']}: " if in_suite else ""
    title = (
        f"{label}{case['shape']}, batch {case['images']:,}: {case['gflop']:,.3g} GFLOP, "
        f"{case['mbytes']:,.3g} MB, {case['intensity']:,.3g} FLOP/byte"
    )
    if case["paper"]:
        title += f"; the paper: {case['paper']}"
    shown = [row for row in rows if row["status"] != "refused"]
    if rows:
        console.print(as_rich(used(_IN_A_CASE, shown), shown, title, width=console.width))
    else:
        console.print(f"{title}\nnothing to run here", highlight=False, soft_wrap=True)
    for row in rows:
        if row["note"]:
            word = "refused, " if row["status"] == "refused" else ""
            console.print(f"{row['name']}: {word}{row['note']}", highlight=False, soft_wrap=True)
    if case["rounds"]:
        console.print(legend(case["reference"], case["rounds"]), highlight=False, soft_wrap=True)
    if case.get("ladder"):
        rows = ladder_rows(case["ladder"])
        title = f"the paper's ladder, {case['label']}: the convolution alone, steps interleaved"
        console.print(as_rich(used(LADDER_COLUMNS, rows), rows, title, width=console.width))
    if case.get("explanation"):
        rows = [
            {"about": "" if index else section["about"], "what": what, "found": found}
            for section in case["explanation"]
            for index, (what, found) in enumerate(section["rows"])
        ]
        console.print(as_rich(EXPLANATION_COLUMNS, rows, "explanation", width=console.width))
