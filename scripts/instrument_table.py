"""The instrument's runs on itself, from docs/measured/DEVICE/instrument*.json."""

from __future__ import annotations

from measured import MEASURED, Document, device_name, load, there

from lenetgpu.measure.statistics import MARGIN, SYSTEMATIC

RUNS = (
    ("cpu-2-cores", "instrument.json"),
    ("cpu-2-cores", "instrument-loaded.json"),
    ("nvidia-h200", "instrument.json"),
)


def runs() -> list[Document]:
    """Those that were made."""
    return [load(*parts) for parts in RUNS if there(*parts)]


def _cells(document: Document) -> list[str]:
    counts, busy = document["counts"], document["busy_processes"]
    load_words = f", {busy} other busy processes" if busy else ""
    commit = document["commit"] or "not recorded"
    rounds = sorted(run["rounds"] for run in document["runs"])
    return [
        f"{device_name(document)}{load_words}",
        f"{document['date']}, {commit}",
        f"{counts['runs']}, {rounds[0]} to {rounds[-1]} rounds, "
        f"{counts['longest_run_seconds']:.0f} s at most",
        f"{counts['same_called_different']} + {counts['control_called_different']}",
        f"{counts['slow_down_found']}",
        f"{counts['second_run_inside']} of {counts['pairs']}",
        f"{counts['lowest_end_of_an_interval']:.2f}",
    ]


def table() -> str:
    """A row a machine: false calls, slow-downs found, second runs inside the interval."""
    assert MEASURED.is_dir()
    lines = [
        "Each run compares a plan with itself under another name, with the control, with itself "
        "held up by 3 %, and with two other plans. Intervals hold at least "
        f"{SYSTEMATIC:.0%} for what differs between processes; `same` is within {MARGIN:.0%} of 1.",
        "",
        "| machine | date, commit | runs | the same called faster or slower: other name + control "
        "| 3 % slower found | second run's ratio inside the first's interval "
        "| lowest end of an interval |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    lines += ["| " + " | ".join(_cells(document)) + " |" for document in runs()]
    return "\n".join(lines)


SECTIONS = {"instrument": table}
