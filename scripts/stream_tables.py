"""The table of streams and chunks, from docs/measured/DEVICE/streams.json."""

from __future__ import annotations

from typing import Any

from measured import GPU, Document, how_sure, load, there, where

from lenetgpu.net.streaming.schedule import EVEN

FILE = "streams.json"
BARE, KERNELS, AUTO, SCHEDULE = "bare copy", "kernels", "auto", "schedule"
ZERO_COPY = "zero-copy"


def sweeps(document: Document) -> list[dict[str, Any]]:
    """Each plan and type with its ways by name, its grid, the best of it and all in one chunk."""
    found = []
    for sweep in document["sweeps"]:
        ways = {row["way"]: row for row in sweep["rows"]}
        grid = [row for row in sweep["rows"] if row["way"] == SCHEDULE]
        best = min(grid, key=lambda row: float(row["median_ms"]))
        single = [row for row in grid if row["streams"] == 1]
        found.append(
            sweep | {"ways": ways, "best": best, "one": max(single, key=lambda row: row["chunk"])}
        )
    return found


def _schedule(row: dict[str, Any]) -> str:
    taper = row.get("taper", EVEN)
    by = max(taper, 1 / taper)
    if row.get("zero_copy"):
        return f"{row['median_ms']:.3f} (zero-copy)"
    shape = "" if taper == EVEN else f", {'rising' if taper > EVEN else 'falling'} by {by:.0f}"
    return f"{row['median_ms']:.3f} ({row['streams']} x {row['chunk']:,}{shape})"


def _cells(sweep: dict[str, Any]) -> list[str]:
    ways, one, best = sweep["ways"], sweep["one"], sweep["best"]
    copy, kernels = ways[BARE]["median_ms"], ways.get(KERNELS, {}).get("median_ms")
    auto = ways[AUTO]
    hidden = "-" if kernels is None else f"{min(copy, kernels) / (copy + kernels):.0%}"
    floor = max(copy, kernels or 0.0)
    return [
        f"`{sweep['plan']}`",
        sweep["dtype"],
        f"{sweep['images']:,}",
        f"{copy:.3f}",
        "-" if kernels is None else f"{kernels:.3f}",
        _schedule(one),
        _schedule(best),
        f"{ways[ZERO_COPY]['median_ms']:.3f}",
        f"{_schedule(auto)}, {auto['predicted_ms']:.3f}",
        f"{1 - auto['median_ms'] / one['median_ms']:.0%}",
        hidden,
        f"{auto['median_ms'] / floor:.2f}x",
    ]


def table() -> str:
    """A row a plan and type of pixels: copy, kernels, one stream, the best, the model's."""
    if not there(GPU, FILE):
        return "Not measured on this device yet (`python scripts/measure.py --only streams`)."
    document = load(GPU, FILE)
    counts = [row["samples"] for sweep in document["sweeps"] for row in sweep["rows"]]
    lines = [
        f"{where(document)}; page-locked images to labels on the host, medians of interleaved "
        "rounds, milliseconds (streams x images a chunk, which may rise to as many or fall from "
        'them). "Zero-copy": kernels read the host\'s memory. '
        '"Saved" is what the schedule by default saves of one stream and one chunk; "could" '
        "is the shorter of copy and kernels, of both. " + how_sure(counts, document),
        "",
        "| plan | pixels | images | bare copy | kernels | one stream | best of the sweep "
        "| zero-copy | by default, and as predicted | saved | could | default over the longer |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += ["| " + " | ".join(_cells(sweep)) + " |" for sweep in sweeps(document)]
    return "\n".join(lines)


SECTIONS = {"streams": table}
