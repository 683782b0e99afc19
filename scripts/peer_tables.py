"""Tables of our plans beside their peers, from docs/measured/DEVICE/peers.json."""

from __future__ import annotations

from typing import Any

from beside import INTERLEAVED, OURS, PEER_OF, missing
from measured import CPU, GPU, Document, how_sure, load, where

from lenetgpu.plan import canonical

_REPLAYED = " graph"
_TOO_FAR = 1.01


def _plan_of(row: dict[str, Any]) -> str:
    """The plan that a row of ours ran, by its name of today."""
    return canonical(row["name"].split()[1])


def _contestant(row: dict[str, Any]) -> str:
    """The name of a row, ours by today's."""
    if row["maker"] != OURS:
        return str(row["name"])
    maker, _, *rest = row["name"].split()
    return " ".join([maker, _plan_of(row), *rest])


def _counts(document: Document) -> list[int]:
    return [len(row["samples_ms"]) for row in document["rows"]]


def _libraries(document: Document) -> str:
    if "torch" in document:
        return f"PyTorch {document['torch']} with cuDNN {document['cudnn']}"
    names = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch"}
    return " and ".join(f"{names[k]} {v}" for k, v in document["peers"].items())


def quick(document: Document) -> str:
    """What a quick run's table begins with, "" for another."""
    return "A quick run, not to be quoted. " if document.get("quick") else ""


def _about(document: Document) -> str:
    return f"{where(document)}; {_libraries(document)}; {document['images']:,} digits"


def absent(document: Document) -> str:
    """The last line: who is not in the table."""
    entries = document.get("not_measured") or missing(document["device"]["kind"])
    usual = missing("cpu")[0]["why"]
    names = [e["name"] + ("" if e["why"] == usual else f" ({e['why']})") for e in entries]
    return f"Not measured: {', '.join(names)}."


def _shipped(document: Document) -> str:
    """What the digits that ship say of each plan's labels, where the run counted them."""
    flips = document.get("shipped_flips")
    harder = "On the digits that ship, which are harder,"
    if not flips:
        return f"{harder} `int8` labels a few unlike float64 (not counted in this run)."
    said = ", ".join(f"`{plan}` {count}" for plan, count in flips.items())
    return f"{harder} labels unlike float64's: {said}."


def _gpu_rows(document: Document) -> list[dict[str, Any]]:
    return [r for r in document["rows"] if r["maker"] == OURS and r["name"].endswith(_REPLAYED)]


def replayed(document: Document) -> dict[str, float]:
    """Milliseconds of a replayed pass, by plan."""
    return {_plan_of(row): row["median_ms"] for row in _gpu_rows(document)}


