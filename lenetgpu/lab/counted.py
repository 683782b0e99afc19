"""Counters for comparisons and suites: taken when every time is, put to the rows they are of."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from lenetgpu.dispatch.candidates import PLANS
from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.bench import StageBench
from lenetgpu.measure.comparison import Comparison
from lenetgpu.measure.counters import document as counters
from lenetgpu.measure.counters import read
from lenetgpu.measure.counters.work import Images, Place, Work
from lenetgpu.measure.rounds import Say
from lenetgpu.papers.course_counters import described, kernels_of_rows, places_of
from lenetgpu.stages import Variant

Key = TypeVar("Key", bound=Hashable)


def check_counted(what: str | None) -> None:
    """Raise LenetError unless counters can be put to each row of `what`."""
    if what == PLANS:
        raise LenetError(
            f"--counters: expected a stage, a span or --suite to compare, found {PLANS}; "
            "`lenetgpu profile --counters --plan NAME` has a plan's"
        )


def _counted(
    places: Mapping[Key, Place], document: dict[str, Any], images: Images, gpu: Gpu, say: Say
) -> dict[Key, dict[str, Any]]:
    """A row of counters a place, their head into `document`; nothing of none, or interrupted.

    Ctrl-C ends the counting, not what was timed before it.
    """
    if document["interrupted"] or not places:
        return {}
    say("counters, by Nsight Compute")
    try:
        found = counters.find([Work(document["what"], tuple(places.values()))], images, gpu)
    except KeyboardInterrupt:
        document["interrupted"] = True
        return {}
    document["counters"] = found.head
    return dict(zip(places, found.rows[0], strict=True))


def count_candidates(
    comparison: Comparison,
    document: dict[str, Any],
    images: Images,
    gpu: Gpu,
    guests: Sequence[Variant],
    say: Say,
) -> None:
    """Give `document`, a stage's comparison, its `counters`, and each right candidate its own.

    Guests are not known to the process that counts: theirs are None. The benches are let go of,
    the process needs their memory.
    """
    outside = {guest.full_name for guest in guests}
    places = {}
    for candidate in comparison.candidates:
        if isinstance(candidate.bench, StageBench) and candidate.status == "right":
            problem, name = candidate.bench.problem, candidate.name
            if name not in outside:
                places[name] = Place(comparison.what, name, problem.reads, problem.writes)
        candidate.bench = None
    if comparison.again is not None:
        comparison.again.bench = None
    rows = _counted(places, document, images, gpu, say)
    for entry in document["candidates"]:
        entry["counters"] = rows.get(entry["name"])


def count_suite(document: dict[str, Any], images: Images, gpu: Gpu, say: Say) -> None:
    """Give the course's suite its `counters`, and each row that is a variant's its own.

    A row's explanation says what they are, where they are measured.
    """
    by_place = _counted(places_of(document["rows"]), document, images, gpu, say)
    measured = document.get("counters", {}).get("source") == read.SOURCE
    for row in document["rows"]:
        row["counters"] = own = kernels_of_rows(row["stage"], row["variant"], by_place)
        if own is not None and measured:
            row["explanation"] = ", ".join(filter(None, [row.get("explanation"), described(own)]))
