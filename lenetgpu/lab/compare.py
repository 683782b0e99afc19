"""Candidates checked first, then timed in interleaved rounds against a reference."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.lab.bench import (
    Bench,
    Checked,
    Flusher,
    PlanBench,
    Skip,
    StageBench,
    Truth,
    stage_of,
)
from lenetgpu.lab.roofline import Ceilings
from lenetgpu.lab.rows import launch_json, rates_json
from lenetgpu.lab.statistics import SYSTEMATIC, Interval, median_interval, ratio_interval
from lenetgpu.lab.timing import summarise
from lenetgpu.network import CONV_POOL, SPANS, STAGE_NAMES
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import AUTO, AUTO_PLANS, NAMED, resolve
from lenetgpu.stages import find, variants
from lenetgpu.stages.registry import find_span
from lenetgpu.weights import Weights

LEAST_ROUNDS = 5
MOST_ROUNDS = 400
NOISE = 0.005
PLANS = "plans"


@dataclass
class Candidate:
    """A named way to do the work; `build` makes its bench, which may not fit in memory.

    `status`: waiting; then right, wrong, failed (it could not be run) or skipped (no memory or
    time for it); or, from the start, refused, with a sentence in `note`.
    """

    name: str
    build: Callable[[], Bench]
    precision: str = "fp32"
    status: str = "waiting"
    note: str = ""
    bench: Bench | None = None
    checked: Checked | None = None
    samples: list[float] = field(default_factory=list)

    @property
    def once(self) -> bool:
        """Whether it is worth a single sample only."""
        return self.bench is not None and self.bench.once


@dataclass
class Comparison:
    """What was compared, on what, and what came of it."""

    what: str
    reference: str
    candidates: list[Candidate]
    again: list[float]
    cold_l2: bool
    interrupted: bool = False

    @property
    def wrong(self) -> list[Candidate]:
        """Candidates that failed their check, or to run at all."""
        return [c for c in self.candidates if c.status in ("wrong", "failed")]

    def _base(self) -> Candidate | None:
        return next((c for c in self.candidates if c.name == self.reference), None)

    def control(self) -> Interval | None:
        """Ratio of the reference to itself, measured as one more candidate."""
        base = self._base()
        if base is None or not self.again:
            return None
        return ratio_interval(self.again, base.samples)

    def ratio(self, candidate: Candidate) -> Interval | None:
        """Time over the reference's, with its interval; None where either was not timed."""
        base = self._base()
        if base is None or not base.samples or not candidate.samples:
            return None
        if candidate is base:
            return Interval(1.0, 1.0, 1.0)
        control = self.control()
        drift = abs(control.value - 1) if control is not None else 0.0
        if candidate.once or base.once:
            value = summarise(candidate.samples).median / summarise(base.samples).median
            return Interval(value, value, value).widened(SYSTEMATIC + drift)
        return ratio_interval(candidate.samples, base.samples, drift)


def check_comparable(what: str) -> None:
    """Raise LenetError unless `what` is a stage, a span written with +, or "plans"."""
    names = [*STAGE_NAMES, *(span.name for span in SPANS if span.kind == CONV_POOL), PLANS]
    if what not in names:
        raise LenetError(
            f"{what!r} cannot be compared; choose from: {', '.join(names)}, or --suite"
        )


def stage_candidates(
    stage: str, device: str, n: int, facts: Truth, compute_capability: int | None
) -> list[Candidate]:
    """Every variant of a stage, or of a span written with +, that this device can run.

    Raises LenetError where there is no such stage.
    """
    check_comparable(stage)
    unit = stage_of(stage)
    found = []
    for variant in variants(unit.kind, device):
        if compute_capability is not None and not variant.needs.met_by(compute_capability):
            continue

        def build(chosen: Any = variant) -> Bench:
            return StageBench(chosen, unit, n, facts)

        found.append(Candidate(variant.full_name, build, variant.precision))
    if not found:
        raise LenetError(f"stage {stage} has no variant on {device}")
    return found


