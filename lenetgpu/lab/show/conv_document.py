"""The JSON document of convolutions: a case per shape, a summary per suite."""

from __future__ import annotations

import math
from typing import Any

from lenetgpu.check.judge import PRECISE
from lenetgpu.files.convs.described import as_line
from lenetgpu.measure.comparison import Comparison
from lenetgpu.measure.document import again_json, candidate_json
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.papers.shapes import Row, Shape, Suite
from lenetgpu.problems import Conv


def shape_text(problem: Conv) -> str:
    """`problem` as the command takes it; filters that are not square as RxS.

    What SHAPE has no place for makes it a line of benchdnn, what is no size options behind it.
    """
    k = str(problem.R) if problem.R == problem.S else f"{problem.R}x{problem.S}"
    sizes = (problem.C, problem.H, problem.W, problem.M, k, problem.stride, problem.pad)
    told = {"--bias": problem.bias, "--relu": problem.relu}
    told[f"--dtype {problem.dtype}"] = problem.dtype != "fp32"
    plain = problem.wants <= {"bias", "relu", problem.dtype}
    words = ",".join(map(str, sizes)) if plain else as_line(problem)
    return " ".join([words, *(option for option, said in told.items() if said)])


def _ends_json(problem: Conv) -> dict[str, Any]:
    """What happens at both ends of the sums, and how they are held."""
    return {"bias": problem.bias, "relu": problem.relu, "dtype": problem.dtype}


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
        **_ends_json(problem),
        "images": n,
        "count": shape.count,
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


def about_suite(suite: Suite | None) -> dict[str, Any]:
    """What the document says of the suite, or of none."""
    if suite is None:
        return {"suite": None, "title": "", "claim": None, "notes": [], "source": None}
    return {
        "suite": suite.name or None,
        "title": suite.title,
        "claim": suite.says,
        "notes": list(suite.notes),
        "source": suite.source or None,
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


def network_json(
    rows: list[Row], commands: list[str | None], cases: list[dict[str, Any]]
) -> dict[str, Any]:
    """A network's convolutions, a row each, and their times' sums, each as often as it is there.

    `cases` are what was measured of them, by their labels; a sum says how many convolutions it is
    over, for not every variant takes every one.
    """
    measured = {case["label"]: case for case in cases}
    found = []
    for row, command in zip(rows, commands, strict=True):
        entry = row_json(row) | {"command": command}
        entry |= _fastest(measured.get(row.label))
        found.append({key: value for key, value in entry.items() if value is not None})
    counted = {row.label: row.count for row in rows}
    names = dict.fromkeys(e["name"] for case in cases for e in case["candidates"])
    sums = [_sum(None, "fastest fp32 of each", cases, found)]
    sums += [_sum(name, name, cases, found) for name in names]
    return {
        "convolutions": sum(counted.values()),
        "taken": sum(row.count for row in rows if isinstance(row, Shape)),
        "gflop": sum(entry["count"] * entry.get("gflop", 0.0) for entry in found),
        "rows": found,
        "sums": sorted((s for s in sums if s["over"]), key=lambda s: (-s["over"], s["ms"])),
    }


def row_json(row: Row) -> dict[str, Any]:
    """A convolution as it was asked for: its shape, its work, and why it is not taken."""
    problem: Conv | None = None
    if isinstance(row, Shape):
        problem, images, why = row.problem, row.batch, None
    else:
        why = row.given.why
        if row.given.asked is not None:
            problem, images = row.given.asked.conv, row.given.asked.images
    sizes: dict[str, Any] = dict.fromkeys(("shape", "images", "gflop"))
    if problem is not None:
        sizes = {
            "shape": shape_text(problem), "images": images, "gflop": problem.flop(images) / 1e9,
            **_ends_json(problem),
        }  # fmt: skip
    return {"label": row.label, **sizes, "count": row.count, "not_taken": why}


def _timed(case: dict[str, Any], name: str | None) -> dict[str, Any] | None:
    """The candidate of that name where it was timed; of no name, the fastest fp32 one."""
    wanted = case["best"] if name is None else name
    every = case["candidates"]
    return next((e for e in every if e["name"] == wanted and e.get("median_ms")), None)


def _fastest(case: dict[str, Any] | None) -> dict[str, Any]:
    best = None if case is None else _timed(case, None)
    if case is None or best is None:
        return {}
    over = _timed(case, case["reference"])
    return {
        "name": best["name"],
        "ms": best["median_ms"],
        "reference_ms": over and over["median_ms"],
        "speedup": over and over["median_ms"] / best["median_ms"],
    }


def _sum(
    name: str | None, label: str, cases: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Over the convolutions that a candidate was timed on, and of the reference over the same."""
    over, gflop, ms = 0, 0.0, 0.0
    reference: float | None = 0.0
    for case in cases:
        timed, beside = _timed(case, name), _timed(case, case["reference"])
        if timed is None:
            continue
        over += case["count"]
        gflop += case["count"] * case["gflop"]
        ms += case["count"] * timed["median_ms"]
        if reference is not None:
            reference = reference + case["count"] * beside["median_ms"] if beside else None
    whole = sum(row["count"] * row.get("gflop", 0.0) for row in rows)
    return {
        "name": label,
        "over": over,
        "of": sum(row["count"] for row in rows),
        "gflop_share": gflop / whole if whole else None,
        "ms": ms,
        "reference_ms": reference or None,
        "speedup": reference / ms if reference and ms else None,
    }
