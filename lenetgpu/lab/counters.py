"""Counters of comparisons and suites: collected after all timing, added to the rows, tabulated."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lenetgpu.gpu.device import Gpu
from lenetgpu.lab.tables import Column, Part, Table, from_file
from lenetgpu.measure.bench import StageBench
from lenetgpu.measure.counters import document as counters
from lenetgpu.measure.counters.child import Images, StageSpec, Work
from lenetgpu.measure.rounds import Comparison, Say
from lenetgpu.papers.course_counters import described, kernels_of_rows, specs

Key = TypeVar("Key", bound=Hashable)
_STALLS_SHOWN, _LEAST_SHARE, _NAME = 3, 0.05, 44


def stalls(shares: dict[str, float]) -> str:
    """Format the largest stall shares by cause: "long_scoreboard 61 %, wait 12 %"."""
    large = [(cause, share) for cause, share in shares.items() if share >= _LEAST_SHARE]
    return ", ".join(f"{cause} {share:.0%}" for cause, share in large[:_STALLS_SHOWN])


COUNTED = [
    replace(column, empty="-")
    for column in from_file("counters", shortened=lambda name: str(name[:_NAME]), stalls=stalls)
]
_OF_A_KERNEL = ("kernel", "launches", "ms")
_OF_ADDRESSES = ("stage", "variant", "global_load_efficiency", "global_store_efficiency")


def columns_of(head: Mapping[str, Any], kernels: bool) -> list[Column]:
    """Return the columns of a source; "counted" has only the efficiencies of global accesses."""
    if head["source"] != "ncu":
        return [column for column in COUNTED if column.key in _OF_ADDRESSES]
    return [column for column in COUNTED if kernels or column.key not in _OF_A_KERNEL]


def nested(head: Mapping[str, Any] | None) -> list[Column]:
    """Return the same columns for rows that hold their counters under `counters`."""
    shown = [] if head is None else columns_of(head, False)[2:]
    return [replace(column, key=f"counters.{column.key}") for column in shown]


def parts(
    head: Mapping[str, Any], rows: Sequence[dict[str, Any]], kernels: bool = False
) -> Iterator[Part]:
    """Yield a table of stages, or of kernels with `kernels`, and the origin of its figures."""
    shown = rows
    if kernels:  # a row per kernel, grouped by stage; a stage without kernels has one row
        shown = [
            entry | {key: row[key] for key in ("stage", "variant")}
            for row in rows
            for entry in row["kernels"] or [row]
        ]
    yield Table(columns_of(head, kernels), shown, f"counters, {head['images']:,} images")
    for row in rows:
        if row["error"]:
            yield f"{row['stage']} {row['variant']}: {row['error']}"
    if head["source"] == "ncu":
        yield (
            f"counters measured by Nsight Compute {head['version']}, which runs each "
            "kernel alone and several times: do not compare its milliseconds with other times"
        )
    else:
        yield f"counters counted from addresses, not measured: {head['note']}"


def of_entries(document: Mapping[str, Any], entries: Sequence[dict[str, Any]]) -> Iterator[Part]:
    """Yield the counters of all entries that have them, each (stage, variant) once."""
    if head := document.get("counters"):
        rows = [entry["counters"] for entry in entries if entry.get("counters")]
        yield from parts(head, list({(row["stage"], row["variant"]): row for row in rows}.values()))


def _counted(
    specs: Mapping[Key, StageSpec], document: dict[str, Any], images: Images, gpu: Gpu, say: Say
) -> dict[Key, dict[str, Any]]:
    """Return a row of counters per stage, {} after Ctrl-C, and put their head into `document`."""
    if document["interrupted"] or not specs:
        return {}
    say("counters, by Nsight Compute")
    try:
        works = [Work(document["what"], tuple(specs.values()))]
        document["counters"], (rows,) = counters.find(works, images, gpu)
    except KeyboardInterrupt:
        document["interrupted"] = True
        return {}
    return dict(zip(specs, rows, strict=True))


def count_candidates(
    comparison: Comparison, document: dict[str, Any], images: Images, gpu: Gpu, say: Say
) -> None:
    """Add `counters` to a comparison and its correct candidates, None for plugins; free benches."""
    specs = {}
    for candidate in comparison.candidates:
        if isinstance(candidate.bench, StageBench) and candidate.status == "right":
            problem, name = candidate.bench.problem, candidate.name
            specs[name] = StageSpec(comparison.what, name, problem.reads, problem.writes)
        candidate.bench = None
    if comparison.again is not None:
        comparison.again.bench = None
    rows = _counted(specs, document, images, gpu, say)
    for entry in document["candidates"]:
        entry["counters"] = rows.get(entry["name"])


def count_suite(document: dict[str, Any], images: Images, gpu: Gpu, say: Say) -> None:
    """Add `counters` to the course suite's document and rows, measured ones also in words."""
    keys = ((row["stage"], row["variant"]) for row in document["rows"] if row["status"] == "right")
    by_key = _counted(specs(keys), document, images, gpu, say)
    measured = document.get("counters", {}).get("source") == counters.SOURCE
    for row in document["rows"]:
        row["counters"] = own = kernels_of_rows(row["stage"], row["variant"], by_key)
        if own is not None and measured:
            row["explanation"] = ", ".join(filter(None, [row.get("explanation"), described(own)]))
