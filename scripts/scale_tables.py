"""Images a second over workers and shards, and the model's, from measured/DEVICE/scale.json."""

from __future__ import annotations

from measured import CPU, GPU, Document, load, there, where

NAME = "scale.json"
_HERE = {0: "none (the command itself)"}


def table() -> str:
    """A table a device where it was measured, and what was not."""
    found = [_of(load(folder, NAME)) for folder in (GPU, CPU) if there(folder, NAME)]
    if not there(GPU, NAME):
        found.append("Not measured on a GPU yet: `scripts/scale.py --device cuda` does.")
    return "\n\n".join(found)


def _of(document: Document) -> str:
    predicted = {
        (entry["shard"], entry["workers"]): row
        for entry in document["predicted"]
        for row in entry["rows"]
        if row["workers"] == max(1, entry["workers"])
    }
    alone = {row["shard"]: row for row in document["rows"] if row["workers"] == 0}
    lines = [
        f"{where(document)}; plan {document['plan']}; {document['images']:,} images in "
        f"{document['files']} files in the page cache; {document['rounds']} interleaved jobs "
        "a row, medians (least to largest); labels of all equal.",
        "",
        "| images of a shard | Dask's workers | images/s | of the command alone | the model |",
        "|---:|---|---:|---:|---:|",
    ]
    for row in document["rows"]:
        said = predicted.get((row["shard"], row["workers"]))
        base = alone.get(row["shard"])
        rate, samples = row["images_per_second"], row["samples"]
        share = f"{rate / base['images_per_second']:.2f}x" if base else "-"
        lines.append(
            f"| {row['shard']:,} | {_HERE.get(row['workers'], row['workers'])} "
            f"| {rate:,.0f} ({min(samples):,.0f} to {max(samples):,.0f}) | {share} "
            f"| {said['rate']:,.0f} |" if said else "| - |"
        )  # fmt: skip
    return "\n".join(lines)


SECTIONS = {"scale": table}
