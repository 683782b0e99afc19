"""Profiles, comparisons and suites as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.lab.show import conv as conv_results
from lenetgpu.lab.show import counters as hardware
from lenetgpu.lab.show import tables
from lenetgpu.lab.show.tables import (
    LAUNCH_COLUMNS,
    MACHINE_COLUMNS,
    STATUS_WORDS,
    Column,
    as_rich,
    candidate_row,
    dimensions,
    fitting,
    fixed,
    legend,
    noted,
    percent,
    short_error,
    significant,
    used,
)
from lenetgpu.papers.course import IMAGES

if TYPE_CHECKING:
    from rich.console import Console

    from lenetgpu.measure.outcome import Outcome


COMPARE_COLUMNS = (
    Column("candidate", "name", numeric=False),
    Column("check", "check", numeric=False),
    Column("error", "relative_error", short_error),
    Column("flips", "label_flips"),
    Column("median ms", "median_ms", fixed(3)),
    Column("p05 ms", "p05_ms", fixed(3)),
    Column("p95 ms", "p95_ms", fixed(3)),
    Column("p99 ms", "p99_ms", fixed(3)),
    Column("ratio", "ratio", fixed(3)),
    Column("95 % from", "low", fixed(3)),
    Column("to", "high", fixed(3)),
    Column("verdict", "verdict", numeric=False),
    Column("TFLOP/s", "tflops", significant(3)),
    Column("GB/s", "gbs", fixed(1)),
    Column("of the roof", "roofline", percent),
    Column("bound by", "bound", numeric=False),
    Column("images/s", "images_per_second", fixed(0)),
    *LAUNCH_COLUMNS,
    *MACHINE_COLUMNS,
    Column("timed by", "method", numeric=False),
    Column("note", "note", numeric=False),
)
SUITE_COLUMNS = (
    Column("table", "table", numeric=False),
    Column("what", "label", numeric=False),
    Column("stage", "stage", numeric=False),
    Column("variant", "variant", numeric=False),
    Column("check", "check", numeric=False),
    Column("course ms", "report", numeric=True),
    Column("here ms", "median_ms", fixed(3)),
    Column("course/here", "speedup", fixed(1)),
    Column("why", "explanation", numeric=False),
    Column("note", "note", numeric=False),
)
LAYOUT_COLUMNS = (
    Column("table", "table", numeric=False),
    Column("stage", "stage", numeric=False),
    Column("end", "end", numeric=False),
    Column("course before", "report_before", dimensions),
    Column("course after", "report_after", dimensions),
    Column("layout here", "layout", numeric=False),
    Column("after here", "after", dimensions),
)
COUNTED_COLUMNS = (
    Column("figure", "figure", numeric=False),
    Column("stage", "stage", numeric=False),
    Column("variant", "variant", numeric=False),
    Column("loads % there", "report_loads", fixed(1)),
    Column("counted", "loads", fixed(1)),
    Column("stores % there", "report_stores", fixed(1)),
    Column("counted here", "stores", fixed(1)),
    Column("note", "note", numeric=False),
)
LADDER_COLUMNS = (
    Column("stage", "stage", numeric=False),
    Column("the course's step", "step", numeric=False),
    Column("gain there", "report_gain", fixed(2)),
    Column("gain here", "gain", fixed(2)),
    Column("today", "verdict", numeric=False),
    Column("measured", "why", numeric=False),
)


def compare_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The document's candidates as table rows, fastest first, those without times last."""
    rows = []
    again = document["reference_again"]
    for entry in document["candidates"] + ([again] if again else []):
        row = candidate_row(entry)
        if entry["status"] == "wrong":
            stage, tolerance = entry["first_bad_stage"], entry["tolerance"]
            where = f"first bad stage {stage}, tolerance {tolerance:.0e}"
            row["note"] = "; ".join(filter(None, [entry["note"], where]))
        elif entry.get("scaled_from", 0) and entry["scaled_from"] < entry["images"]:
            row["note"] = f"scaled from {entry['scaled_from']} images"
        row["note"] = noted(row)
        rows.append(row)
    return sorted(rows, key=lambda row: row.get("median_ms", float("inf")))


