"""Tables from host memory to labels and of fresh processes, beside their peers.

From docs/measured/DEVICE/end_to_end.json, one.json and cold.json, where they were taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beside import OURS
from measured import CPU, GPU, Document, how_sure, load, there, where
from peer_tables import absent, quick

US = 1e3


def _taken(write: Callable[[Document], str], file: str, part: str, *folders: str) -> str:
    """What `write` says of each folder's file, or how to take one."""
    found = [write(load(folder, file)) for folder in folders if there(folder, file)]
    return "\n\n".join(found) or f"Not measured yet; `scripts/measure.py --only {part}` does."


def _begun(document: Document, what: str, sure: str) -> str:
    with_torch = f"PyTorch {document['torch']}; " if document.get("torch") else ""
    return f"{quick(document)}{where(document)}; {with_torch}{what}. {sure}"


def _counts(document: Document) -> list[int]:
    return [len(row["samples_ms"]) for row in document["rows"]]


def _faster(row: dict[str, Any]) -> str:
    return f"{row['times_faster']:.2f}x {row['peer']}" if "times_faster" in row else "-"


def _spread(row: dict[str, Any], digits: int) -> str:
    return f"{row['p05_ms']:,.{digits}f} to {row['p95_ms']:,.{digits}f}"


def _streamed(row: dict[str, Any], share: bool) -> str:
    how = f"{row['streams']} x {row['chunk']:,}" if "chunk" in row else "-"
    how = "zero-copy" if row.get("zero_copy") else how
    said = f"{row['predicted_ms']:.3f}" if "predicted_ms" in row else "-"
    over = f"{1 / row['over_copy']:.1%}" if share else f"{row['over_copy']:.2f}x"
    return (
        f"| {row['name']} | **{row['median_ms']:,.4f}** | {_spread(row, 4)} | {over} | {how} "
        f"| {said} | {row['flips']} | {_faster(row)} |"
    )


def _streamed_table(rows: list[dict[str, Any]], share: bool) -> list[str]:
    over = "share of the bus" if share else "over the bare copy of the same round"
    return [
        f"| contestant | ms | 5th to 95th percentile | {over} | streams x chunk "
        "| the model's ms | labels unlike float64's | times as fast as the best peer |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(_streamed(row, share) for row in rows),
    ]


def _end_to_end(document: Document) -> str:
    many = document["many"]
    what = (
        f"{document['images']:,} digits ({document['data']}), uint8, page-locked, to labels in "
        "host memory, streams and chunks as the model chooses them, medians of interleaved rounds; "
        "ours are warm passes of the library, replayed as one CUDA graph, where `infer` runs once "
        "and replays nothing"
    )
    begun = _begun(document, what, how_sure(_counts(document), document))
    more = [len(row["samples_ms"]) for row in many["rows"]]
    samples = f"{min(more)} samples a row"
    return "\n".join(
        [
            *(begun, "", *_streamed_table(document["rows"], False), ""),
            f"{many['images']:,} images from host memory, the same run, {samples}:",
            *("", *_streamed_table(many["rows"], True), "", absent(document)),
        ]
    )


def _one(document: Document) -> str:
    calls = min(row["calls"] for row in document["rows"])
    what = (
        f"one digit of {document['data']} at a time, host to label, {calls:,} calls or more each, "
        "in interleaved rounds behind one call that is not timed, every label looked at"
    )
    lines = [
        _begun(document, what, how_sure(_counts(document), document, of="of a round's calls")),
        "",
        "| way | median us | 99th percentile us | longest us | labels unlike float64's "
        "| times as fast as the best peer |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in sorted(document["rows"], key=lambda row: row["call_median_ms"]):
        lines.append(
            f"| {row['name']} | **{US * row['call_median_ms']:.1f}** "
            f"| {US * row['call_p99_ms']:.1f} | {US * row['call_worst_ms']:,.0f} "
            f"| {row['flips']} of {row['judged']:,} | {_faster(row)} |"
        )
    return "\n".join([*lines, "", absent(document)])


def _cold(document: Document) -> str:
    spent = ", ".join(f"{name} {ms:,.0f}" for name, ms in document["phases_ms"].items() if ms >= 1)
    what = (
        f"fresh processes from exec to exit, {document['data']}, kernels and bytecode cached "
        "before, medians of interleaved rounds"
    )
    ours = next(row["median_ms"] for row in document["rows"] if row["maker"] == OURS)
    lines = [
        _begun(document, what, how_sure(_counts(document), document)),
        "",
        "| process | wall ms | 5th to 95th percentile | processor ms | over ours |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | **{row['median_ms']:,.0f}** | {_spread(row, 0)} "
        f"| {row['processor_ms']:,.0f} | {row['median_ms'] / ours:.2f}x |"
        for row in document["rows"]
    ]
    said = f"A process of ours says: {spent} ms. {absent(document)}"
    return "\n".join([*lines, "", said])


SECTIONS = {
    "end-to-end": lambda: _taken(_end_to_end, "end_to_end.json", "end-to-end", GPU),
    "one": lambda: _taken(_one, "one.json", "one", GPU),
    "cold": lambda: _taken(_cold, "cold.json", "cold", GPU, CPU),
}
