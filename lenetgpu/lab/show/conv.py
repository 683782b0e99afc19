"""Convolutions of any shape as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.lab.show.tables import (
    LAUNCH_COLUMNS,
    MACHINE_COLUMNS,
    STATUS_WORDS,
    Column,
    as_rich,
    candidate_row,
    fitting,
    fixed,
    legend,
    noted,
    percent,
    short_error,
    significant,
    used,
)

if TYPE_CHECKING:
    from rich.console import Console


def some(counts: list[int]) -> str:
    """One number, or the least and the most."""
    found = {min(counts, default=0): "", max(counts, default=0): ""}
    return " to ".join(f"{count:,}" for count in found)


COLUMNS = (
    Column("shape", "label", numeric=False),
    Column("candidate", "name", numeric=False),
    Column("precision", "precision", numeric=False),
    Column("layout", "layout", numeric=False),
    Column("check", "check", numeric=False),
    Column("error", "relative_error", short_error),
    Column("rms error", "rms_error", short_error),
    Column("bits", "bits", numeric=False),
    Column("median us", "median_us", fixed(2)),
    Column("p05 us", "p05_us", fixed(2)),
    Column("p95 us", "p95_us", fixed(2)),
    Column("p99 us", "p99_us", fixed(2)),
    Column("ratio", "ratio", fixed(3)),
    Column("95 % from", "low", fixed(3)),
    Column("to", "high", fixed(3)),
    Column("verdict", "verdict", numeric=False),
    Column("speed-up", "speedup", fixed(2)),
    Column("TFLOP/s", "tflops", significant(3)),
    Column("GB/s", "gbs", fixed(0)),
    Column("of the roof", "roofline", percent),
    Column("bound by", "bound", numeric=False),
    *LAUNCH_COLUMNS,
    *MACHINE_COLUMNS,
    Column("timed by", "method", numeric=False),
    Column("note", "note", numeric=False),
    Column("again", "command", numeric=False),
)
SUMMARY_COLUMNS = (
    Column("candidate", "name", numeric=False),
    Column("shapes", "shapes"),
    Column("geometric mean", "geomean", fixed(2)),
    Column("least", "least", fixed(2)),
    Column("most", "most", fixed(2)),
    Column("the paper's", "paper", numeric=False),
)
NETWORK_COLUMNS = (
    Column("convolution", "label", numeric=False),
    Column("shape", "shape", numeric=False),
    Column("images", "images", fixed(0)),
    Column("times", "count"),
    Column("GFLOP each", "gflop", significant(3)),
    Column("fastest fp32", "name", numeric=False),
    Column("us each", "us", fixed(2)),
    Column("of the sum", "share", percent),
    Column("reference us", "reference_us", fixed(2)),
    Column("speed-up", "speedup", fixed(2)),
    Column("not taken", "not_taken", numeric=False),
    Column("again", "command", numeric=False),
)
SUITES_COLUMNS = (
    Column("suite", "name", numeric=False),
    Column("what", "title", numeric=False),
    Column("distinct", "shapes"),
    Column("taken", "taken"),
    Column("convolutions", "convolutions"),
    Column("images", "images", some),
    Column("source", "source", numeric=False),
)
SUM_COLUMNS = (
    Column("sum of", "name", numeric=False),
    Column("convolutions", "taken", numeric=False),
    Column("of the GFLOP", "gflop_share", percent),
    Column("ms", "ms", fixed(3)),
    Column("reference ms", "reference_ms", fixed(3)),
    Column("speed-up", "speedup", fixed(2)),
)
LADDER_COLUMNS = (
    Column("section", "section", numeric=False),
    Column("the paper's step", "step", numeric=False),
    Column("over", "before", numeric=False),
    Column("check", "check", numeric=False),
    Column("us", "median_us", fixed(2)),
    Column("with relayouts", "whole_us", fixed(2)),
    Column("cycles", "cycles", fixed(0)),
    Column("there", "paper_cycles", fixed(0)),
    Column("regs/thread", "registers"),
    Column("local B/thread", "local_bytes"),
    Column("shared B/block", "shared_bytes"),
    Column("instructions", "instructions", fixed(0)),
    Column("gain here", "ratio", fixed(2)),
    Column("gain there", "paper_ratio", fixed(2)),
    Column("since the first", "total_ratio", fixed(2)),
    Column("note", "note", numeric=False),
)
EXPLANATION_COLUMNS = (
    Column("about", "about", numeric=False),
    Column("what", "what", numeric=False),
    Column("found", "found", numeric=False),
)
_IN_THE_FILES_ONLY = ("label", "note", "blocks_per_sm", "limited_by")
_IN_A_CASE = tuple(column for column in COLUMNS if column.key not in _IN_THE_FILES_ONLY)


def case_rows(case: dict[str, Any]) -> list[dict[str, Any]]:
    """A shape's candidates as table rows, fastest first, those without times last."""
    rows = []
    again = case["reference_again"]
    for entry in case["candidates"] + ([again] if again and "name" in again else []):
        row = candidate_row(entry) | {"label": case["label"]}
        if "same_images" in entry:
            row["rms_error"] = entry["same_images"]["rms"]
        for key in ("median", "p05", "p95", "p99"):
            if f"{key}_ms" in entry:
                row[f"{key}_us"] = 1e3 * entry[f"{key}_ms"]
        if "reads" in entry:
            both = (entry["reads"], entry["writes"])
            row["layout"] = both[0] if both[0] == both[1] else " to ".join(both)
        if entry["status"] == "wrong" and not entry.get("note"):
            error, tolerance = entry["relative_error"], entry["tolerance"]
            row["note"] = f"error {error:.1e}, tolerance {tolerance:.0e}"
        row["note"] = noted(row)
        rows.append(row)
    return sorted(rows, key=lambda row: row.get("median_ms", float("inf")))


