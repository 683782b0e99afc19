"""The JSON document of convolutions, and its tables."""

from collections.abc import Iterator, Mapping
from statistics import geometric_mean
from typing import Any

from lenetgpu.files.convs.described import as_line
from lenetgpu.lab.compare import INTERRUPTED, fastest_first, judged, legend
from lenetgpu.lab.tables import Part, Table, from_file, status_word
from lenetgpu.measure.document import again_json, candidate_json
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.rounds import Comparison
from lenetgpu.papers import shapes
from lenetgpu.papers.shapes import Shape, Suite
from lenetgpu.problems import Conv

CONVOLVED = from_file("convolved")
_IN_FILES_ONLY = ("label", "note", "blocks_per_sm", "limited_by")
_PRINTED = [column for column in CONVOLVED if column.key not in _IN_FILES_ONLY]
SUMMED, LAYERS, WHOLES = map(from_file, ("summed", "layers", "wholes"))
STEPS, EXPLAINED = from_file("convnet2 steps"), from_file("explained")
LISTED = from_file(
    "listed",
    between=lambda counts: " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)})),
)


def shape_text(problem: Conv) -> str:
    """Format `problem` as SHAPE with options, or as a benchdnn descriptor if SHAPE cannot."""
    k = str(problem.R) if problem.R == problem.S else f"{problem.R}x{problem.S}"
    sizes = (problem.C, problem.H, problem.W, problem.M, k, problem.stride, problem.pad)
    options = {"--bias": problem.bias, "--relu": problem.relu}
    options[f"--dtype {problem.dtype}"] = problem.dtype != "fp32"
    plain = problem.requires <= {"bias", "relu", problem.dtype}
    words = ",".join(map(str, sizes)) if plain else as_line(problem)
    return " ".join([words, *(option for option, given in options.items() if given)])


def _epilogue_json(problem: Conv) -> dict[str, Any]:
    return {"bias": problem.bias, "relu": problem.relu, "dtype": problem.dtype}


def _without(entry: dict[str, Any]) -> dict[str, Any]:
    """Return `entry` without keys that convolutions do not have or that are too long."""
    unused = ("label_flips", "first_bad_stage", "samples_ms", "scaled_from")
    return {key: value for key, value in entry.items() if key not in unused}


def _present(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if value is not None}


def case_json(
    shape: Shape, comparison: Comparison, limits: Ceilings, peer: str | None
) -> dict[str, Any]:
    """Return an entry of `cases`: the shape, its work, all candidates, and the fastest fp32 one."""
    problem, n = shape.problem, shape.batch
    flop, moved = problem.flop(n), problem.bytes(n)
    entries = []
    for candidate in comparison.candidates:
        entry = _without(candidate_json(comparison, candidate, limits))
        if entry.get("ratio"):
            entry["speedup"] = 1 / entry["ratio"]["median"]
        entries.append(_present(entry))
    fp32 = {
        entry["name"]: entry["median_ms"]
        for entry in entries
        if entry.get("median_ms") and entry["name"] != peer and entry["precision"] == "fp32"
    }
    again = again_json(comparison, limits)
    return {
        "label": shape.label,
        "shape": shape_text(problem),
        **_epilogue_json(problem),
        "images": n,
        "count": shape.count,
        "paper": shape.paper,
        "gflop": flop / 1e9,
        "mbytes": moved / 1e6,
        "intensity": flop / moved,
        "baseline": comparison.baseline,
        "baseline_again": again and _without(again),
        "rounds": comparison.rounds,
        "interrupted": comparison.interrupted,
        "best": min(fp32, key=lambda name: fp32[name], default=None),
        "candidates": entries,
    }


def suite_json(suite: Suite | None) -> dict[str, Any]:
    """Return the document's fields on the suite, or on none."""
    if suite is None:
        return {"suite": None, "title": "", "claim": None, "notes": [], "source": None}
    return {
        "suite": suite.name or None,
        "title": suite.title,
        "claim": suite.says,
        "notes": list(suite.notes),
        "source": suite.source or None,
    }


def _timed(case: dict[str, Any], name: str | None) -> dict[str, Any] | None:
    """Return the candidate called `name` if it was timed; for None, the fastest fp32 one."""
    timed = {entry["name"]: entry for entry in case["candidates"] if entry.get("median_ms")}
    return timed.get(name or case["best"])


def _every(cases: list[dict[str, Any]]) -> dict[str | None, None]:
    """Return the candidates' names, after None for the fastest of each case."""
    return {None: None} | dict.fromkeys(e["name"] for case in cases for e in case["candidates"])


