"""Rows of dictionaries as tables: for a terminal, as Markdown, as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import one_line
from lenetgpu.measure.statistics import LEAST, MARGIN, SYSTEMATIC

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Column:
    """A heading, the key of the value, and how the value is written."""

    heading: str
    key: str
    write: Callable[[Any], str] = str
    numeric: bool = True

    def value(self, row: dict[str, Any]) -> Any:
        """What `row` holds under the key, "machine.power_w" within an object; None: nothing."""
        found: Any = row
        for part in self.key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def cell(self, row: dict[str, Any]) -> str:
        """The value as text, safe to print; nothing where there is none."""
        value = self.value(row)
        return "" if value is None else one_line(self.write(value))


def fixed(digits: int) -> Callable[[float], str]:
    """A float with `digits` decimals, and with more where that would leave only zeros."""

    def write(value: float) -> str:
        return f"{value:,.{digits}f}" if not 0 < abs(value) < 0.5 * 10**-digits else f"{value:.1e}"

    return write


def significant(digits: int) -> Callable[[float], str]:
    """A float with `digits` digits that count, whatever its size, and none lost of a large one."""

    def write(value: float) -> str:
        size = math.floor(math.log10(abs(value))) if value else 0
        return f"{value:,.{max(0, digits - 1 - size)}f}"

    return write


def percent(value: float) -> str:
    """A share as a percentage."""
    return f"{value:.1%}"


def dimensions(value: list[int]) -> str:
    """A grid or block, without trailing ones."""
    kept = list(value)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(map(str, kept))


def words(value: list[str]) -> str:
    """Words in one cell, "no" for none."""
    return ", ".join(value) or "no"


def _joined(value: list[Any]) -> str:
    """A list in a cell of CSV: extents as 32x8, words as in a table."""
    return words(value) if not value or isinstance(value[0], str) else "x".join(map(str, value))


def _unrounded(value: Any) -> Any:
    """A value in a cell of CSV: a number as it is, text as a terminal may have it."""
    if isinstance(value, list):
        return one_line(_joined(value))
    return "" if value is None else one_line(value) if isinstance(value, str) else value


def short_error(value: float) -> str:
    """An error in one digit after the point."""
    return f"{value:.1e}"


_WRAPPED_LEAST = 16
_FIRST_TO_GO = (
    "command", "machine.temperature_c", "machine.power_w", "shared_bytes", "local_bytes",
    "registers", "grid", "block", "occupancy", "limited_by", "blocks_per_sm", "waves", "p05_ms",
    "p95_ms", "p99_ms", "p05_us", "p95_us", "p99_us", "method", "layout", "bound", "gbs", "low",
    "high", "label_flips", "machine.sm_mhz", "precision", "machine.energy_uj_per_image", "tflops",
    "share", "roofline", "gflop", "images", "reference_us", "note", "explanation",
    "machine.throttle", "relative_error",
)  # fmt: skip
_LAST_TO_GO = ("speedup", "verdict", "table", "section", "label", "paper", "images_per_second")
"""What goes where not even folded words let the rest fit; a name, its check and its time stay."""
_FOLDED_LEAST = 9
_WRAPPED = ("explanation", "why", "note", "label", "found", "not_taken")
STATUS_WORDS = {
    "right": "PASS", "wrong": "WRONG", "failed": "FAILED", "skipped": "skipped",
    "refused": "refused", "absent": "absent", "waiting": "not checked",
}  # fmt: skip
STAGE_COLUMNS = (
    Column("stage", "name", numeric=False),
    Column("variant", "variant", numeric=False),
    Column("median ms", "median_ms", fixed(3)),
    Column("p05 ms", "p05_ms", fixed(3)),
    Column("p95 ms", "p95_ms", fixed(3)),
    Column("p99 ms", "p99_ms", fixed(3)),
    Column("of the sum", "share", percent),
    Column("TFLOP/s", "tflops", significant(3)),
    Column("GB/s", "gbs", fixed(1)),
    Column("of the roof", "roofline", percent),
    Column("bound by", "bound", numeric=False),
)
LAUNCH_COLUMNS = (
    Column("grid", "grid", dimensions),
    Column("block", "block", dimensions),
    Column("regs/thread", "registers"),
    Column("shared B/block", "shared_bytes"),
    Column("local B/thread", "local_bytes"),
    Column("occup.", "occupancy", percent),
    Column("blocks/SM", "blocks_per_sm"),
    Column("limited by", "limited_by", numeric=False),
    Column("waves", "waves", fixed(2)),
)
MACHINE_COLUMNS = (
    Column("SM MHz", "machine.sm_mhz", fixed(0)),
    Column("W", "machine.power_w", fixed(0)),
    Column("C", "machine.temperature_c", fixed(0)),
    Column("throttled", "machine.throttle", words, numeric=False),
    Column("uJ/image", "machine.energy_uj_per_image", fixed(2)),
)


def candidate_row(entry: dict[str, Any]) -> dict[str, Any]:
    """A candidate of a document with its status as a word and its ratio's interval spread out."""
    row = dict(entry) | {"check": STATUS_WORDS[entry["status"]]}
    ratio = entry.get("ratio")
    if ratio is not None:
        row |= {"ratio": ratio["median"], "low": ratio["low"], "high": ratio["high"]}
    return row


