"""What can be switched, as a table for people."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

MARK = "*"
HEADING, NAME, TEXT = "bold", "", "dim"
_LEAST_BESIDE = 40
_INDENT = 4


def variant_lines(rows: list[dict[str, Any]], machine: str, width: int) -> list[tuple[str, str]]:
    """(style, line) pairs of at most `width` characters: a heading a kind, a paragraph a family.

    What a variant does stands beside its name where there is room for it, else below; where it
    comes from only beside. `machine` says what the marked rows run on.
    """
    names, needs, precisions = (
        max(len(row[key]) for row in rows) for key in ("variant", "needs", "precision")
    )
    lines: list[tuple[str, str]] = []
    for row, before in zip(rows, [None, *rows], strict=False):
        if before is not None and _group(row) != _group(before):
            lines.append((NAME, ""))
        if before is None or row["kind"] != before["kind"]:
            lines.append((HEADING, _heading(row)))
        mark = MARK if row["here"] else " "
        head = (
            f"{mark} {row['variant']:{names}}  {row['needs']:{needs}}  "
            f"{row['precision']:{precisions}}  "
        )
        if width - len(head) >= _LEAST_BESIDE:
            indent, first = " " * len(head), head
            style, text = NAME, _text(row, with_source=True)
        else:
            lines.append((NAME, head.rstrip()))
            indent = first = " " * _INDENT
            style, text = TEXT, _text(row, with_source=False)
        wrapped = textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
        )
        lines += [(style, line) for line in wrapped]
    legend = textwrap.wrap(f"{MARK} runs on this machine: {machine}", width, subsequent_indent="  ")
    return [*lines, (NAME, ""), *((NAME, line) for line in legend)]


def _group(row: dict[str, Any]) -> tuple[str, str]:
    return row["kind"], row["variant"].split(".")[0]


def _heading(row: dict[str, Any]) -> str:
    stages = ", ".join(row["stages"])
    return stages if stages == row["kind"] else f"{row['kind']}: {stages}"


def _text(row: dict[str, Any], with_source: bool) -> str:
    """What a variant does, its other names and, where asked, where it comes from."""
    also = f" Also {', '.join(row['also'])}." if row["also"] else ""
    source = f" ({row['paper']})" if row["paper"] and with_source else ""
    return f"{row['description']}{also}{source}"


def print_variants(console: Console, rows: list[dict[str, Any]], machine: str) -> None:
    """The table, as wide as the console."""
    for style, line in variant_lines(rows, machine, console.width):
        console.print(line, style=style or None, highlight=False, soft_wrap=True)
