"""The matrix of stages and families, as a table for people."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from lenetgpu.stages.matrix import Cell

GREEN, RED, HEADING = "green", "red", "bold"
_GAP = "  "
Line = list[tuple[str, str]]


def matrix_lines(cells: list[Cell], width: int) -> list[Line]:
    """Lines of (text, style): a table a device, rows stages, columns families, then the notes.

    A cell is its variant's name in that family, or `refused`; notes are at most `width` wide.
    """
    lines: list[Line] = []
    for device in dict.fromkeys(cell.device for cell in cells):
        here = [cell for cell in cells if cell.device == device]
        table = _table(device, here)
        if max(sum(len(text) for text, _ in line) for line in table) > width:
            table = _list(device, here)
        lines += [*table, []]
    for note in _notes(cells):
        lines += [[(line, "")] for line in textwrap.wrap(note, width, subsequent_indent="  ")]
    return lines


def _table(device: str, cells: list[Cell]) -> list[Line]:
    families = list(dict.fromkeys(cell.family for cell in cells))
    stages = list(dict.fromkeys(cell.stage for cell in cells))
    by = {(cell.stage, cell.family): cell for cell in cells}
    first = max(map(len, (device, *stages)))
    wide = {f: max(len(f), *(len(_text(by[s, f])) for s in stages)) for f in families}
    lines = [[(_row(device, first, [f"{f:{wide[f]}}" for f in families]), HEADING)]]
    for stage in stages:
        line: Line = [(f"{stage:{first}}", "")]
        for family in families:
            cell = by[stage, family]
            style = GREEN if cell.variant is not None else RED
            line += [(_GAP, ""), (f"{_text(cell):{wide[family]}}", style)]
        line[-1] = (line[-1][0].rstrip(), line[-1][1])
        lines.append(line)
    return lines


def _list(device: str, cells: list[Cell]) -> list[Line]:
    """A cell a line, stage by stage: what a terminal gets that is too narrow for the table."""
    lines: list[Line] = []
    for stage in dict.fromkeys(cell.stage for cell in cells):
        lines.append([(f"{device} {stage}", HEADING)])
        for cell in cells:
            if cell.stage == stage:
                style = GREEN if cell.variant is not None else RED
                lines.append([(f"  {cell.family:9}", ""), (_text(cell), style)])
    return lines


def _row(head: str, first: int, rest: list[str]) -> str:
    return _GAP.join([f"{head:{first}}", *rest]).rstrip()


def _text(cell: Cell) -> str:
    if cell.name is None:
        return "refused"
    return cell.name.partition(".")[2] + ("*" if cell.copies else "")


def _notes(cells: list[Cell]) -> list[str]:
    """What a star means, and a sentence a reason with the cells that it refuses."""
    notes = []
    if any(cell.copies for cell in cells):
        notes.append("* the CPU's, with copies")
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        if cell.refused is not None:
            reasons.setdefault((cell.stage, cell.family, cell.refused), []).append(cell.device)
    for (stage, family, reason), devices in reasons.items():
        notes.append(f"{stage} by {family} on {' and '.join(devices)}: {reason}")
    return notes


def print_matrix(console: Console, cells: list[Cell], machine: str) -> None:
    """The tables, green where a cell runs and red where it is refused, then what runs here."""
    from rich.text import Text

    for line in matrix_lines(cells, console.width):
        console.print(Text.assemble(*line), highlight=False, soft_wrap=True)
    console.print(f"on this machine: {machine}", highlight=False)
