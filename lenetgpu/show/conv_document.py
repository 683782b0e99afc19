"""The JSON document of convolutions: a case per shape, a summary per suite."""

from __future__ import annotations

import math
from typing import Any

from lenetgpu.check.judge import PRECISE
from lenetgpu.measure.comparison import Comparison
from lenetgpu.measure.document import again_json, candidate_json
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.papers.shapes import Shape, Suite
from lenetgpu.problems import Conv


def shape_text(problem: Conv) -> str:
    """`problem` as the command takes it; filters that are not square as RxS."""
    k = str(problem.R) if problem.R == problem.S else f"{problem.R}x{problem.S}"
    sizes = (problem.C, problem.H, problem.W, problem.M, k, problem.stride, problem.pad)
    return ",".join(map(str, sizes))


def _without(entry: dict[str, Any]) -> dict[str, Any]:
    """`entry` without what a convolution does not have, or has too much of."""
    unused = ("label_flips", "first_bad_stage", "samples_ms", "scaled_from")
    return {key: value for key, value in entry.items() if key not in unused}


def case_json(
    shape: Shape, comparison: Comparison, limits: Ceilings, peer: str | None
) -> dict[str, Any]:
    """One entry of `cases`: the shape, its work, every candidate, and the fastest fp32 one."""
    problem, n = shape.problem, shape.batch
    flop, moved = problem.flop(n), problem.bytes(n)
    entries = []
    for candidate in comparison.candidates:
        entry = _without(candidate_json(comparison, candidate, limits))
        if entry.get("ratio"):
            entry["speedup"] = 1 / entry["ratio"]["median"]
        entries.append({key: value for key, value in entry.items() if value is not None})
    own = [e for e in entries if e.get("median_ms") and e["name"] != peer]
    own = [e for e in own if e["precision"] in PRECISE]
    plain = [e for e in own if e["precision"] == "fp32"]
    again = again_json(comparison, limits)
    return {
        "label": shape.label,
        "shape": shape_text(problem),
        "images": n,
        "paper": shape.paper,
        "gflop": flop / 1e9,
        "mbytes": moved / 1e6,
        "intensity": flop / moved,
        "reference": comparison.reference,
        "reference_again": again and _without(again),
        "rounds": comparison.rounds,
        "interrupted": comparison.interrupted,
        "best": min(plain, key=lambda e: e["median_ms"])["name"] if plain else None,
        "candidates": entries,
    }


def geometric_mean(values: list[float]) -> float | None:
    """Geometric mean of positive values, None of none."""
    if not values:
        return None
    return math.exp(sum(map(math.log, values)) / len(values))


def summary_json(cases: list[dict[str, Any]], suite: Suite) -> list[dict[str, Any]]:
    """Speed-ups over the reference: of the fastest fp32 variant a shape, then of each variant."""
    best = [
        entry["speedup"]
        for case in cases
        for entry in case["candidates"]
        if entry["name"] == case["best"] and "speedup" in entry
    ]
    rows = [_summary_row("fastest fp32 of each shape", best, len(cases), suite, "")]
    named: dict[str, list[float]] = {}
    for case in cases:
        for entry in case["candidates"]:
            if "speedup" in entry:
                named.setdefault(entry["name"], []).append(entry["speedup"])
    for name, found in named.items():
        rows.append(_summary_row(name, found, len(cases), suite, name))
    return sorted(rows, key=lambda row: -(row["geomean"] or 0.0))


def _summary_row(
    label: str, found: list[float], shapes: int, suite: Suite, name: str
) -> dict[str, Any]:
    return {
        "name": label,
        "shapes": f"{len(found)} of {shapes}",
        "geomean": geometric_mean(found),
        "least": min(found, default=None),
        "most": max(found, default=None),
        "paper": suite.says if name in suite.literal else None,
    }
