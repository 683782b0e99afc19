"""What can be switched and what files hold, for people and for programs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError, choose
from lenetgpu.files.packed.records import said_of
from lenetgpu.files.packed.source import PackedSource
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import about, load_weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.net.device import choose_device
from lenetgpu.network import SPANS, STAGES
from lenetgpu.stages import Variant, variants
from lenetgpu.stages.registry import KINDS, SPAN_KINDS, Needs


def variant_rows(stage: str | None = None) -> list[dict[str, Any]]:
    """One object per switchable variant, of a stage or kind where given, naive to fast.

    `here`: whether it runs on this machine; `lacks`: what this machine does not have, null where
    nothing. Raises LenetError where `stage` is neither.
    """
    gpu, _ = choose_device("auto")
    return [_row(v, gpu) for v in _listed(stage)]


def table_rows(stage: str | None = None) -> tuple[list[dict[str, Any]], str]:
    """The same objects, and what the ones marked `here` run on and the others need.

    A kind's families stand together, in the order of their first variants. Raises LenetError as
    `variant_rows` does.
    """
    gpu, _ = choose_device("auto")
    listed = _listed(stage)
    groups = list(dict.fromkeys((v.kind, v.family) for v in listed))
    ordered = sorted(listed, key=lambda v: groups.index((v.kind, v.family)))
    rows = [_row(v, gpu) for v in ordered]
    lacking = sorted({row["lacks"] for row in rows if row["lacks"]})
    others = f"; the others need {' or '.join(lacking)}" if lacking else ""
    return rows, machine() + others


def machine() -> str:
    """What variants run on here."""
    gpu, why = choose_device("auto")
    return f"cpu ({why})" if gpu is None else f"cpu and {gpu.name}, cuda {gpu.version}"


def kinds() -> dict[str, str]:
    """Stages, kinds and spans, whose variants can be listed, with the kind of each."""
    found = {s.name: s.kind for s in STAGES} | {kind: kind for kind in (*KINDS, *SPAN_KINDS)}
    return found | {span.name: span.kind for span in SPANS}


def _listed(stage: str | None) -> list[Variant]:
    by_name = kinds()
    if stage is not None and stage not in by_name:
        raise LenetError(f"stage {stage!r} does not exist; {choose(stage, by_name)}")
    starting = {span.kind for span in SPANS if stage in span.stages}
    spans = [kind for kind in SPAN_KINDS if stage is None or kind in starting or kind == stage]
    wanted = [*(KINDS if stage is None else (by_name[stage],)), *spans]
    return [v for kind in dict.fromkeys(wanted) for v in variants(kind)]


def _lacks(needs: Needs, gpu: Gpu | None) -> str | None:
    """What this machine does not have of what a variant needs."""
    if needs.device == "cpu" or (gpu is not None and needs.met_by(gpu)):
        return None
    if gpu is None:
        return "a GPU"
    later = "" if needs.exact else " or later"
    return f"a GPU of compute capability {needs.compute_capability / 10:.1f}{later}"


def _row(v: Variant, gpu: Gpu | None) -> dict[str, Any]:
    lacks = _lacks(v.needs, gpu)
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
        "here": lacks is None,
        "lacks": lacks,
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
