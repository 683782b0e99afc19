"""Building blocks of a page: sections of charts, tables and pictures, each with its origin."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import lenetgpu
from lenetgpu.gpu.nvrtc import source_hash
from lenetgpu.lab.tables import Table

Document = dict[str, Any]  # a file as `documents.checked` returns it; `label` is the file's name
SOURCES = Path(lenetgpu.__file__).resolve().parent.parent
_OURS = re.compile(r"lenetgpu(/\w+)+\.(cu|py)")
_NAMED = 3


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite `spec` with a title; a `wide` chart has a row of its own."""

    title: str
    spec: dict[str, Any]
    wide: bool = False

    @property
    def empty(self) -> bool:
        """True if the chart has nothing to draw."""
        layers = [self.spec, *self.spec.get("layer", ())]
        return not any(layer["data"]["values"] for layer in layers if "data" in layer)


@dataclass(frozen=True)
class Tile:
    """One figure in large print: its value, its caption, and its origin."""

    value: str
    what: str
    source: str


@dataclass(frozen=True)
class Drawing:
    """Markup made by lenetgpu: the picture of the stages, or digits from another template."""

    title: str
    markup: Any


Part = Chart | Table | list[Tile] | dict[str, str] | Drawing  # a dict: names with values


@dataclass(frozen=True)
class Block:
    """Parts that share one line of origin; several charts stand side by side."""

    parts: Sequence[Part]
    source: str = ""
    note: str = ""


@dataclass
class Section:
    """A heading and its blocks; left out if there are no blocks."""

    anchor: str
    title: str
    lead: str
    blocks: list[Block] = field(default_factory=list)


def of_command(documents: Sequence[Document], *commands: str) -> list[Document]:
    """Return the documents of these commands, in the order given."""
    return [document for document in documents if document["command"] in commands]


def short(value: float) -> str:
    """Return a number rounded to three digits, as 0.0661 or 10,000."""
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def device_name(document: dict[str, Any]) -> str:
    """Return the device name for a table; a CPU's includes its core count."""
    device = document["device"]
    cores = device.get("cores") if device["kind"] == "cpu" else None
    return str(device["name"]) + (f", {cores} cores" if cores else "")


def short_commit(commit: str | None) -> str:
    """Return the first digits of a commit, with the marker of a modified checkout."""
    if not commit:
        return "commit not recorded"
    return re.sub("^([0-9a-f]{10})[0-9a-f]*", r"\1", commit)


def of_what(document: dict[str, Any]) -> str:
    """Return the names of a run's weights and images."""
    return ", ".join(document.get(key) or f"{key} not recorded" for key in ("weights", "data"))


def either(words: Iterable[str]) -> str:
    """Return the distinct words, joined."""
    return ", ".join(dict.fromkeys(words))


def where(*documents: dict[str, Any]) -> str:
    """Return device, date and commit, the start of a line of origin."""
    names = either(device_name(document) for document in documents)
    dates = sorted({document["date"] or "undated" for document in documents})
    date = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    commits = [short_commit(document.get("commit")) for document in documents]
    commit = either(c if "not recorded" in c else f"commit {c}" for c in commits)
    drivers = either(f"driver {d['driver']}" for d in documents if d.get("driver"))
    return ", ".join(filter(None, [names, date, commit, drivers]))


@cache
def _hash_of(name: str) -> str | None:
    path = SOURCES / name
    return source_hash(path) if _OURS.fullmatch(name) and path.is_file() else None


def changed(document: dict[str, Any]) -> list[str]:
    """Return the sources of `document` that have changed or been deleted since it was measured."""
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
    """Return the number of samples in the rows, or "" if they do not record it."""
    counts = [len(row["samples_ms"]) for row in rows if row.get("samples_ms")]
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    number = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{number} sample{'s' * (high > 1)} a row"


def source(*documents: dict[str, Any], how: str = "") -> str:
    """Return the line of origin: device, date, commit, driver, files, and changes since."""
    files = [document["label"] for document in documents]
    names = either(files) if len(files) < 4 else f"{len(files)} files"
    since = "" if all(document.get("fresh") for document in documents) else _since(documents)
    quick = "a quick run, not to be quoted" if any(d.get("quick") for d in documents) else ""
    stopped = "interrupted" if any(d.get("interrupted") for d in documents) else ""
    return "; ".join(filter(None, [where(*documents), how, names, since, quick, stopped]))
