"""The matrix of stages and families, with times where docs/measured/DEVICE/ has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import course_tables
from measured import CPU, GPU, Document, how_sure, load, there, where

from lenetgpu.network import STAGE_NAMES
from lenetgpu.stages.matrix import FAMILIES, Cell, cells

IMAGES = 10_000
FOLDERS = {"cpu": CPU, "cuda": GPU}
Times = dict[tuple[str, str], float]


def _of_cells(folder: str) -> tuple[list[Document], Times]:
    """What `compare STAGE` took there, and the medians by stage and variant."""
    documents = [
        load(folder, "cells", f"{stage}.json")
        for stage in STAGE_NAMES
        if there(folder, "cells", f"{stage}.json")
    ]
    times = {
        (document["what"], entry["name"]): entry["median_ms"]
        for document in documents
        for entry in document["candidates"]
        if entry["status"] == "right" and entry.get("median_ms")
    }
    return documents, times


def _of_course() -> Times:
    """Medians by stage and variant of `compare --suite course`."""
    rows = course_tables.suite()["rows"]
    return {(row["stage"], row["variant"]): row["median_ms"] for row in rows if "median_ms" in row}


def _rounds(documents: list[Document]) -> list[int]:
    return [len(e["samples_ms"]) for d in documents for e in d["candidates"] if "samples_ms" in e]


def _cell(cell: Cell, own: Times, course: Times) -> str:
    if cell.variant is None:
        return "refused (1)"
    key = cell.stage, cell.variant.full_name
    took = f"{own[key]:,.3f}" if key in own else f"{course[key]:,.3f} (2)" if key in course else ""
    return " ".join(filter(None, (f"`{cell.name}`", "(3)" if cell.copies else "", took)))


def table(device: str) -> str:
    """A row a stage, a column a family; below it why a cell is refused, and whose its times are."""
    found = [cell for cell in cells() if cell.device == device]
    documents, own = _of_cells(FOLDERS[device])
    course = _of_course() if device == "cuda" else {}
    lines = [f"| stage | {' | '.join(FAMILIES)} |", "|---|" + "---|" * len(FAMILIES)]
    for stage in STAGE_NAMES:
        row = [_cell(cell, own, course) for cell in found if cell.stage == stage]
        lines.append(f"| {stage} | {' | '.join(row)} |")
    notes = [f"(1) {c.stage} by {c.family}: {c.refused}." for c in found if c.refused is not None]
    notes += _course_note() if any("(2)" in line for line in lines) else []
    if any(cell.copies for cell in found):
        notes.append("(3) The CPU's variant, with copies around it.")
    return "\n".join([_own_note(documents), "", *lines, "", *(f"- {note}" for note in notes)])


def _own_note(documents: list[Document]) -> str:
    """Whose the times without a mark are."""
    if not documents:
        part = "python scripts/measure.py --only cells"
        return f"Not measured cell by cell on this device yet (`{part}`)."
    return (
        f"{where(*documents)}; ms for {IMAGES:,} images, `lenetgpu compare STAGE`, medians of "
        f"interleaved rounds. {how_sure(_rounds(documents), *documents)}"
    )


def _course_note() -> list[str]:
    """What a time marked (2) is of."""
    suite = course_tables.suite()
    counts = [len(row["samples_ms"]) for row in suite["rows"] if "samples_ms" in row]
    return [
        f"(2) ms for {suite['images']:,} images, `lenetgpu compare --suite course`, a variant "
        f"after the other, `serial` on that machine's CPU without the copies: {where(suite)}. "
        f"{how_sure(counts, suite)}"
    ]


SECTIONS: dict[str, Callable[[], str]] = {
    "matrix-cpu": partial(table, "cpu"),
    "matrix-cuda": partial(table, "cuda"),
}