def print_comparison(console: Console, document: dict[str, Any]) -> None:
    """The comparison's table and what its intervals rest on."""
    rows = compare_rows(document)
    device = document["device"]["name"]
    cache = "cold L2" if document["cold_l2"] else "warm L2"
    n = document["images"]
    title = f"{document['what']}, {n:,} images, {device}, {cache}"
    columns = used(COMPARE_COLUMNS, rows)
    console.print(as_rich(columns, rows, title, width=console.width))
    if "note" not in [column.key for column in fitting(columns, rows, console.width)]:
        for row in rows:
            if row["note"]:
                console.print(f"{row['name']}: {row['note']}", highlight=False, soft_wrap=True)
    if document["rounds"]:
        console.print(legend(document["reference"], document["rounds"]), highlight=False,
                      soft_wrap=True)  # fmt: skip
    _print_counters(console, document, document["candidates"])
    if document["interrupted"]:
        console.print("interrupted: what was measured until then", highlight=False)


def _print_counters(
    console: Console, document: dict[str, Any], entries: list[dict[str, Any]]
) -> None:
    """The counters of all rows that have them, each (stage, variant) once."""
    if counters := document.get("counters"):
        found = [entry["counters"] for entry in entries if entry.get("counters")]
        once = {(row["stage"], row["variant"]): row for row in found}
        hardware.print_counters(console, counters, list(once.values()), False)


def suite_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The suite's rows with the report's figure and the check as words."""
    shown = []
    for row in rows:
        words: dict[str, Any] = {"check": STATUS_WORDS[row["status"]]}
        if "report_ms" in row:
            words["report"] = (">" if row["at_least"] else "") + f"{row['report_ms']:,.2f}"
        shown.append(row | words)
    return shown


def suite_notes(document: dict[str, Any]) -> list[str]:
    """What the table leaves out: ratios of another batch than the course's, rows without a GPU."""
    notes, rows, n = [], document["rows"], document["images"]
    if n != IMAGES:
        notes.append(
            f"The course's times are of {IMAGES:,} images, those here of {n:,}: no ratio is made "
            f"of the two, since a stage's time does not grow in step with its images; "
            f"--batch {IMAGES} gives course/here."
        )
    absent = sum(row["status"] == "absent" for row in rows)
    if absent:
        notes.append(f"{absent} of {len(rows)} rows are absent: they need a GPU.")
    return notes


def print_suite(console: Console, document: dict[str, Any]) -> None:
    """The report's tables beside this device's figures."""
    rows = suite_rows(document["rows"])
    title = f"suite course, {document['images']:,} images, {document['device']['name']}"
    console.print(as_rich(used(SUITE_COLUMNS, rows), rows, title, width=console.width))
    for line in suite_notes(document):
        console.print(line, highlight=False, soft_wrap=True)
    if document["ladder"]:
        title = "the course's ladder: time of the step before over time of the step"
        console.print(as_rich(LADDER_COLUMNS, document["ladder"], title, width=console.width))
    console.print(
        as_rich(
            LAYOUT_COLUMNS, document["layouts"], "table 10: activation shapes", width=console.width
        )
    )
    if counted := document.get("counted"):
        title = "global efficiency: figures 4 to 6 by NVVP, and counted from addresses"
        console.print(as_rich(COUNTED_COLUMNS, counted, title, width=console.width))
    _print_counters(console, document, document["rows"])
    if document["interrupted"]:
        console.print("interrupted: what was measured until then", highlight=False)


def _table(document: dict[str, Any]) -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    if document["command"] == "conv":
        return conv_results.table(document)
    more = hardware.nested(document.get("counters"))
    if "rows" in document:
        rows = suite_rows(document["rows"])
        return used((*SUITE_COLUMNS, *more), rows), rows
    rows = compare_rows(document)
    return used((*COMPARE_COLUMNS, *more), rows), rows


def as_markdown(document: dict[str, Any]) -> str:
    """The document's table as Markdown."""
    return tables.as_markdown(*_table(document))


def as_csv(document: dict[str, Any]) -> str:
    """The document's table as CSV."""
    return tables.as_csv(*_table(document))


def print_document(console: Console, document: dict[str, Any]) -> None:
    """A comparison, a suite or a convolution, whichever the document holds."""
    if document["command"] == "conv":
        conv_results.print_conv(console, document)
    elif "rows" in document:
        print_suite(console, document)
    else:
        print_comparison(console, document)


def hint(outcome: Outcome, rows: list[dict[str, Any]]) -> str:
    """One line: where the time goes, how far from the roof, and what to try."""
    heaviest = max(rows, key=lambda row: row["median_ms"])
    words = f"hint: {heaviest['name']} ({heaviest['variant']}) takes {heaviest['share']:.0%}"
    if heaviest["roofline"] is not None:
        words += f" at {heaviest['roofline']:.0%} of the {heaviest['bound']} roof"
    if heaviest["stages"]:
        return words + f"; `lenetgpu compare {heaviest['name']}` ranks its variants"
    return words + "; a plan whose stages agree on device and layout has no such row"