def peers_table() -> str:
    """Our plans beside the best of their peers at the same precision, in one run."""
    document = load(GPU, "peers.json")
    rows = {row["name"]: row for row in document["rows"]}
    lines = [
        f"{quick(document)}{_about(document)} "
        f"({document.get('data', 'MNIST test images')}) on the device to labels on the "
        "device, one run of interleaved rounds, medians (5th to 95th percentile). "
        f" {how_sure(_counts(document), document)}",
        "",
        "| plan | replayed, ms | launched, ms | best peer | its ms | times faster | labels "
        "| logit error |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in _gpu_rows(document):
        launched = rows[row["name"].removesuffix(_REPLAYED)]
        precision = PEER_OF[row["precision"]]
        theirs = rows[f"torch eager {precision} contiguous"]
        error = row["max_logit_error"] / theirs["max_logit_error"]
        lines.append(
            f"| `{_plan_of(row)}` | **{row['median_ms']:.4f}** ({row['p05_ms']:.4f} to "
            f"{row['p95_ms']:.4f}) | {launched['median_ms']:.4f} | {row['peer']} "
            f"| {row['peer_ms']:.3f} | **{row['times_faster']:.1f}x** (its {precision}) "
            f"| {row['flips']} | {row['relative_error']:.1e}, {error:,.1f}x |"
        )
    return "\n".join([*lines, "", f"{_shipped(document)} {absent(document)}"])


def contestants_table() -> str:
    """Every contestant of the peers' run."""
    document = load(GPU, "peers.json")
    lines = [
        f"{quick(document)}{_about(document)}, the shipped weights, medians of interleaved "
        f"rounds. {how_sure(_counts(document), document)}",
        "",
        "| contestant | ms | 5th to 95th percentile |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {_contestant(row)} | {row['median_ms']:.4f} | {row['p05_ms']:.4f} to "
        f"{row['p95_ms']:.4f} |"
        for row in document["rows"]
    ]
    return "\n".join(lines) + f"\n\n{absent(document)}"


def _disagreement(document: Document, found: dict[tuple[str, int], float]) -> str:
    """Why a plan's first column is not its headline, where it is not."""
    if document.get("scaling_is") == INTERLEAVED:
        return "The first column is the headline's own sample; the others in the same rounds."
    n = document["images"]
    headlines = {plan: 1e6 * ms / n for plan, ms in replayed(document).items()}
    apart = [
        f"`{plan}` {found[plan, n]:.1f} here and {ns:.1f} there"
        for plan, ns in headlines.items()
        if not 1 / _TOO_FAR < found[plan, n] / ns < _TOO_FAR
    ]
    why = "Taken in samples of their own before the run above, not in its rounds, at other clocks"
    return f"{why}{', so they differ: ' + '; '.join(apart) if apart else ''}."


def scaling_table() -> str:
    """Nanoseconds of an image, by plan and batch."""
    document = load(GPU, "peers.json")
    found = {(canonical(r["plan"]), r["images"]): r["ns_per_image"] for r in document["scaling"]}
    plans = list(dict.fromkeys(plan for plan, _ in found))
    batches = sorted({images for _, images in found})
    samples = "samples not recorded"
    if document.get("scaling_is") == INTERLEAVED:
        samples = how_sure(_counts(document), document).rstrip(".")
    lines = [
        f"{where(document)}; replayed, medians, {samples}. {_disagreement(document, found)}",
        "",
        "| ns an image | " + " | ".join(f"{images:,} images" for images in batches) + " |",
        "|---|" + "---:|" * len(batches),
    ]
    for plan in plans:
        cells = " | ".join(f"{found[plan, images]:.1f}" for images in batches)
        lines.append(f"| `{plan}` | {cells} |")
    return "\n".join(lines)


def _cpu_row(row: dict[str, Any]) -> str:
    name = ", ".join(f"`{plan}`" for plan in row.get("plans", ())) or row["name"]
    right = "-" if row["correct"] is None else f"{row['correct']:,}"
    if row.get("plans") == ["serial"]:
        few = row["images"]
        name, right = f"{name} (one thread, scaled from {few:,} images)", f"{right} of {few:,}"
    ratio = f"{row['times_faster']:.2f}x" if "times_faster" in row else "-"
    error = f"{row['relative_error']:.1e}" if "relative_error" in row else "-"
    return (
        f"| {name} | {row['median_ms']:,.1f} | {row['p05_ms']:,.1f} to {row['p95_ms']:,.1f} "
        f"| {ratio} | {right} | {row['flips']} | {error} |"
    )


def cpu_table() -> str:
    """Plans on a CPU beside ONNX Runtime and PyTorch, in one run."""
    document = load(CPU, "peers.json")
    peer = next(row["peer"] for row in document["rows"] if "peer" in row)
    lines = [
        f"{quick(document)}{_about(document)} ({document['data']}, {document['weights']}), host "
        "memory to labels, medians of interleaved rounds; ours take uint8 pixels, the peers floats "
        f"made ready before. {how_sure(_counts(document), document)}",
        "",
        "| contestant | ms | 5th to 95th percentile | times as fast as the best peer, "
        f"{peer} | right | labels unlike float64's | logit error |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *map(_cpu_row, document["rows"]),
        "",
        absent(document),
    ]
    return "\n".join(lines)


SECTIONS = {
    "peers": peers_table,
    "contestants": contestants_table,
    "scaling": scaling_table,
    "cpu": cpu_table,
}