def noted(row: dict[str, Any]) -> str | None:
    """A row's note and the warnings of its samples, None of neither."""
    return "; ".join(filter(None, [row.get("note"), *row.get("warnings", ())])) or None


def legend(reference: str, rounds: int) -> str:
    """What the ratios, intervals and verdicts of a comparison rest on."""
    if rounds < LEAST:
        return f"ratio: time over {reference}, of single samples: no verdict"
    return (
        f"ratio: time over {reference}'s of the same round, median of {rounds:,} rounds (not one "
        "median over the other). The interval is where a second run's ratio lies 19 times of 20, "
        f"{SYSTEMATIC:.0%} on either side of it for what differs between processes. same: all of "
        f"it is within {MARGIN:.0%} of 1; undecided: it holds 1 and reaches further, "
        f"or one of the two has fewer than {LEAST} samples."
    )


def used(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> tuple[Column, ...]:
    """The columns in which some row has a value."""
    return tuple(c for c in columns if any(c.value(row) is not None for row in rows))


def _needed(column: Column, rows: list[dict[str, Any]], fold: bool = False) -> int:
    """Characters that `column` takes, with the spaces after it; `fold`: its words in many lines."""
    widest = max((len(column.cell(row)) for row in rows), default=0)
    if column.key in _WRAPPED:
        widest = min(widest, _WRAPPED_LEAST)
    if fold and not column.numeric:
        return min(max(len(column.heading), widest), _FOLDED_LEAST) + 2
    return max(len(column.heading), widest) + 2


def fitting(
    columns: tuple[Column, ...], rows: list[dict[str, Any]], width: int
) -> tuple[Column, ...]:
    """The columns that `width` characters hold, those of _FIRST_TO_GO left out in that order.

    Where that is not enough words are folded, and those of _LAST_TO_GO go, then the last ones.
    """
    kept = list(columns)
    for key in _FIRST_TO_GO:
        if _hold(kept, rows, width):
            break
        gone = ("low", "high") if key == "low" else (key,)  # an interval with one end misleads
        kept = [column for column in kept if column.key not in gone]
    for key in _LAST_TO_GO:
        if _hold(kept, rows, width, fold=True):
            break
        kept = [column for column in kept if column.key != key]
    while len(kept) > 2 and not _hold(kept, rows, width, fold=True):
        kept.pop()
    return tuple(kept)


def _hold(
    columns: Sequence[Column], rows: list[dict[str, Any]], width: int, fold: bool = False
) -> bool:
    """Whether `width` characters hold the columns, words folded where asked."""
    return sum(_needed(column, rows, fold) for column in columns) + 1 <= width


def as_rich(
    columns: tuple[Column, ...], rows: list[dict[str, Any]], title: str = "", width: int = 250
) -> Table:
    """A table for a terminal of `width` characters; says which columns that leaves out."""
    from rich import box
    from rich.table import Table

    shown = fitting(columns, rows, width)
    fold = not _hold(shown, rows, width)
    left_out = [column.heading for column in columns if column not in shown]
    table = Table(
        title=one_line(title) or None,
        title_justify="left",
        caption=f"not shown for width: {', '.join(left_out)}" if left_out else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    wide = _widths(shown, rows, width) if fold else {}
    for column in shown:
        table.add_column(
            column.heading,
            justify="right" if column.numeric else "left",
            no_wrap=column.key not in (*wide, *_WRAPPED),
            min_width=wide.get(column.key),
            overflow="fold",
        )
    for row in rows:
        cells = [(column.cell(row), wide.get(column.key)) for column in shown]
        table.add_row(*(_in_lines(text, most) if most else text for text, most in cells))
    return table


def _widths(columns: Sequence[Column], rows: list[dict[str, Any]], width: int) -> dict[str, int]:
    """Characters for each column of words in a table of `width`: the widest give up theirs."""
    numbers = sum(_needed(column, rows) for column in columns if column.numeric)
    texts = [column for column in columns if not column.numeric]
    found = {c.key: max(len(c.heading), *(len(c.cell(row)) for row in rows)) for c in texts}
    room = width - 1 - numbers - 2 * len(texts)
    while sum(found.values()) > room and max(found.values()) > _FOLDED_LEAST:
        found[max(found, key=lambda key: found[key])] -= 1
    return found


def _in_lines(text: str, most: int) -> str:
    """`text` in lines of `most` characters, a name broken behind one of its joints."""
    lines = [""]
    for part in re.split(r"(?<=[\s+_])|(?<=\.)(?=[a-z])", text):
        if len(lines[-1]) + len(part.rstrip()) > most:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines if line)


def as_markdown(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    lines = [
        "| " + " | ".join(column.heading for column in columns) + " |",
        "|" + "|".join("---:" if column.numeric else "---" for column in columns) + "|",
    ]
    lines += ["| " + " | ".join(column.cell(row) for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def as_csv(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> str:
    """CSV with the keys as heads and unrounded values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.key for column in columns])
    for row in rows:
        writer.writerow([_unrounded(column.value(row)) for column in columns])
    return text.getvalue()
