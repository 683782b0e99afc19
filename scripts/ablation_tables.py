"""The papers' own kernels, and the steps from them to ours, from ablation/SUITE.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from measured import GPU, Document, how_sure, load, there, where

from lenetgpu.lab.show.conv_document import geometric_mean
from lenetgpu.papers.shapes import SUITES


@dataclass(frozen=True)
class Departure:
    """A step from one kernel to the next; `several` where it changes more than one thing."""

    before: str
    after: str
    what: str
    several: bool = False


DEPARTURES = {
    "pascal-single": (
        Departure("prefetch.single_strict", "prefetch.single_strict_both",
                  "map and filters divided until every multiprocessor has a part"),
        Departure("prefetch.single_strict_both", "prefetch.single",
                  "packed filters, several outputs a thread, tiles by a model", True),
    ),
    "pascal-multi": (
        Departure("prefetch.strict", "prefetch.strict_async", "rounds copied past the registers"),
        Departure("prefetch.strict_async", "prefetch.strict_packed",
                  "a round's segments of a block lie together"),
        Departure("prefetch.strict_packed", "prefetch.strict_spread", "a block for each tile"),
        Departure("prefetch.strict_spread", "prefetch.strict_filled",
                  "M' and W'x below N_FMA until every block has a tile"),
        Departure("prefetch.strict_filled", "prefetch.stride_fixed",
                  "2D tiles by a model, several pixels a thread, channels split", True),
    ),
}  # fmt: skip


def ablation(suite: str) -> Document | None:
    """The suite's file, None where it has none."""
    return (
        load(GPU, "ablation", f"{suite}.json") if there(GPU, "ablation", f"{suite}.json") else None
    )


def timed(case: dict[str, Any], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Those candidates of a case that have a time."""
    return [e for e in case["candidates"] if e["name"] in names and e.get("median_ms")]


def of_literal(suite: str, document: Document) -> Document:
    """Which document has the suite's literal kernels: `document` if it timed them, else ablation's.

    `document` too where there is neither.
    """
    names = SUITES[suite].literal
    if any(timed(case, names) for case in document["cases"]):
        return document
    return ablation(suite) or document


def of_label(document: Document, label: str) -> dict[str, Any]:
    """The case of that shape, one without candidates where it is not there."""
    found = (case for case in document["cases"] if case["label"] == label)
    return next(found, {"candidates": []})


def ratios(document: Document, before: str, after: str) -> dict[str, float]:
    """Times faster on each shape that both kernels take."""
    found = {}
    for case in document["cases"]:
        old, new = (timed(case, (name,)) for name in (before, after))
        if old and new:
            found[case["label"]] = old[0]["median_ms"] / new[0]["median_ms"]
    return found


def departures_table() -> str:
    """A row a step from the Pascal paper's kernels to ours: how many times faster it is."""
    documents = {name: found for name in DEPARTURES if (found := ablation(name))}
    if not documents:
        return "Not measured yet: `python scripts/measure.py --only ablation`."
    every = list(documents.values())
    counts = [case["rounds"] for document in every for case in document["cases"]]
    lines = [
        f"{where(*every)}; the time before a step over the time after it, on the shapes of its "
        f"suite; {how_sure(counts, *every, of='a shape')}",
        "",
        "| suite | from | to | what changes | shapes | geometric mean | least | most |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for suite, document in documents.items():
        for step in DEPARTURES[suite]:
            found = ratios(document, step.before, step.after)
            if not found:
                continue
            least, most = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
            what = f"{step.what} (several changes at once)" if step.several else step.what
            lines.append(
                f"| {suite} | `{step.before}` | `{step.after}` | {what} | {len(found)} "
                f"| {geometric_mean(list(found.values())):.2f}x | {found[least]:.2f}x ({least}) "
                f"| {found[most]:.2f}x ({most}) |"
            )
    return "\n".join(lines)


BLOCKS = {"departures": departures_table}
