"""The parts of the convnet2 kernels, their tiles and instructions, as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.lab.show import tables
from lenetgpu.lab.show.tables import (
    STATUS_WORDS,
    Column,
    as_rich,
    fixed,
    percent,
    short_error,
    used,
)
from lenetgpu.papers.convnet2_shares import PARTS

if TYPE_CHECKING:
    from rich.console import Console


def between(found: list[float]) -> str:
    """A range of cycles, or the one that it is."""
    low, high = (f"{value:,.1f}" for value in found)
    return low if low == high else f"{low} to {high}"


SHARE_COLUMNS = (
    Column("figure", "figure", numeric=False),
    Column("kernel", "kernel", numeric=False),
    Column("check", "check", numeric=False),
    *(Column(part, f"shares.{part}", percent) for part in PARTS),
    Column("compute, the paper", "paper", percent),
    Column("compute, the model", "model.compute", percent),
    Column("of it waiting for loads", "waits.waiting for loads", percent),
    Column("waiting for sums", "waits.waiting for sums", percent),
    Column("us", "median_us", fixed(2)),
    Column("with clocks", "slowed", fixed(2)),
)
TILE_COLUMNS = (
    Column("figure", "figure", numeric=False),
    Column("threads", "threads", numeric=False),
    Column("images", "images_per_thread"),
    Column("filters", "filters_per_thread"),
    Column("pixels", "cached_pixels"),
    Column("shared B by (1)", "tile_bytes", fixed(0)),
    Column("compiled", "shared_bytes", fixed(0)),
    Column("regs", "registers"),
    Column("blocks (5)", "blocks", fixed(0)),
    Column("at once (4)", "blocks_per_sm"),
    Column("limited by", "limited_by", numeric=False),
    Column("waves", "waves", fixed(2)),
    Column("check", "check", numeric=False),
    Column("error", "relative_error", short_error),
    Column("us", "median_us", fixed(2)),
    Column("over Table 1's", "ratio", fixed(2)),
)
INSTRUCTION_COLUMNS = (
    Column("PTX", "ptx", numeric=False),
    Column("SASS", "sass", numeric=False),
    Column("clocks", "clocks", fixed(1)),
    Column("fig. 9", "figure_9", between),
    Column("fig. 13", "figure_13", between),
    Column("remark", "remark", numeric=False),
)
SAME_PROGRAM = (0.9, 1.1)
"""Times with clocks over times without, between which shares are taken to be the plain kernel's."""
_LABEL = Column("shape", "label", numeric=False)
_NOTE = Column("note", "note", numeric=False)


def of_the_plain_kernel(row: dict[str, Any]) -> bool:
    """Whether the clocked build took about as long as the kernel whose shares its clocks tell."""
    least, most = SAME_PROGRAM
    return bool(least <= row["slowed"] <= most)


def share_rows(case: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a kernel, its status as a word."""
    label = case["label"]
    return [row | {"check": STATUS_WORDS[row["status"]], "label": label} for row in case["kernels"]]


def tile_rows(case: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a tile with its threads as 16x4, fastest first, those without times last."""
    rows = [
        row
        | {"check": STATUS_WORDS[row["status"]], "label": case["label"]}
        | {"threads": f"{row['threads_x']}x{row['threads_y']}"}
        for row in case["tiles"]
    ]
    return sorted(rows, key=lambda row: row["median_us"] or float("inf"))


def _table(document: dict[str, Any]) -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    rows = [row for case in document["cases"] for row in share_rows(case)]
    rows += [row for case in document["cases"] for row in tile_rows(case)]
    columns = dict.fromkeys((_LABEL, *SHARE_COLUMNS, *TILE_COLUMNS, _NOTE))
    return used(tuple(columns), rows), rows


def as_markdown(document: dict[str, Any]) -> str:
    """Kernels, then tiles of every shape, as Markdown."""
    return tables.as_markdown(*_table(document))


def as_csv(document: dict[str, Any]) -> str:
    """The same as CSV."""
    return tables.as_csv(*_table(document))


def print_shares(console: Console, document: dict[str, Any]) -> None:
    """A table of parts and one of tiles a shape, then the instructions' clocks."""
    for case in document["cases"]:
        where = f"{case['label']} ({case['shape']}, batch {case['images']:,})"
        _print(console, SHARE_COLUMNS, share_rows(case), f"{where}: parts of a warp's time")
        _print(console, TILE_COLUMNS, tile_rows(case), f"{where}: tiles of the unrolled kernel")
    rows = document["instructions"]
    title = "clocks until the warp's next instruction, which waits for the result"
    console.print(as_rich(used(INSTRUCTION_COLUMNS, rows), rows, title, width=console.width))
    for what, why in document["not_measured"].items():
        console.print(f"{what}: not measured, {why}", highlight=False, soft_wrap=True)


def _print(
    console: Console, columns: tuple[Column, ...], rows: list[dict[str, Any]], title: str
) -> None:
    shown = [row for row in rows if row["status"] != "refused"]
    console.print(as_rich(used(columns, shown), shown, title, width=console.width))
    for note, names in _notes(rows).items():
        console.print(f"{names}: {note}", highlight=False, soft_wrap=True)


def _notes(rows: list[dict[str, Any]]) -> dict[str, str]:
    """What is said of rows, and of which."""
    found: dict[str, list[str]] = {}
    for row in rows:
        note = row.get("note") or row.get("remark")
        if note:
            word = "refused, " if row["status"] == "refused" else ""
            name = row.get("kernel") or (
                f"{row['threads']}, {row['images_per_thread']} x {row['filters_per_thread']} "
                f"outputs, {row['cached_pixels']} pixels"
            )
            found.setdefault(word + note, []).append(name)
    return {note: ", ".join(names) for note, names in found.items()}
