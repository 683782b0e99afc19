"""Right and wrong: labels by plan, any weights, what the instrument itself was found to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lenetgpu.check.mistakes import counts_of
from lenetgpu.lab.show.page.blocks import (
    Block,
    Document,
    Drawing,
    Facts,
    Section,
    Table,
    of_command,
    short,
)
from lenetgpu.lab.show.page.mistakes import section
from lenetgpu.lab.show.page.peers import OURS
from lenetgpu.lab.show.page.plans import named_plans
from lenetgpu.lab.show.page.provenance import of_what, source
from lenetgpu.lab.show.tables import Column, percent, significant

COLUMNS = (
    Column("what ran", "name", numeric=False),
    Column("precision", "precision", numeric=False),
    Column("data", "data", numeric=False),
    Column("weights", "weights", numeric=False),
    Column("right", "correct", "{:,}".format),
    Column("of", "judged", "{:,}".format),
    Column("accuracy", "accuracy", percent),
    Column("labels unlike float64's", "flips", "{:,}".format),
    Column("logit error", "relative_error", "{:.1e}".format),
)


def _rows(documents: Sequence[Document]) -> tuple[list[dict[str, Any]], list[Document]]:
    """What counted right labels, and the documents that it is from."""
    rows, used = [], []
    for document in of_command(documents, "peers"):
        about = {"data": document["data"], "weights": document["weights"]}
        ours = [row | about for row in document["rows"] if row["maker"] == OURS]
        rows += ours
        used += [document] * bool(ours)
    for document in named_plans(documents):
        if document["correct"] is not None:
            row = {"name": f"plan {document['plan_label']}", "judged": document["images"]}
            keys = ("precision", "data", "weights", "correct")
            rows.append(row | {key: document[key] for key in keys})
            used.append(document)
    for row in rows:
        judged, right = row.get("judged"), row.get("correct")
        row["accuracy"] = right / judged if judged and right is not None else None
    return rows, used


def _read_as(documents: Sequence[Document]) -> Block | None:
    """The confusion matrix of the first file that counted one."""
    for document in named_plans(documents)[::-1]:
        counts = counts_of(document) if document["confusions"] is not None else None
        if counts is not None and counts.sum():
            title = f"Plan {document['plan_label']}, {of_what(document)}"
            return Block([Drawing(title, section(counts))], source(document))
    return None


def labels(documents: Sequence[Document], mistakes: Block | None = None) -> Section:
    """Labels right by plan, and what was read as what.

    `mistakes` are those of a fresh run, with the digits; files hold counts at most.
    """
    rows, used = _rows(documents)
    blocks = []
    if rows:
        blocks.append(Block([Table("Right labels", COLUMNS, rows)], source(*used)))
    matrix = mistakes or _read_as(documents)
    blocks += [] if matrix is None else [matrix]
    return Section("labels", "Digits, right and wrong", "", blocks)


def _weights_table(document: Document) -> Table:
    """A row a kind of weights, a column a plan's error; where it was refused, so."""
    plans = list(dict.fromkeys(plan for row in document["rows"] for plan in row["plans"]))
    rows = []
    for row in document["rows"]:
        made: dict[str, Any] = {"weights": row["weights"]}
        for number, plan in enumerate(plans):
            entry = row["plans"].get(plan)
            if entry is None or entry["right"] is None:
                made[f"p{number}"] = None
            elif entry["right"]:
                made[f"p{number}"] = entry["error"]
        rows.append(made)
    columns = [Column("weights", "weights", numeric=False)]
    columns += [Column(plan, f"p{number}", _error) for number, plan in enumerate(plans)]
    return Table("Largest error of a logit with any weights, by plan", tuple(columns), rows)


def _error(value: float) -> str:
    return f"{value:.1e}"


def weights(documents: Sequence[Document]) -> Section:
    """Every plan with weights of every size."""
    blocks = [
        Block([_weights_table(document)], source(document),
              "Beside float64, over the largest logit. An empty cell: refused, in a sentence.")
        for document in of_command(documents, "weights") if document["rows"]
    ]  # fmt: skip
    lead = "A plan whose scores are not within its precision's tolerance is refused, not run."
    return Section("weights", "Any weights", lead, blocks)


COUNTED = (
    Column("plan", "plan", numeric=False),
    Column("stage", "stage", numeric=False),
    Column("variant", "variant", numeric=False),
    Column("ms alone", "ms", significant(4)),
    Column("DRAM read GB/s", "dram_read_gbs", significant(3)),
    Column("written GB/s", "dram_write_gbs", significant(3)),
    Column("L2 GB/s", "l2_gbs", significant(3)),
    Column("loads eff.", "global_load_efficiency", percent),
    Column("stores eff.", "global_store_efficiency", percent),
    Column("shared eff.", "shared_efficiency", percent),
    Column("active warps", "occupancy", percent),
    Column("stalled most by", "top_stall", numeric=False),
    Column("of all stalls", "top_stall_share", percent),
)


def counters(documents: Sequence[Document]) -> Section:
    """What the GPU's own counters say of every kernel."""
    blocks = []
    for document in of_command(documents, "counters"):
        rows = list(document["rows"])
        for plan in (document["plans"] or {}).values():
            rows += [row | {"plan": plan["name"]} for row in plan["rows"]]
        if rows:
            images = f"{document['images']:,} images" if document["images"] else ""
            blocks.append(Block([Table("Kernels by their counters", COUNTED, rows)],
                                source(document, how=images)))  # fmt: skip
    lead = "Counted by the GPU's hardware in a run of its own, read by Nsight Compute."
    return Section("counters", "Hardware counters", lead, blocks)


def instrument(documents: Sequence[Document]) -> Section:
    """How often the comparison was wrong about the same thing under two names."""
    blocks = []
    for document in of_command(documents, "instrument"):
        counts = {
            name.replace("_", " "): short(value, 4)
            for name, value in document["counts"].items() if value is not None
        }  # fmt: skip
        blocks.append(Block([Facts(document["label"], counts)], source(document)))
    lead = "The comparison pointed at itself: one plan under two names, and one that was slowed."
    return Section("instrument", "The instrument", lead, blocks)
