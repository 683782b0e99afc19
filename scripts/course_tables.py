"""Tables of the course's figures beside a GPU of today, from docs/measured/lab-*."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lenetgpu.plan import canonical

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "docs" / "measured" / "lab-nvidia-h200" / "suite-course.json"


def suite() -> dict[str, Any]:
    """What `compare --suite course --json` wrote."""
    document: dict[str, Any] = json.loads(SUITE.read_text())
    return document


def _header(document: dict[str, Any]) -> str:
    return (
        f"{document['device']['name']}, {document['date']}, {document['images']:,} images; "
        "every row checked against float64 before it was timed."
    )


def _variant(name: str) -> str:
    """A row's variant; of a plan, its name of today."""
    word, _, plan = name.partition(" ")
    return f"plan {canonical(plan)}" if word == "plan" else name


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.1f}x"


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
        there = "could not run or left unbuilt" if figure is None else f"{bound}{figure:,.1f}"
        why = row.get("explanation") or row.get("note") or ""
        where = f"table {row['table']}" if row["table"][0].isdigit() and figure else row["table"]
        lines.append(
            f"| {where} | {row['label']} | {row['stage']} | `{_variant(row['variant'])}` | {there} "
            f"| {row['median_ms']:,.3f} | {ratio} | {why} |"
        )
    return "\n".join(lines)


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
        f"| {step['stage']} | {step['step']} | {step['report_gain']:.2f}x | {step['gain']:.2f}x "
        f"| {step['verdict']} |"
        for step in document["ladder"]
    ]
    return "\n".join(lines)


SECTIONS = {"course-steps": steps_table, "course": course_table}