def ladder_rows(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps with the paper's saving of time as a ratio, and its remark where there is no note."""
    rows = []
    for step in steps:
        row = step | {"check": STATUS_WORDS[step["status"]]}
        if step.get("paper_gain") is not None:
            row["paper_ratio"] = 1 / (1 - step["paper_gain"])
        row["note"] = step["note"] or step.get("what")
        rows.append(row)
    return rows


def network_rows(network: dict[str, Any]) -> list[dict[str, Any]]:
    """A network's convolutions as table rows, with their shares of the sum of the fastest."""
    rows = []
    whole = sum(row["count"] * (row.get("ms") or 0.0) for row in network["rows"])
    for row in network["rows"]:
        ms, reference = row.get("ms"), row.get("reference_ms")
        share = row["count"] * ms / whole if ms else None
        times = {"us": ms and 1e3 * ms, "reference_us": reference and 1e3 * reference}
        rows.append(row | times | {"share": share})
    return rows


def sum_rows(network: dict[str, Any]) -> list[dict[str, Any]]:
    """Sums as table rows, each with how many convolutions it is over."""
    return [row | {"taken": f"{row['over']} of {row['of']}"} for row in network["sums"]]


def table(document: dict[str, Any]) -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    """Every shape's candidates in one table, for Markdown and CSV."""
    rows = [row for case in document["cases"] for row in case_rows(case)]
    rows += [
        row | {"check": "not taken", "note": row["not_taken"]}
        for row in document.get("network", {}).get("rows", [])
        if "not_taken" in row
    ]
    return used(COLUMNS, rows), rows


def listed(document: dict[str, Any]) -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    """What `conv --list` found as one table."""
    columns = SUITES_COLUMNS if "suites" in document else NETWORK_COLUMNS
    rows = document["suites"] if "suites" in document else network_rows(document["network"])
    return used(columns, rows), rows


def print_listed(console: Console, document: dict[str, Any]) -> None:
    """The suites, or a row a distinct convolution with how many of them are taken."""
    if "suites" in document:
        columns, rows = listed(document)
        console.print(as_rich(columns, rows, "lenetgpu conv --suite NAME", width=console.width))
        return
    _print_about(console, document)
    print_network(console, document["network"])


def _print_about(console: Console, document: dict[str, Any]) -> None:
    """What a suite claims, where it is from, and how it was read."""
    if document["claim"]:
        console.print(f"the paper: {document['claim']}", highlight=False)
    if document["source"]:
        console.print(f"source: {document['source']}", highlight=False, soft_wrap=True)
    for note in document["notes"]:
        console.print(note, highlight=False, soft_wrap=True)


def print_conv(console: Console, document: dict[str, Any]) -> None:
    """A table a shape, what its ratios rest on, explanations where asked, and a suite's summary."""
    device, peer = document["device"]["name"], document["peer"] or "no PyTorch beside it"
    named = f"suite {document['suite']}: " if document["suite"] else ""
    heading = f"{named}{document['title']}, " if document["title"] else ""
    cache = "cold L2" if document["cold_l2"] else "warm L2"
    console.print(f"{heading}{device}, {peer}, {cache}", highlight=False)
    _print_about(console, document)
    for case in document["cases"]:
        _print_case(console, case, bool(document["title"]))
    if document.get("summary"):
        title = f"speed-up over {document['reference']}, all shapes"
        rows = document["summary"]
        console.print(as_rich(used(SUMMARY_COLUMNS, rows), rows, title, width=console.width))
    if document.get("network"):
        print_network(console, document["network"], document["reference"])
    if document["interrupted"]:
        console.print("interrupted: what was measured until then", highlight=False)


def print_network(console: Console, network: dict[str, Any], reference: str = "") -> None:
    """A row a distinct convolution, also of those not taken, and what they take together."""
    of, taken = network["convolutions"], network["taken"]
    rows = network_rows(network)
    over = f" beside {reference}" if reference else ""
    title = f"{len(rows)} distinct of {of:,} convolutions{over}"
    columns = used(NETWORK_COLUMNS, rows)
    console.print(as_rich(columns, rows, title, width=console.width))
    if "not_taken" not in [column.key for column in fitting(columns, rows, console.width)]:
        for row in rows:
            if row.get("not_taken"):
                line = f"{row['label']}: not taken: {row['not_taken']}"
                console.print(line, highlight=False, soft_wrap=True)
    line = f"taken: {taken:,} of {of:,} convolutions"
    if network["gflop"]:
        held = sum(r["count"] * r.get("gflop", 0) for r in rows if not r.get("not_taken"))
        line += f", {held / network['gflop']:.1%} of {network['gflop']:,.3g} GFLOP"
    console.print(line, highlight=False)
    if sums := sum_rows(network):
        title = "all of them, each as often as it is there"
        console.print(as_rich(used(SUM_COLUMNS, sums), sums, title, width=console.width))


def tuned_line(tuned: dict[str, Any]) -> str:
    """What `conv --tune` kept of a shape, and what the model would have taken."""
    algorithm, model = tuned["algorithm"], tuned["model"]
    if algorithm is None:
        return f"best.fp32: nothing kept: {tuned['why']}"
    line = f"best.fp32 takes {algorithm}, {tuned['us'][algorithm]:,.2f} us"
    if tuned["load"]:
        line += f", beside {tuned['load']:.0f} other processes"
    if tuned["why"]:
        line = f"best.fp32 would take {algorithm}, not kept: {tuned['why']}"
    if tuned["before"] != algorithm:
        line += f"; it took {tuned['before']}"
    if model == algorithm:
        return f"{line}; so does the model"
    times = "not timed" if tuned["off"] is None else f"{tuned['us'][model]:,.2f} us"
    return f"{line}; the model takes {model}, {times}" + (
        f", {tuned['off']:.2f}x" if tuned["off"] is not None else ""
    )


def _print_case(console: Console, case: dict[str, Any], in_suite: bool) -> None:
    rows = case_rows(case)
    label = f"{case['label']}: " if in_suite else ""
    title = (
        f"{label}{case['shape']}, batch {case['images']:,}: {case['gflop']:,.3g} GFLOP, "
        f"{case['mbytes']:,.3g} MB, {case['intensity']:,.3g} FLOP/byte"
    )
    if case["paper"]:
        title += f"; the paper: {case['paper']}"
    shown = [row for row in rows if row["status"] != "refused"]
    if shown:
        console.print(as_rich(used(_IN_A_CASE, shown), shown, title, width=console.width))
    else:
        for line in (title, "nothing to run here"):
            console.print(line, highlight=False, soft_wrap=True)
    for row in rows:
        if row["note"]:
            word = "refused, " if row["status"] == "refused" else ""
            console.print(f"{row['name']}: {word}{row['note']}", highlight=False, soft_wrap=True)
    if case.get("tuned"):
        console.print(tuned_line(case["tuned"]), highlight=False, soft_wrap=True)
    if in_suite:
        console.print(f"again: {case['command']}", highlight=False, soft_wrap=True)
    if case["rounds"]:
        console.print(legend(case["reference"], case["rounds"]), highlight=False, soft_wrap=True)
    if case.get("ladder"):
        rows = ladder_rows(case["ladder"])
        title = f"the paper's ladder, {case['label']}: the convolution alone, steps interleaved"
        console.print(as_rich(used(LADDER_COLUMNS, rows), rows, title, width=console.width))
    if case.get("explanation"):
        rows = [
            {"about": "" if index else section["about"], "what": what, "found": found}
            for section in case["explanation"]
            for index, (what, found) in enumerate(section["rows"])
        ]
        console.print(as_rich(EXPLANATION_COLUMNS, rows, "explanation", width=console.width))