def summary_json(cases: list[dict[str, Any]], suite: Suite) -> list[dict[str, Any]]:
    """Return speed-ups over the baseline: of each shape's fastest fp32 variant, then by variant."""
    rows = []
    for name in _every(cases):
        timed = (_timed(case, name) for case in cases)
        speedups = [entry["speedup"] for entry in timed if entry and "speedup" in entry]
        if name is None or speedups:
            row = {
                "name": name or "fastest fp32 of each shape",
                "shapes": f"{len(speedups)} of {len(cases)}",
                "geomean": geometric_mean(speedups) if speedups else None,
                "least": min(speedups, default=None),
                "most": max(speedups, default=None),
                "paper": suite.says if name in suite.literal else None,
            }
            rows.append(row)
    return sorted(rows, key=lambda row: -(row["geomean"] or 0.0))


def network_json(
    rows: list[shapes.Row], commands: list[str | None], cases: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a network's convolutions, and total times by variant; repeats count each time."""
    measured = {case["label"]: case for case in cases}
    entries = []
    for row, command in zip(rows, commands, strict=True):
        problem, case = row.problem, measured.get(row.label)
        entry: dict[str, Any] = {"label": row.label, "count": row.count, "command": command}
        entry["unsupported"] = None if isinstance(row, Shape) else row.why
        if problem is not None:
            entry |= {"shape": shape_text(problem), "images": row.batch, **_epilogue_json(problem)}
            entry["gflop"] = problem.flop(row.batch) / 1e9
        if case is not None and (best := _timed(case, None)) is not None:
            entry |= {"name": best["name"], "ms": best["median_ms"]}
            if (over := _timed(case, case["baseline"])) is not None:
                ms = over["median_ms"]
                entry |= {"baseline_ms": ms, "speedup": ms / best["median_ms"]}
        entries.append(_present(entry))
    gflop = sum(entry["count"] * entry.get("gflop", 0.0) for entry in entries)
    convolutions = sum(row.count for row in rows)
    sums = [_sum(name, cases, convolutions, gflop) for name in _every(cases)]
    return {
        "convolutions": convolutions,
        "supported": sum(row.count for row in rows if isinstance(row, Shape)),
        "gflop": gflop,
        "rows": entries,
        "sums": sorted((s for s in sums if s["over"]), key=lambda s: (-s["over"], s["ms"])),
    }


def _sum(name: str | None, cases: list[dict[str, Any]], of: int, gflop: float) -> dict[str, Any]:
    """Return a candidate's total over the convolutions it was timed on, and the baseline's."""
    timed = [(case, entry) for case in cases if (entry := _timed(case, name))]
    baselines = [(case, _timed(case, case["baseline"])) for case, _ in timed]
    ms = sum(case["count"] * entry["median_ms"] for case, entry in timed)
    baseline_ms = None
    if timed and all(entry for _, entry in baselines):
        baseline_ms = sum(case["count"] * entry["median_ms"] for case, entry in baselines if entry)
    covered = sum(case["count"] * case["gflop"] for case, _ in timed)
    return {
        "name": name or "fastest fp32 of each",
        "over": sum(case["count"] for case, _ in timed),
        "of": of,
        "gflop_share": covered / gflop if gflop else None,
        "ms": ms,
        "baseline_ms": baseline_ms,
        "speedup": baseline_ms / ms if baseline_ms else None,
    }


def case_rows(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a shape's candidates as rows, fastest first, those without times last."""
    rows = []
    again = case.get("baseline_again")
    controls = [again] if again and "name" in again else []
    for entry in fastest_first([*case["candidates"], *controls]):
        shown = judged(entry) | {"label": case["label"]}
        shown["rms_error"] = (entry.get("same_images") or {}).get("rms")
        for key in ("median", "p05", "p95", "p99"):
            ms = entry.get(f"{key}_ms")
            shown[f"{key}_us"] = ms and 1e3 * ms
        if entry.get("reads"):
            shown["layout"] = " to ".join(dict.fromkeys([entry["reads"], entry["writes"]]))
        if entry["status"] == "wrong" and not entry.get("note"):
            error, tolerance = entry["relative_error"], entry["tolerance"]
            reason = f"error {error:.1e}, tolerance {tolerance:.0e}"
            shown["note"] = "; ".join(filter(None, [reason, shown["note"]]))
        rows.append(shown)
    return rows


def layers(network: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a network's convolutions as rows, with their shares of the sum of the fastest."""
    rows = []
    total = sum(row["count"] * (row.get("ms") or 0.0) for row in network["rows"])
    for row in network["rows"]:
        ms, baseline = row.get("ms"), row.get("baseline_ms")
        us = {"us": ms and 1e3 * ms, "baseline_us": baseline and 1e3 * baseline}
        rows.append({**row, "share": row["count"] * ms / total if ms else None, **us})
    return rows


def wholes(network: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return totals as rows, each with the number of convolutions that it covers."""
    return [{**row, "supported": f"{row['over']} of {row['of']}"} for row in network["sums"]]


def table(document: Mapping[str, Any]) -> Table:
    """Return one table of all shapes' candidates, or the listing of `conv --list`."""
    if "suites" in document:
        return Table(LISTED, document["suites"])
    if "cases" not in document:
        return Table(LAYERS, layers(document["network"]))
    rows = [row for case in document["cases"] for row in case_rows(case)]
    rows += [
        row | {"check": "unsupported", "note": row["unsupported"]}
        for row in document.get("network", {}).get("rows", [])
        if "unsupported" in row
    ]
    return Table(CONVOLVED, rows)


def parts(document: Mapping[str, Any]) -> Iterator[Part]:
    """Yield per shape a table and its legend, and for a suite totals; or what --list lists."""
    if "suites" in document:
        yield Table(LISTED, document["suites"], "lenetgpu conv --suite NAME")
        return
    if "cases" in document:
        device, peer = document["device"]["name"], document["peer"] or "no PyTorch to compare with"
        name = f"suite {document['suite']}: " if document["suite"] else ""
        heading = f"{name}{document['title']}, " if document["title"] else ""
        yield f"{heading}{device}, {peer}, {'cold L2' if document['cold_l2'] else 'warm L2'}"
    if document["claim"]:
        yield f"the paper: {document['claim']}"
    if document["source"]:
        yield f"source: {document['source']}"
    yield from document["notes"]
    for case in document.get("cases", ()):
        yield from _of_case(case, bool(document["title"]))
    if document.get("summary"):
        title = f"speed-up over {document['baseline']}, all shapes"
        yield Table(SUMMED, document["summary"], title)
    if document.get("network"):
        yield from _of_network(document["network"], document.get("baseline", ""))
    if document.get("interrupted"):
        yield INTERRUPTED


def _of_network(network: Mapping[str, Any], baseline: str) -> Iterator[Part]:
    of, rows, gflop = network["convolutions"], layers(network), network["gflop"]
    over = f", baseline {baseline}" if baseline else ""
    title = f"{len(rows)} distinct of {of:,} convolutions{over}"
    yield Table(LAYERS, rows, title, below="unsupported")
    line = f"supported: {network['supported']:,} of {of:,} convolutions"
    if gflop:
        supported = (row for row in rows if not row.get("unsupported"))
        share = sum(row["count"] * row.get("gflop", 0) for row in supported) / gflop
        line += f", {share:.1%} of {gflop:,.3g} GFLOP"
    yield line
    if sums := wholes(network):
        yield Table(WHOLES, sums, "all convolutions, repeats included")


def tuned_line(tuned: Mapping[str, Any]) -> str:
    """Return what `conv --tune` cached for a shape, and what the cost model would dispatch."""
    algorithm, model, why = tuned["algorithm"], tuned["model"], tuned["why"]
    if algorithm is None:
        return f"best.fp32: no choice cached: {why}"
    line = f"best.fp32 dispatches {algorithm}, {tuned['us'][algorithm]:,.2f} us"
    if tuned["load"]:
        line += f", measured while {tuned['load']:.0f} other processes ran"
    if why:
        line = f"best.fp32: {algorithm} is the fastest, but the choice is not cached: {why}"
    if tuned["before"] != algorithm:
        line += f"; before, it dispatched {tuned['before']}"
    if model == algorithm:
        return f"{line}; the model agrees"
    off = tuned["off"]
    time = "not timed" if off is None else f"{tuned['us'][model]:,.2f} us, {off:.2f}x"
    return f"{line}; the model predicts {model}, {time}"


def _of_case(case: Mapping[str, Any], in_suite: bool) -> Iterator[Part]:
    rows = case_rows(case)
    label = f"{case['label']}: " if in_suite else ""
    title = f"{label}{case['shape']}, batch {case['images']:,}: {case['gflop']:,.3g} GFLOP, "
    title += f"{case['mbytes']:,.3g} MB, {case['intensity']:,.3g} FLOP/byte"
    if case["paper"]:
        title += f"; the paper: {case['paper']}"
    shown = [row for row in rows if row["status"] != "refused"]
    yield from [Table(_PRINTED, shown, title)] if shown else [title, "nothing to run here"]
    for row in rows:
        if row["note"]:
            yield f"{row['name']}: {'refused, ' * (row['status'] == 'refused')}{row['note']}"
    if case.get("tuned"):
        yield tuned_line(case["tuned"])
    if in_suite:
        yield f"again: {case['command']}"
    if case["rounds"]:
        yield legend(case["baseline"], case["rounds"])
    if case.get("ladder"):
        title = f"the paper's ladder, {case['label']}: convolution only, steps interleaved"
        steps = []
        for step in case["ladder"]:
            gain, note = step.get("paper_gain"), step["note"] or step.get("what")
            more = {"check": status_word(step), "note": note}
            steps.append({**step, **more, "paper_ratio": None if gain is None else 1 / (1 - gain)})
        yield Table(STEPS, steps, title)
    if case.get("explanation"):
        lines = [
            {"about": "" if index else section["about"], "what": name, "found": value}
            for section in case["explanation"]
            for index, (name, value) in enumerate(section["rows"])
        ]
        yield Table(EXPLAINED, lines, "explanation")
