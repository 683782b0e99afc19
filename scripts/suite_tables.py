"""`best.fp32` beside cuDNN, suite by suite and GPU by GPU: docs/convolutions.md's summary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from choice_tables import GPUS
from conv_tables import SHIPS, rounds
from measured import Document, how_sure, load, there, where

from lenetgpu.lab.show.conv_document import geometric_mean
from lenetgpu.measure.torch_peer import NAMES
from lenetgpu.papers.shapes import SUITES

NETWORKS = ("resnet50", "vgg16", "convnet2")
"""Suites whose convolutions are also summed up together, of IMAGES each."""
IMAGES = "64"
AGAIN = {"pascal-multi-best": "pascal-multi again", "convnet2-64": "convnet2 again"}
"""Suites that were measured once more, by the name of their file."""


@dataclass(frozen=True)
class Row:
    """A case by `best.fp32`: cuDNN's time over its own; the fastest of ours and its error.

    `off` is its time over that of the fastest that erred no more than cuDNN, `error` its root mean
    square over cuDNN's, on the same images; None where that was not measured.
    """

    ratio: float
    off: float | None
    error: float | None


def _rms(entry: dict[str, Any]) -> float | None:
    found = entry.get("same_images")
    return None if found is None else float(found["rms"])


def _timed(case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in case["candidates"] if entry.get("median_ms")}


def row_of(case: dict[str, Any]) -> Row | None:
    """The row of a case, None where one of both has no time."""
    entries = _timed(case)
    if SHIPS not in entries or NAMES["cuda"] not in entries:
        return None
    best, peer = entries.pop(SHIPS), entries.pop(NAMES["cuda"])
    ratio, theirs, own = peer["median_ms"] / best["median_ms"], _rms(peer), _rms(best)
    if theirs is None or own is None:
        return Row(ratio, None, None)
    errors = {name: _rms(entry) for name, entry in entries.items()}
    times = [
        entries[name]["median_ms"]
        for name, error in errors.items()
        if error is not None and error <= theirs
    ]
    off = best["median_ms"] / min(times) if times else None
    return Row(ratio, off, own / theirs)


def _rows(document: Document) -> list[Row]:
    return [row for row in map(row_of, document["cases"]) if row is not None]


def _line(name: str, images: str, rows: list[Row]) -> str:
    ratios = [row.ratio for row in rows]
    offs = [row.off for row in rows if row.off is not None]
    errors = [row.error for row in rows if row.error is not None]
    off = f"{max(offs):.2f}x" if offs else "-"
    error = f"{max(errors):.2f} ({sum(e <= 1 for e in errors)} of {len(errors)})" if errors else "-"
    mean = f"**{geometric_mean(ratios):.2f}x**"
    return f"| {name} | {images} | {len(rows)} | {mean} | {min(ratios):.2f}x | {off} | {error} |"


def _documents(gpu: str) -> Iterator[tuple[str, Document]]:
    for name in SUITES:
        if there(gpu, "conv", f"{name}.json"):
            yield name, load(gpu, "conv", f"{name}.json")
    for name, words in AGAIN.items():
        if there(gpu, "again", f"{name}.json"):
            yield words, load(gpu, "again", f"{name}.json")


def _images(document: Document) -> str:
    return ", ".join(sorted({f"{case['images']:,}" for case in document["cases"]}))


def _together(found: dict[str, Document]) -> list[str]:
    """The line of the networks' convolutions together, where all were measured of IMAGES images."""
    alike = {d["suite"]: d for d in found.values() if _images(d) == IMAGES}
    held = [alike[name] for name in NETWORKS if name in alike]
    if len(held) < len(NETWORKS):
        return []
    rows = [row for document in held for row in _rows(document)]
    return [_line(", ".join(NETWORKS), IMAGES, rows)]


def suites() -> str:
    """A table a GPU, a row a suite."""
    parts = []
    for gpu in GPUS:
        found = dict(_documents(gpu))
        lines = [
            _line(name, _images(document), rows)
            for name, document in found.items()
            if (rows := _rows(document))
        ]
        if not lines:
            continue
        documents = list(found.values())
        peers = ", ".join(dict.fromkeys(document["peer"] for document in documents))
        counts = [n for document in documents for n in rounds(document)]
        parts += [
            f"{where(*documents)}; {peers}; {how_sure(counts, *documents, of='a shape')}",
            "",
            f"| suite | images | shapes | `{SHIPS}` over cuDNN's best plan, geometric mean | least "
            "| its time over the fastest of ours, at most "
            "| its rms error over cuDNN's, at most (how often no more) |",
            "|---|---:|---:|---:|---:|---:|---:|",
            *lines,
            *_together(found),
            "",
        ]
    return "\n".join(parts).rstrip()


BLOCKS = {"suites": suites}