def plan_candidates(
    device: str,
    images: Any,
    facts: Truth,
    weights: Weights,
    compute_capability: int | None,
    say: Callable[[str], None],
) -> list[Candidate]:
    """Every named plan that runs on this device."""
    found = []
    for name in NAMED:
        if device not in NAMED[name]:
            continue
        try:
            plan = resolve(name, device, compute_capability=compute_capability)
        except LenetError as error:
            say(f"{name} left out: {error}")
            continue

        def build(chosen: Any = plan) -> Bench:
            return PlanBench(
                Pipeline(chosen, weights, len(images), str(images.dtype)), images, facts
            )

        found.append(Candidate(name, build, plan.precision))
    return found


def default_reference(what: str, device: str, candidates: list[Candidate]) -> str:
    """The plan that `auto` runs, or its variant of the stage; the first candidate otherwise."""
    names = [candidate.name for candidate in candidates]
    if what == PLANS:
        same = list(AUTO_PLANS["fp32"][device])
    else:
        same = [slot.variant.full_name for slot in resolve(AUTO, device).slots
                if slot.name == what]  # fmt: skip
    return next((name for name in same if name in names), names[0])


def resolve_reference(what: str, device: str, wanted: str, candidates: list[Candidate]) -> str:
    """The candidate that `wanted` names (a family's name too); LenetError where none does."""
    names = [candidate.name for candidate in candidates]
    if wanted not in names and what != PLANS:
        unit = stage_of(what)
        variant = (
            find_span(unit.kind, wanted, device)
            if "+" in what
            else find(unit.kind, wanted, device, what)
        )
        wanted = variant.full_name if variant is not None else wanted
    if wanted not in names:
        raise LenetError(f"--reference {wanted}: expected one of {', '.join(names)}")
    return wanted


@contextmanager
def _stopping(comparison: Comparison) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        comparison.interrupted = True


