"""What compute-sanitizer found last, from docs/measured/DEVICE/sanitize.json."""

from __future__ import annotations

from measured import GPU, Document, device_name, load, there

NAME = "sanitize.json"


def _row(row: Document) -> str:
    left = len(row["not_reached"])
    allowed = sum(row["allowed"].values())
    cells = (row["tool"], f"{row['cases']:,}", row["errors"], allowed, len(row["wrong"]),
             len(row["died"]), f"{row['seconds']:.0f}", f"{left:,}")  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def table() -> str:
    """A row a tool; that it was not run yet, where it was not."""
    if not there(GPU, NAME):
        return "Not run yet: `make sanitize` on a GPU with CUDA's toolkit."
    document = load(GPU, NAME)
    commit = document["commit"] or "not recorded"
    names = document.get("only", "")
    which = f", only those with {names} in their names" if names else ""
    found = sum(entry["found"] > 0 for entry in document["planted"].values())
    lines = [
        f"{device_name(document)}, {document['date']}, commit {commit}, "
        f"driver {document['driver']}, compute-sanitizer {document['sanitizer']}; "
        f"{document['cases']:,} cases of {document['variants']} variants and plans{which}; "
        f"{found} of {len(document['planted'])} planted errors found.",
        "",
        "| tool | cases | errors | allowed reports | wrong results | died | s | not reached |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *map(_row, document["rows"]),
    ]
    whys = dict.fromkeys(why for row in document["rows"] for why in row["allowed"])
    return "\n".join([*lines, *(f"\nAllowed: {why}." for why in whys)])


SECTIONS = {"sanitize": table}
