"""Tables of the course's figures beside a GPU of today, from docs/measured/DEVICE/course.json."""

from __future__ import annotations

from typing import Any

from measured import GPU, Document, how_sure, load, where

from lenetgpu.papers.course_counted import counted_rows
from lenetgpu.papers.course_ladder import step_rows
from lenetgpu.plan import canonical


def suite() -> Document:
    """What `compare --suite course --json` wrote."""
    return load(GPU, "course.json")


def _header(document: Document) -> str:
    counts = [len(row["samples_ms"]) for row in document["rows"] if "samples_ms" in row]
    return (
        f"{where(document)}; {document['images']:,} images; every row checked against float64 "
        f"before it was timed. {how_sure(counts, document)}"
    )


def _note(row: dict[str, Any]) -> str:
    """What explains a row; a serial one ran on that machine's CPU, by name where it was noted."""
    words = [row.get("explanation"), row.get("note")]
    if row["variant"].startswith("serial") and "CPU" not in (row.get("note") or ""):
        words.append("on that machine's CPU, its name not recorded")
    return "; ".join(filter(None, words))


def _variant(name: str) -> str:
    """A row's variant; of a plan, its name of today."""
    word, _, plan = name.partition(" ")
    return f"plan {canonical(plan)}" if word == "plan" else name


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.1f}x"


def _without(row: dict[str, Any]) -> str:
    """Why the course has no figure for a row."""
    if row.get("after"):
        return "after the report"
    untimed = row["table"].startswith(("2.2.2", "3.1", "3.2.2", "3.4", "3.5"))
    return "no figure" if untimed and row["table"] != "3.4.1" else "could not run or left unbuilt"


def course_table() -> str:
    """The course's figures beside this device's, each (stage, variant) once."""
    document = suite()
    lines = [
        _header(document),
        "",
        "| course | what | stage | variant | course, ms | here, ms | ratio | measured |",
        "|---|---|---|---|---:|---:|---:|---|",
    ]
    seen = set()
    for row in document["rows"]:
        key = (row["stage"], row["variant"])
        if key in seen or "median_ms" not in row:
            continue
        seen.add(key)
        figure = row.get("report_ms")
        bound = ">" if row.get("at_least") else ""
        ratio = bound + _times(row["speedup"]) if "speedup" in row else "-"
        there = _without(row) if figure is None else f"{bound}{figure:,.1f}"
        where = f"table {row['table']}" if row["table"][0].isdigit() and figure else row["table"]
        lines.append(
            f"| {where} | {row['label']} | {row['stage']} | `{_variant(row['variant'])}` | {there} "
            f"| {row['median_ms']:,.3f} | {ratio} | {_note(row)} |"
        )
    return "\n".join(lines)


def _gain(step: dict[str, Any]) -> str:
    """The course's gain, where it gives one."""
    return f"{step['report_gain']:.2f}x" if step["report_gain"] else "no figure"


def steps_table() -> str:
    """Which of the course's steps still gain something."""
    document = suite()
    lines = [
        _header(document),
        "",
        "| stage | step | gain there | gain here | today |",
        "|---|---|---:|---:|---|",
    ]
    lines += [
        f"| {step['stage']} | {step['step']} | {_gain(step)} | {step['gain']:.2f}x "
        f"| {step['verdict']} |"
        for step in step_rows(document["rows"])
    ]
    return "\n".join(lines)


def counted_table() -> str:
    """The efficiencies of figures 4 to 6 beside those counted from our kernels' addresses."""
    lines = [
        "| figure | stage | variant | loads, NVVP | counted | stores, NVVP | counted |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    notes = []
    for row in counted_rows():
        if row["note"]:
            notes.append(f"- Figure {row['figure']}, {row['stage']}: {row['note']}.")
        lines.append(
            f"| {row['figure']} | {row['stage']} | `{row['variant']}` "
            f"| {row['report_loads']:.1f} % | {row['loads']:.1f} % "
            f"| {row['report_stores']:.1f} % | {row['stores']:.1f} % |"
        )
    return "\n".join([*lines, "", *notes])


SECTIONS = {
    "course-steps": steps_table,
    "course": course_table,
    "course-counted": counted_table,
}
