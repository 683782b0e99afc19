"""What can be switched and what files hold, for people and for programs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from lenetgpu.device import choose_device
from lenetgpu.errors import LenetError
from lenetgpu.files.packed.records import said_of
from lenetgpu.files.packed.source import PackedSource
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import about, load_weights
from lenetgpu.network import SPANS, STAGES
from lenetgpu.stages import Variant, variants
from lenetgpu.stages.registry import KINDS, SPAN_KINDS


def variant_rows(stage: str | None = None) -> list[dict[str, Any]]:
    """One object per switchable variant, of a stage or kind where given, naive to fast.

    Raises LenetError where `stage` is neither.
    """
    return [_row(v) for v in _listed(stage)]


def table_rows(stage: str | None = None) -> tuple[list[dict[str, Any]], str]:
    """The objects with `here` where a variant runs on this machine, and what that is.

    A kind's families stand together, in the order of their first variants. Raises LenetError as
    `variant_rows` does.
    """
    gpu, why = choose_device("auto")
    listed = _listed(stage)
    groups = list(dict.fromkeys((v.kind, v.family) for v in listed))
    rows = []
    for v in sorted(listed, key=lambda v: groups.index((v.kind, v.family))):
        here = v.needs.device == "cpu" or (gpu is not None and v.needs.met_by(gpu))
        rows.append(_row(v) | {"here": here})
    if gpu is None:
        return rows, f"cpu ({why})"
    return rows, f"cpu and {gpu.name}, cuda {gpu.version}"


def _listed(stage: str | None) -> list[Variant]:
    kinds = {s.name: s.kind for s in STAGES} | {kind: kind for kind in (*KINDS, *SPAN_KINDS)}
    kinds |= {span.name: span.kind for span in SPANS}
    if stage is not None and stage not in kinds:
        raise LenetError(f"stage {stage!r} does not exist; choose from: {', '.join(kinds)}")
    starting = {span.kind for span in SPANS if stage in span.stages}
    spans = [kind for kind in SPAN_KINDS if stage is None or kind in starting or kind == stage]
    wanted = [*(KINDS if stage is None else (kinds[stage],)), *spans]
    return [v for kind in dict.fromkeys(wanted) for v in variants(kind)]


def _row(v: Variant) -> dict[str, Any]:
    return {
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


def data_rows(path: Path) -> list[tuple[str, str]]:
    """(what, found) rows of an image file."""
    with open_source(path) as source:
        dataset = source.whole()
    images = dataset.images
    rows = [
        ("file", dataset.source),
        ("images", f"{len(dataset):,} of {images.shape[1]}x{images.shape[2]}, {images.dtype}"),
        ("values", f"{images.min():g} to {images.max():g}, mean {images.mean():.4g}"),
    ]
    if isinstance(source, PackedSource):
        rows.append(("packed", said_of(source.bytes_an_image)))
    if dataset.labels is None:
        rows.append(("labels", "none"))
    else:
        counts = Counter(dataset.labels.tolist())
        rows.append(("labels", ", ".join(f"{k}: {counts[k]:,}" for k in sorted(counts))))
    return rows


def weight_rows(path: Path) -> list[tuple[str, str]]:
    """(what, found) rows of a weight file, its attributes included."""
    weights, said = load_weights(path), about(path)
    rows = [("file", weights.source), ("form", said.form)]
    for name, tensor in weights.tensors.items():
        shape = "x".join(map(str, tensor.shape))
        rows.append(
            (
                f"/{name}",
                f"{shape}, {tensor.min():.4f} to {tensor.max():.4f}, "
                f"rms {float((tensor.astype('f8') ** 2).mean()) ** 0.5:.4f}",
            )
        )
    rows.append(("checksums", said.sums.said))
    rows.extend(said.facts.items())
    if said.unread:
        names = ", ".join(said.unread)
        rows.append(("not read", f"{names} (text of variable length, or no one value)"))
    return rows
