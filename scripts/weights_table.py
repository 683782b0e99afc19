"""Every plan with weights of any scale, from docs/measured/DEVICE/weights.json."""

from __future__ import annotations

from typing import Any

from measured import CPU, GPU, kernels_line, load, there, where


def _cell(entry: dict[str, Any]) -> str:
    if "refused" in entry:
        return "refused"
    flips = f", {entry['flips']}" if entry["flips"] else ""
    error = f"{entry['error']:.0e}" if entry["error"] else "0"
    return error + flips + ("" if entry["right"] else " **wrong**")


def table(folder: str) -> str:
    """A row a set of weights, a column a plan: the largest error, labels that differ, refusals."""
    if not there(folder, "weights.json"):
        return f"Not measured yet in docs/measured/{folder}/ (`scripts/measure.py --only weights`)."
    document = load(folder, "weights.json")
    plans = list(document["rows"][0]["plans"])
    slow = ", ".join(
        f"`{name}` gets {few}" for name, few in document["slow"].items() if name in plans
    )
    few = f" ({slow} digits)" if slow else ""
    lines = [
        f"{where(document)}; {document['images']:,} images{few}; {kernels_line((document,))}.",
        "",
        f"| weights | {' | '.join(f'`{name}`' for name in plans)} |",
        "|---|" + "---:|" * len(plans),
    ]
    for row in document["rows"]:
        cells = " | ".join(_cell(row["plans"][name]) for name in plans)
        lines.append(f"| {row['weights']} | {cells} |")
    return "\n".join(lines)


SECTIONS = {"weights": lambda: table(GPU), "weights-cpu": lambda: table(CPU)}