def compare(
    what: str,
    candidates: list[Candidate],
    reference: str,
    seconds: float,
    cold_l2: bool = False,
    noise: float = NOISE,
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Check every candidate, then time the right ones in rounds of random order.

    Rounds end when every ratio's interval is narrower than `noise` (before it is widened for what
    differs between processes) or `seconds` have passed; Ctrl-C ends them and keeps what there is.
    A candidate that does not fit in memory is skipped.
    """
    comparison = Comparison(what, reference, candidates, [], cold_l2)
    with _stopping(comparison):
        flush = Flusher() if cold_l2 else None
        for candidate in candidates:
            if candidate.status == "waiting":
                say(f"checking {candidate.name}")
                _check(candidate, flush)
        _time(comparison, seconds, noise, say)
    for candidate in candidates:
        if candidate.status == "right" and not candidate.samples:
            candidate.note = "not timed"
    return comparison


def _check(candidate: Candidate, flush: Flusher | None) -> None:
    try:
        candidate.bench = candidate.build()
        if flush is not None and isinstance(candidate.bench, StageBench):
            candidate.bench.use_cold_cache(flush)
        candidate.checked = candidate.bench.check()
    except MemoryError as error:
        candidate.status, candidate.bench = "skipped", None
        candidate.note = f"needs more memory: {str(error).splitlines()[0]}"
        return
    except Skip as reason:
        candidate.status, candidate.bench, candidate.note = "skipped", None, str(reason)
        return
    except Exception as error:  # one that breaks is named, and stops no other
        candidate.status, candidate.bench = "failed", None
        candidate.note = f"cannot run: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return
    candidate.status = "right" if candidate.checked.verdict.passed else "wrong"


def _time(comparison: Comparison, seconds: float, noise: float, say: Callable[[str], None]) -> None:
    right = [c for c in comparison.candidates if c.status == "right" and c.bench is not None]
    for candidate in right:
        assert candidate.bench is not None
        if candidate.once:
            say(f"timing {candidate.name} once")
            candidate.samples.append(candidate.bench.sample())
    timed = [candidate for candidate in right if not candidate.once]
    base = next((c for c in timed if c.name == comparison.reference), None)
    for candidate in timed:
        assert candidate.bench is not None
        candidate.bench.sample()
    if not timed:
        return
    order = random.Random(0)
    start = time.perf_counter()
    for round_number in range(MOST_ROUNDS):
        entries: list[tuple[Bench, list[float]]] = [
            (c.bench, c.samples) for c in timed if c.bench is not None
        ]
        if base is not None and base.bench is not None:
            entries.append((base.bench, comparison.again))
        order.shuffle(entries)
        for bench, samples in entries:
            samples.append(bench.sample())
        spent = time.perf_counter() - start
        say(f"round {round_number + 1}, {spent:.0f} s")
        if round_number + 1 < LEAST_ROUNDS:
            continue
        if spent > seconds or _quiet(timed, base, noise):
            break


def _quiet(timed: list[Candidate], base: Candidate | None, noise: float) -> bool:
    if base is None:
        return all(median_interval(c.samples).half_width < noise for c in timed)
    return all(
        median_interval(
            [a / b for a, b in zip(c.samples, base.samples, strict=True)]
        ).half_width < noise
        for c in timed
        if c is not base
    )  # fmt: skip


def candidate_json(
    comparison: Comparison, candidate: Candidate, limits: Ceilings | None
) -> dict[str, Any]:
    """One entry of `candidates`: its check, its samples, its ratio to the reference."""
    entry: dict[str, Any] = {
        "name": candidate.name,
        "precision": candidate.precision,
        "status": candidate.status,
        "note": candidate.note,
    }
    if candidate.checked is not None:
        checked = candidate.checked
        entry |= {
            "max_error": checked.largest,
            "relative_error": checked.verdict.error,
            "tolerance": checked.verdict.tolerance,
            "label_flips": checked.flips,
            "checked_images": checked.images,
            "first_bad_stage": checked.first_bad,
        }
    if not candidate.samples or candidate.bench is None:
        return entry
    summary, bench = summarise(candidate.samples), candidate.bench
    entry |= {
        "images": bench.images,
        "scaled_from": bench.scaled_from,
        "median_ms": summary.median,
        "p05_ms": summary.p05,
        "p95_ms": summary.p95,
        "samples_ms": summary.samples,
    }
    ratio = comparison.ratio(candidate)
    if ratio is not None:
        entry["ratio"] = {"median": ratio.value, "low": ratio.low, "high": ratio.high}
        is_reference = candidate.name == comparison.reference
        entry["verdict"] = "reference" if is_reference else ratio.verdict()
    if bench.problem is not None:
        problem, n = bench.problem, bench.images
        flop, moved, took = problem.flop(n), problem.bytes(n), summary.median / 1e3
        entry |= rates_json(flop, moved, took, candidate.precision, limits)
        entry |= {"reads": problem.reads, "writes": problem.writes}
        entry |= launch_json(bench.launched)
    else:
        entry["images_per_second"] = bench.images / (summary.median / 1e3)
    return entry


def comparison_json(
    comparison: Comparison, device: dict[str, Any], limits: Ceilings | None
) -> dict[str, Any]:
    """`lenetgpu compare --json`, with every raw sample."""
    control = comparison.control()
    return {
        "schema": 1,
        "command": "compare",
        "date": datetime.date.today().isoformat(),
        "what": comparison.what,
        "device": device,
        "reference": comparison.reference,
        "cold_l2": comparison.cold_l2,
        "interrupted": comparison.interrupted,
        "reference_again": None
        if control is None
        else {
            "ratio": {"median": control.value, "low": control.low, "high": control.high},
            "samples_ms": comparison.again,
        },
        "candidates": [candidate_json(comparison, c, limits) for c in comparison.candidates],
    }
