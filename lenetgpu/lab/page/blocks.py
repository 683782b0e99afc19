"""What a page is made of: sections of charts, tables and pictures, each with where it is from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import lenetgpu
from lenetgpu.gpu.nvrtc import source_hash
from lenetgpu.lab.render import Table

Document = dict[str, Any]
"""What `documents.checked` keeps of a file; `label` is the file's name."""
SOURCES = Path(lenetgpu.__file__).resolve().parent.parent
_OURS = re.compile(r"lenetgpu(/\w+)+\.(cu|py)")
_NAMED, _DIGITS = 3, 6


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite `spec`; `title` says what is drawn, and stands above it.

    A `wide` one stands alone, others side by side where there is room.
    """

    title: str
    spec: dict[str, Any]
    wide: bool = False

    @property
    def empty(self) -> bool:
        """Whether it has nothing to draw: an axis without a value has no ends."""
        layers = [self.spec, *self.spec.get("layer", ())]
        return not any(layer["data"]["values"] for layer in layers if "data" in layer)


@dataclass(frozen=True)
class Tile:
    """One figure in large: its value, what it is, and where it is from."""

    value: str
    what: str
    source: str


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    values: dict[str, str]


@dataclass(frozen=True)
class Drawing:
    """Markup of our own: the picture of the stages, digits of another page's template."""

    title: str
    markup: Any


Part = Chart | Table | list[Tile] | Facts | Drawing


@dataclass(frozen=True)
class Block:
    """Parts that one line tells the origin of; several charts stand side by side."""

    parts: Sequence[Part]
    source: str = ""
    note: str = ""


@dataclass
class Section:
    """A heading with what stands below it; left out where there are no blocks."""

    anchor: str
    title: str
    lead: str
    blocks: list[Block] = field(default_factory=list)


def of_command(documents: Sequence[Document], *commands: str) -> list[Document]:
    """The documents of these commands, in the order that they were given."""
    return [document for document in documents if document["command"] in commands]


def short(value: float, digits: int = _DIGITS) -> str:
    """A number in a few digits, as 0.0661 or 10,000."""
    return f"{value:,.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def device_name(document: dict[str, Any]) -> str:
    """The device as a table names it, a CPU with its cores."""
    device = document["device"]
    cores = device.get("cores") if device["kind"] == "cpu" else None
    return str(device["name"]) + (f", {cores} cores" if cores else "")


def short_commit(commit: str | None) -> str:
    """A commit's first digits, with what marks a changed checkout behind them."""
    if not commit:
        return "commit not recorded"
    return re.sub("^([0-9a-f]{10})[0-9a-f]*", r"\1", commit)


def of_what(document: dict[str, Any]) -> str:
    """Whose weights a run had, and which images."""
    weights = document.get("weights") or "weights not recorded"
    return f"{weights}, {document.get('data') or 'data not recorded'}"


def either(words: Iterable[str]) -> str:
    """The words, each once."""
    return ", ".join(dict.fromkeys(words))


def where(*documents: dict[str, Any]) -> str:
    """Device, date and commit: what a table's line begins with."""
    names = either(device_name(document) for document in documents)
    dates = sorted({document["date"] or "undated" for document in documents})
    date = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    commits = [short_commit(document.get("commit")) for document in documents]
    commit = either(c if "not recorded" in c else f"commit {c}" for c in commits)
    drivers = either(f"driver {d['driver']}" for d in documents if d.get("driver"))
    return ", ".join(filter(None, [names, date, commit, drivers]))


@cache
def _hash_of(name: str) -> str | None:
    """The hash that the package's file has today, None where it has no such file."""
    path = SOURCES / name
    return source_hash(path) if _OURS.fullmatch(name) and path.is_file() else None


def changed(document: dict[str, Any]) -> list[str]:
    """The sources of `document` that are no longer what it ran, deleted ones too."""
    then = document.get("kernels") or {}
    return sorted(name for name, digest in then.items() if _hash_of(name) != digest)


def _since(documents: Sequence[dict[str, Any]]) -> str:
    if not any(document.get("kernels") for document in documents):
        return "kernels not recorded"
    names = sorted({name for document in documents for name in changed(document)})
    if not names:
        return "kernels as they are in the sources"
    shown = ", ".join(name.removeprefix("lenetgpu/stages/") for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"since then changed: {shown}{more}"


def samples(rows: Iterable[dict[str, Any]]) -> str:
    """How many samples rows have, "" where they do not say."""
    counts = [len(row["samples_ms"]) for row in rows if row.get("samples_ms")]
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    found = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{found} sample{'s' * (high > 1)} a row"


def source(*documents: dict[str, Any], how: str = "") -> str:
    """The line under a chart or table: device, date, commit, driver, files and what changed."""
    files = [document["label"] for document in documents]
    named = either(files) if len(files) < 4 else f"{len(files)} files"
    since = "" if all(document.get("fresh") for document in documents) else _since(documents)
    quick = "a quick run, not to be quoted" if any(d.get("quick") for d in documents) else ""
    stopped = "interrupted" if any(d.get("interrupted") for d in documents) else ""
    return "; ".join(filter(None, [where(*documents), how, named, since, quick, stopped]))
