"""Counters for comparisons and suites: taken when every time is, put to the rows they are of."""

from __future__ import annotations

from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.bench import StageBench
from lenetgpu.measure.candidates import PLANS
from lenetgpu.measure.comparison import Comparison
from lenetgpu.measure.counters import document as counters
from lenetgpu.measure.counters.work import Images, Place, Work
from lenetgpu.papers.course_counters import described, kernels_of_rows, places_of
from lenetgpu.stages import Variant

Say = Any


def check_counted(what: str | None) -> None:
    """Raise LenetError unless counters can be put to each row of `what`."""
    if what == PLANS:
        raise LenetError(
            f"--counters: expected a stage, a span or --suite to compare, found {PLANS}; "
            "`lenetgpu profile --counters --plan NAME` has a plan's"
        )


def count_candidates(
    comparison: Comparison,
    document: dict[str, Any],
    images: Images,
    gpu: Gpu,
    guests: list[Variant],
) -> None:
    """Give `document`, a stage's comparison, its `counters`, and each right candidate its own.

    Guests are not known to the process that counts: theirs are None.
    """
    outside = {guest.full_name for guest in guests}
    places = {}
    for candidate in comparison.candidates:
        bench = candidate.bench
        if isinstance(bench, StageBench) and candidate.samples and candidate.name not in outside:
            if bench.variant.needs.device == "cuda":
                problem = bench.problem
                places[candidate.name] = Place(
                    comparison.what, candidate.name, problem.reads, problem.writes
                )
            candidate.bench = None
    found = counters.find([Work(comparison.what, tuple(places.values()))], images, gpu)
    rows = dict(zip(places, found.rows[0], strict=True))
    for entry in document["candidates"]:
        entry["counters"] = rows.get(entry["name"])
    document["counters"] = found.head


def count_suite(document: dict[str, Any], images: Images, gpu: Gpu) -> None:
    """Give the course's suite its `counters`, and each row that is a variant's its own.

    A row's explanation says what they are, where they are measured.
    """
    places = places_of(document["rows"])
    found = counters.find([Work("suite", tuple(places.values()))], images, gpu)
    by_place = dict(zip(places, found.rows[0], strict=True))
    for row in document["rows"]:
        row["counters"] = own = kernels_of_rows(row["stage"], row["variant"], by_place)
        if own is not None and found.head["source"] == "ncu":
            words = [row.get("explanation"), described(own)]
            row["explanation"] = ", ".join(filter(None, words))
    document["counters"] = found.head
