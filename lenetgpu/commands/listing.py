"""What can be switched and what files hold, for people and for programs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.network import SPANS, STAGES
from lenetgpu.stages import variants
from lenetgpu.stages.registry import KINDS, SPAN_KINDS


def variant_rows(stage: str | None = None) -> list[dict[str, Any]]:
    """One object per switchable variant, of a stage or kind where given.

    Raises LenetError where `stage` is neither.
    """
    kinds = {s.name: s.kind for s in STAGES} | {kind: kind for kind in (*KINDS, *SPAN_KINDS)}
    kinds |= {span.name: span.kind for span in SPANS}
    if stage is not None and stage not in kinds:
        raise LenetError(f"stage {stage!r} does not exist; choose from: {', '.join(kinds)}")
    starting = {span.kind for span in SPANS if stage in span.stages}
    spans = [kind for kind in SPAN_KINDS if stage is None or kind in starting or kind == stage]
    wanted = [*(KINDS if stage is None else (kinds[stage],)), *spans]
    wanted = list(dict.fromkeys(wanted))
    return [
        {
            "kind": v.kind,
            "stages": [s.name for s in STAGES if s.kind == v.kind]
            + [span.name for span in SPANS if span.kind == v.kind],
            "variant": v.full_name,
            "also": list(v.also),
            "needs": str(v.needs),
            "precision": v.precision,
            "reads": list(v.reads),
            "writes": list(v.writes),
            "paper": v.paper,
            "description": v.summary,
        }
        for kind in wanted
        for v in variants(kind)
    ]


def variant_lines(rows: list[dict[str, Any]]) -> list[str]:
    """A line per variant: kind, names, what it needs, precision, what it does, its source."""
    names = [" = ".join([row["variant"], *row["also"]]) for row in rows]
    width = max(map(len, names))
    return [
        f"{row['kind']:9} {name:{width}}  {row['needs']:9} {row['precision']:6}  "
        f"{row['description']}" + (f" ({row['paper']})" if row["paper"] else "")
        for row, name in zip(rows, names, strict=True)
    ]


def data_rows(path: Path) -> list[tuple[str, str]]:
    """(what, found) rows of an image file."""
    dataset = load_dataset(path)
    images = dataset.images
    rows = [
        ("file", dataset.source),
        ("images", f"{len(dataset):,} of {images.shape[1]}x{images.shape[2]}, {images.dtype}"),
        ("values", f"{images.min():g} to {images.max():g}, mean {images.mean():.4g}"),
    ]
    if dataset.labels is None:
        rows.append(("labels", "none"))
    else:
        counts = Counter(dataset.labels.tolist())
        rows.append(("labels", ", ".join(f"{k}: {counts[k]:,}" for k in sorted(counts))))
    return rows


def weight_rows(path: Path) -> list[tuple[str, str]]:
    """(what, found) rows of a weight file, its attributes included."""
    weights = load_weights(path)
    rows = [("file", weights.source)]
    for name, tensor in weights.tensors.items():
        shape = "x".join(map(str, tensor.shape))
        rows.append(
            (
                f"/{name}",
                f"{shape}, {tensor.min():.4f} to {tensor.max():.4f}, "
                f"rms {float((tensor.astype('f8') ** 2).mean()) ** 0.5:.4f}",
            )
        )
    rows.extend(hdf5.attributes(path).items())
    return rows
