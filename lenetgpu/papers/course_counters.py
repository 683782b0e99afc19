"""Counters of the course's variants, each alone: what its figures 4 to 6 say of a GPU of today."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lenetgpu.measure.bench import stage_of
from lenetgpu.measure.counters.work import Place
from lenetgpu.network import SPANS, STAGES
from lenetgpu.papers.course import AFTER, BEYOND, FIGURES, MEAN, RELU, UNTIMED
from lenetgpu.papers.course_ladder import PASSES_OF
from lenetgpu.papers.course_layouts import layouts_of
from lenetgpu.stages import variants

Key = tuple[str, str]
PASSES = {RELU: "relu_in_place", MEAN: "looped_mean"}
"""The rows that are one kernel of a variant (PASSES_OF), to that kernel's name."""
MORE: dict[tuple[str, str], tuple[float, float, float]] = {
    ("4", "conv1"): (17.718, 16.354, 43.1),
    ("4", "pool1"): (55.82, 50.617, 0),
    ("4", "conv2"): (27.89, 0.371746, 34.1),
    ("4", "pool2"): (11.199, 9.406, 0),
    ("4", "fc1"): (0.037683, 0.092468, 50),
    ("4", "fc2"): (0.520814, 0.90951, 19.4),
    ("4", "argmax"): (0.03599, 15.139, 0),
    ("5", "conv1"): (28.324, 27.153, 0),
    ("5", "conv2"): (24.758, 0.414197, 46.7),
    ("6", "conv1"): (0.411287, 2.741, 50),
    ("6", "pool1"): (14.756, 63.553, 0),
    ("6", "conv2"): (0.137499, 0.102878, 44.8),
    ("6", "pool2"): (1.255, 10.703, 0),
}
"""(figure, stage) of NVVP's lines to DRAM's read and write GB/s and shared efficiency in %."""
_COUNTED = {stage.name for stage in STAGES} | {span.name for span in SPANS}


def _variant(stage: str, name: str) -> Place | None:
    """The variant `name` of `stage` as the suite runs it; None where it is none of a GPU's."""
    unit = stage_of(stage)
    for variant in variants(unit.kind, "cuda"):
        if variant.full_name == name:
            problem = variant.laid_out(unit.problem)
            if isinstance(problem, str):
                return None
            reads, writes = layouts_of(stage, variant) or (problem.reads, problem.writes)
            return Place(stage, name, reads, writes)
    return None


def suite_keys() -> list[Key]:
    """(stage, variant) of every row of the suite on a GPU, each once."""
    named = [(figure.stage, figure.variant) for figure in FIGURES]
    named += [(stage, name) for _, _, stage, name in (*UNTIMED, *BEYOND, *AFTER)]
    return list(dict.fromkeys(named))


def places(keys: Iterable[Key]) -> dict[Key, Place]:
    """Where those are counted that are variants; a pass is counted with its variant."""
    found: dict[Key, Place] = {}
    for stage, name in keys:
        own = PASSES_OF if name in PASSES else name
        if stage not in _COUNTED or (stage, own) in found:
            continue
        place = _variant(stage, own)
        if place is not None:
            found[stage, own] = place
    return found


def places_of(rows: Iterable[dict[str, Any]]) -> dict[Key, Place]:
    """`places` of a suite's rows that are right."""
    return places((row["stage"], row["variant"]) for row in rows if row["status"] == "right")


def kernels_of_rows(
    stage: str, variant: str, counted: dict[Key, dict[str, Any]]
) -> dict[str, Any] | None:
    """The counters of a row, of those of all variants; a pass has its own kernel's.

    None where they are not counted.
    """
    if variant not in PASSES:
        return counted.get((stage, variant))
    whole = counted.get((stage, PASSES_OF))
    for kernel in (whole or {}).get("kernels", ()):
        if kernel["kernel"] == PASSES[variant]:
            own: dict[str, Any] = {**kernel, "kernel": None, "kernels": [kernel]}
            return own | {"stage": stage, "variant": variant, "error": None}
    return None


def described(counters: dict[str, Any]) -> str:
    """A row's measured counters in a line: efficiencies, DRAM, active warps, the largest stall."""
    percents = {
        "loads": "global_load_efficiency",
        "stores": "global_store_efficiency",
        "shared": "shared_efficiency",
        "active warps": "occupancy",
    }
    shares = [(word, counters.get(name)) for word, name in percents.items()]
    words = [f"{word} {share:.0%}" for word, share in shares if share is not None]
    read, written = counters.get("dram_read_gbs"), counters.get("dram_write_gbs")
    if read is not None and written is not None:
        words.append(f"DRAM {read + written:,.0f} GB/s")
    if counters.get("top_stall"):
        words.append(f"{counters['top_stall_share']:.0%} wait for {counters['top_stall']}")
    return f"measured {', '.join(words)}" if words else ""
