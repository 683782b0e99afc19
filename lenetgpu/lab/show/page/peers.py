"""Beside PyTorch, JAX and others: on the device, host to host, one image, a cold start."""

from __future__ import annotations

from collections.abc import Sequence

from lenetgpu.lab.show.page import specs
from lenetgpu.lab.show.page.blocks import Block, Chart, Document, Part, Section, Table, of_command
from lenetgpu.lab.show.page.provenance import samples, source
from lenetgpu.lab.show.tables import Column, fixed, short_error, significant

OURS = "lenetgpu"
COLUMNS = (
    Column("contestant", "name", numeric=False),
    Column("by", "maker", numeric=False),
    Column("precision", "precision", numeric=False),
    Column("median ms", "median_ms", significant(4)),
    Column("p05 ms", "p05_ms", significant(4)),
    Column("p95 ms", "p95_ms", significant(4)),
    Column("best peer", "peer", numeric=False),
    Column("its ms", "peer_ms", significant(4)),
    Column("times as fast", "times_faster", fixed(2)),
    Column("over the bare copy", "over_copy", fixed(2)),
    Column("right", "correct", "{:,}".format),
    Column("flips", "flips", "{:,}".format),
    Column("judged", "judged", "{:,}".format),
    Column("logit error", "relative_error", short_error),
    Column("streams", "streams"),
    Column("chunk", "chunk", "{:,}".format),
    Column("processor ms", "processor_ms", fixed(0)),
    Column("worst call ms", "call_worst_ms", significant(3)),
)
_TITLES = {
    "peers": "images on the device to labels there",
    "end-to-end": "images in host memory to labels in it",
    "one": "one image, from the host to its label",
    "cold": "a new process, from its start to the labels",
}
_MOST_SHOWN = 16


def _best(rows: Sequence[Document]) -> list[Document]:
    """The fastest of each maker at each precision where there are many rows; fastest first."""
    ordered = sorted(rows, key=lambda row: float(row["median_ms"]))
    if len(ordered) <= _MOST_SHOWN:
        return ordered
    best: dict[tuple[str, str], Document] = {}
    for row in ordered:
        best.setdefault((row["maker"], row["precision"] or ""), row)
    return list(best.values())


def _contest(rows: Sequence[Document]) -> specs.Spec:
    shown = [
        {"name": row["name"], "maker": row["maker"], "precision": row["precision"] or "",
         "times": row["times_faster"], **specs.spread(row)}
        for row in _best(rows) if row["median_ms"] > 0
    ]  # fmt: skip
    makers = sorted({row["maker"] for row in shown}, key=lambda maker: (maker != OURS, maker))
    tips = specs.hints(("name", "contestant"), ("precision", "precision"), specs.MS, specs.P05,
                       specs.P95)  # fmt: skip
    return specs.dots(
        shown,
        specs.names("name"),
        specs.quantity("median_ms", "ms, logarithmic", log=True),
        specs.colour("maker", makers),
        tips,
    )


def _scaling(document: Document) -> specs.Spec:
    rows = [row for row in document["scaling"] if row["images"] > 0 and row["ns_per_image"] > 0]
    plans = list(dict.fromkeys(row["plan"] for row in rows))
    tips = specs.hints(("plan", "plan"), ("images", "images", ","),
                       ("ns_per_image", "ns an image", ",.4~g"))  # fmt: skip
    return specs.spec(
        rows,
        280,
        mark={"type": "line", "point": {"size": 70, "filled": True}},
        encoding={
            "x": specs.quantity("images", "images a pass, logarithmic", log=True),
            "y": specs.quantity("ns_per_image", None, log=True),
            "color": specs.colour("plan", plans),
            "tooltip": tips,
        },
    )


def _phases(document: Document) -> specs.Spec:
    rows = [{"phase": name, "ms": ms} for name, ms in document["phases_ms"].items()]
    return specs.spec(
        rows,
        specs.bars_high(len(rows)),
        mark={"type": "bar", "height": {"band": 0.72}},
        encoding={
            "y": specs.names("phase"),
            "x": specs.quantity("ms", "ms of our own process"),
            "tooltip": specs.hints(("phase", "phase"), ("ms", "ms", ",.4~g")),
        },
    )


def _beside(document: Document) -> list[Block]:
    """One document's chart and table."""
    rows = document["rows"]
    if not rows:
        return []
    images = f", {document['images']:,} images" if (document["images"] or 1) > 1 else ""
    title = f"{_TITLES[document['command']]}{images}"
    title = title[0].upper() + title[1:]
    line = source(document, how=samples(rows))
    few = len(_best(rows)) < len(rows)
    note = "The fastest of each maker at each precision; the table has all. " if few else ""
    parts: list[Part] = [Chart(title, _contest(rows), wide=True)]
    if document["scaling"]:
        parts.append(
            Chart(
                "Nanoseconds an image (logarithmic, upwards) over images a pass",
                _scaling(document),
                wide=True,
            )
        )
    if document["phases_ms"]:
        parts.append(Chart("A cold start of ours, by phase", _phases(document), wide=True))
    parts.append(Table(f"All contestants: {_TITLES[document['command']]}", COLUMNS, rows))
    blocks = [Block(parts, line, note + _absent(document))]
    if document["many"] and document["many"]["rows"]:
        many = document["many"]
        title = f"The same, {many['images']:,} images"
        parts = [
            Chart(title, _contest(many["rows"]), wide=True),
            Table(f"All contestants, {many['images']:,} images", COLUMNS, many["rows"]),
        ]
        blocks.append(Block(parts, source(document, how=samples(many["rows"]))))
    return blocks


def _absent(document: Document) -> str:
    names = [entry["name"] for entry in document["not_measured"] or ()]
    return f"Not measured: {', '.join(names)}." if names else ""


def peers(documents: Sequence[Document]) -> Section:
    """Every document of this kind, a chart and a table each."""
    lead = (
        "Contestants took turns in rounds, so that a slow moment of the machine met all of them. "
        "Labels that differ from float64's are flips."
    )
    blocks = [block for command in _TITLES for document in of_command(documents, command)
              for block in _beside(document)]  # fmt: skip
    return Section("peers", "Beside PyTorch, JAX and others", lead, blocks)
