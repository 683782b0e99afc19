"""Comparisons: the variants of a stage, and whole plans, checked and then timed in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lenetgpu.lab.show.compare import COMPARE_COLUMNS
from lenetgpu.lab.show.page import specs
from lenetgpu.lab.show.page.blocks import Block, Chart, Document, Part, Section, Table, of_command
from lenetgpu.lab.show.page.provenance import samples, source
from lenetgpu.lab.show.tables import STATUS_WORDS, Column, noted
from lenetgpu.network import STAGE_NAMES

VERDICTS = ("reference", "faster", "same", "slower", "undecided")
COLUMNS = (Column("of", "what", numeric=False), *COMPARE_COLUMNS)


def table_row(entry: dict[str, Any]) -> dict[str, Any]:
    """A candidate with its status as a word, its ratio's interval spread out, its notes joined."""
    ratio = entry["ratio"] or {}
    spread = {"ratio": ratio.get("median"), "low": ratio.get("low"), "high": ratio.get("high")}
    check = STATUS_WORDS.get(entry["status"], entry["status"])
    few, all_of = entry["scaled_from"], entry["images"]
    scaled = f"scaled from {few} images" if few and all_of and few < all_of else None
    words = noted(entry | {"warnings": entry["warnings"] or ()})
    note = "; ".join(filter(None, [scaled, words])) or None
    return entry | spread | {"check": check, "note": note}


def _verdict(entry: dict[str, Any]) -> str:
    """A candidate's verdict, undecided where it has none that there is."""
    return entry["verdict"] if entry["verdict"] in VERDICTS else VERDICTS[-1]


def _spec(document: Document) -> specs.Spec:
    rows = [
        {"name": entry["name"], "verdict": _verdict(entry),
         "ratio": (entry["ratio"] or {}).get("median"), **specs.spread(entry)}
        for entry in document["candidates"]
        if entry["median_ms"] and entry["median_ms"] > 0
    ]  # fmt: skip
    rows.sort(key=lambda row: -row["median_ms"])
    tips = specs.hints(("name", "candidate"), specs.MS, specs.P05, specs.P95,
                       ("ratio", "over the baseline", ",.3~g"), ("verdict", "verdict"))  # fmt: skip
    there = {row["verdict"] for row in rows}
    tint = specs.colour("verdict", VERDICTS)
    tint["legend"] = {"values": [verdict for verdict in VERDICTS if verdict in there]}
    return specs.dots(rows, specs.names("name"), specs.quantity("median_ms", "ms, logarithmic",
                      log=True), tint, tips)  # fmt: skip


def _power(documents: Sequence[Document]) -> specs.Spec | None:
    """What each candidate draws while it runs, over its time; None where nobody looked."""
    rows = [
        {"what": document["what"], "name": entry["name"], "ms": entry["median_ms"],
         "power": entry["machine"]["power_w"], "mhz": entry["machine"]["sm_mhz"],
         "energy": entry["machine"]["energy_uj_per_image"], "stage": document["what"].split("+")[0]}
        for document in documents
        for entry in document["candidates"]
        if entry["machine"] and entry["machine"]["power_w"] and (entry["median_ms"] or 0) > 0
    ]  # fmt: skip
    if not rows:
        return None
    known = all(row["stage"] in STAGE_NAMES for row in rows)
    tint = specs.colour("what", list(dict.fromkeys(row["what"] for row in rows)))
    if known:
        tint = specs.stage_colour([row["stage"] for row in rows])
    tips = specs.hints(("what", "of"), ("name", "candidate"), ("power", "W", ",.0f"),
                       ("mhz", "SM MHz", ",.0f"), ("energy", "uJ an image", ",.3~g"),
                       ("ms", "median ms", ",.4~g"))  # fmt: skip
    return specs.spec(
        rows,
        320,
        mark={"type": "point", "filled": True, "size": 80, "opacity": 0.9},
        encoding={
            "x": specs.quantity("ms", "median ms, logarithmic", log=True),
            "y": specs.quantity("power", None, scale={"zero": False}),
            "color": tint,
            "tooltip": tips,
        },
    )


def _order(document: Document) -> tuple[int, str]:
    first = document["what"].split("+")[0]
    place = STAGE_NAMES.index(first) if first in STAGE_NAMES else -1
    return place, document["what"]


def comparisons(documents: Sequence[Document]) -> Section:
    """A chart a comparison, one table of all of them, and what they drew."""
    found = [d for d in of_command(documents, "compare") if d["candidates"]]
    found.sort(key=_order)
    lead = (
        "Every candidate was compared with float64 before it was timed, then timed in rounds in "
        "turn with the others. A ratio is over the baseline's time of the same round; the verdict "
        "says whether its whole interval agrees."
    )
    if not found:
        return Section("comparisons", "Comparisons", lead)
    rows = [table_row(entry) | {"what": d["what"]} for d in found for entry in d["candidates"]]
    line = source(*found, how=samples(rows))
    parts: list[Part] = [
        Chart(f"{document['what']}, over {document['reference']}", _spec(document))
        for document in found
        if any(entry["median_ms"] for entry in document["candidates"])
    ]
    parts.append(Table("All candidates", COLUMNS, rows))
    blocks = [Block(parts, line)]
    power = _power(found)
    if power is not None:
        note = "Read while each candidate ran without a pause, after the rounds."
        chart = Chart("W of the whole device (upwards) over time of a run", power, wide=True)
        blocks.append(Block([chart], line, note))
    return Section("comparisons", "Comparisons", lead, blocks)
