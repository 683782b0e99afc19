"""The ladder of docs/ladder.md: every GPU convolution on this network's two, slowest first.

Times come from the suite `lenet` of `conv`; those of variants that it leaves out from the suite
`course` of `compare`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import conv_tables
import course_tables
from measured import GPU, SOURCES, Document, how_sure, load, where

from lenetgpu.network import STAGES
from lenetgpu.stages import Variant, variants

IMAGES = 10_000
NAIVE = "direct.basic"


@dataclass(frozen=True)
class Rung:
    """A variant on a convolution: its time, or why there is none; `run` is the suite it is of."""

    name: str
    variant: Variant | None
    milliseconds: float | None = None
    run: str = ""
    why: str = ""


def _case(document: dict[str, Any], stage: str) -> dict[str, Any]:
    label = f"{stage}, {IMAGES:,} images"
    found: dict[str, Any] = next(case for case in document["cases"] if case["label"] == label)
    return found


def _documents() -> tuple[Document, Document]:
    return load(GPU, "conv", "lenet.json"), course_tables.suite()


Among = Callable[[Variant], bool]
"""Which variants a page is written of."""


def rungs(stage: str, among: Among) -> list[Rung]:
    """The GPU variants on `stage`, slowest first, the peer among them; then those untimed."""
    conv, course = _documents()
    case = _case(conv, stage)
    entries = {entry["name"]: entry for entry in case["candidates"]}
    rows = {row["variant"]: row for row in course["rows"] if row["stage"] == stage}
    found = []
    for variant in filter(among, variants("conv", "cuda")):
        name = variant.full_name
        entry = entries.get(name, {})
        if entry.get("median_ms"):
            found.append(Rung(name, variant, entry["median_ms"], "conv"))
        elif name in rows and "median_ms" in rows[name]:
            found.append(Rung(name, variant, rows[name]["median_ms"], "course"))
        else:
            found.append(Rung(name, variant, why=entry.get("note") or "in neither run"))
    peer = entries[case["reference"]]
    found.append(Rung(peer["name"], None, peer["median_ms"], "conv"))
    return sorted(found, key=lambda rung: -(rung.milliseconds or 0.0))


def _linked(variant: Variant) -> str:
    """The variant's name, linked to its launcher, with its kernel where one lies beside it."""
    launcher = Path(inspect.getfile(inspect.unwrap(variant.run))).resolve()
    text = f"[`{variant.full_name}`](../{launcher.relative_to(SOURCES)})"
    kernel = launcher.with_suffix(".cu")
    if kernel.is_file() and variant.needs.device == "cuda":
        text += f" [.cu](../{kernel.relative_to(SOURCES)})"
    return text if variant.precision == "fp32" else f"{text}, {variant.precision}"


def _rows(timed: list[Rung]) -> Iterator[str]:
    times = {rung.name: rung.milliseconds or 0.0 for rung in timed}
    number, before = 0, 0.0
    for rung in timed:
        took = times[rung.name]
        over = f"{times[NAIVE] / took:,.1f}x"
        if rung.variant is None:
            what = "PyTorch's convolution, fp32 without TF32"
            yield f"| - | {rung.name} | {what} | - | {took:,.3f} | {rung.run} | - | {over} |"
            continue
        number += 1
        gain = f"{before / took:,.2f}x" if before else "-"
        before = took
        yield (
            f"| {number} | {_linked(rung.variant)} | {rung.variant.summary} "
            f"| {rung.variant.paper or '-'} | {took:,.3f} | {rung.run} | {gain} | {over} |"
        )


def table(stage: str, among: Among) -> str:
    """The rungs of `stage`, a line each, and below them the variants without a time."""
    problem = next(s.problem for s in STAGES if s.name == stage)
    found = rungs(stage, among)
    timed = [rung for rung in found if rung.milliseconds is not None]
    conv, _ = _documents()
    lines = [
        f"{where(conv)}; {problem.C}x{problem.H}x{problem.W} to "
        f"{problem.M}x{problem.OH}x{problem.OW} by {problem.R}x{problem.S} filters, {IMAGES:,} "
        f"images, {problem.flop(IMAGES) / 1e9:.1f} GFLOP as the plain algorithm counts them. "
        f"{how_sure([_case(conv, stage)['rounds']], conv, of='a row of `conv`')}",
        "",
        "| rung | variant | what it does | source | ms | run | over the rung before "
        f"| over `{NAIVE}` |",
        "|---:|---|---|---|---:|---|---:|---:|",
        *_rows(timed),
    ]
    untimed = [rung for rung in found if rung.milliseconds is None and rung.variant is not None]
    if untimed:
        lines += ["", "Not on this ladder:", ""]
        lines += [
            f"- {_linked(rung.variant)}: {rung.variant.summary} ({rung.why})"
            for rung in untimed
            if rung.variant is not None
        ]
    return "\n".join(lines)


def how() -> str:
    """The two runs, and how far they agree on what both measured."""
    conv, course = _documents()
    ratios = []
    for stage in ("conv1", "conv2"):
        entries = {e["name"]: e["median_ms"] for e in _case(conv, stage)["candidates"]
                   if e.get("median_ms")}  # fmt: skip
        rows = {r["variant"]: r["median_ms"] for r in course["rows"] if r["stage"] == stage}
        ratios += [rows[name] / entries[name] for name in rows.keys() & entries.keys()]
    worst = max(abs(ratio - 1) for ratio in ratios)
    counts = [len(row["samples_ms"]) for row in course["rows"] if "samples_ms" in row]
    return (
        f"- `conv`: {where(conv)}; {conv['peer']}; `lenetgpu conv --suite lenet`, medians of "
        f"interleaved rounds. {how_sure(conv_tables.rounds(conv), conv)}\n"
        f"- `course`: {where(course)}; `lenetgpu compare --suite course`, medians, a variant after "
        "the other, for the variants that the first run left out. "
        f"{how_sure(counts, course)} What both measured ({len(ratios)} rows) differs by "
        f"{worst:.1%} at most."
    )


def elsewhere(among: Among) -> str:
    """The convolutions that run on a CPU."""
    return "\n".join(
        f"- {_linked(variant)}: {variant.summary}"
        + (f" ({variant.paper})" if variant.paper else "")
        for variant in filter(among, variants("conv", "cpu"))
    )


def sections(among: Among = lambda variant: True) -> dict[str, Callable[[], str]]:
    """The page's generated parts, of the variants that are `among` those wanted."""
    return {
        "ladder-runs": how,
        "ladder-conv2": partial(table, "conv2", among),
        "ladder-conv1": partial(table, "conv1", among),
        "ladder-cpu": partial(elsewhere, among),
    }
