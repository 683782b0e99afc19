"""NVVP's efficiencies (course report, figures 4 to 6): the report's, and ours counted for them.

Efficiencies are counted from the addresses that the report's kernels access
(`lenetgpu.stages.sectors`). With the report's blocks, threads and layouts they equal what its
profiler measured.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from lenetgpu.measure.bench import stage_of
from lenetgpu.measure.counters.child import StageSpec
from lenetgpu.network import SPANS, STAGES
from lenetgpu.network import stage as stage_named
from lenetgpu.papers import data_of
from lenetgpu.papers.course import AFTER, BEYOND, FIGURES, MEAN, RELU, TABLE_10, UNTIMED, layouts_of
from lenetgpu.papers.course_ladder import PASSES_OF
from lenetgpu.stages import variants
from lenetgpu.stages.argmax import scan
from lenetgpu.stages.conv.course import counts
from lenetgpu.stages.fc import apart
from lenetgpu.stages.pool import looped
from lenetgpu.stages.sectors import Counted

# Functions that count loads and stores of a problem, given further arguments.
_COUNTS: dict[str, Callable[..., tuple[Counted, Counted]]] = {
    "direct": counts.direct_counts,
    "map": counts.map_counts,
    "image": counts.image_counts,
    "looped": looped.access_counts,
    "apart": apart.access_counts,
    "scan": scan.access_counts,
}


@dataclass(frozen=True)
class Profiled:
    """One line of a figure: NVVP's load and store efficiency in %, and how `variant` is counted."""

    figure: str
    stage: str
    variant: str
    loads: float
    stores: float
    count: list[Any]  # a name of _COUNTS, then further arguments
    later: bool = False  # after the layout transformation
    note: str = ""  # explains a difference

    def counted(self) -> tuple[Counted, Counted]:
        """Count loads and stores of the variant on its stage."""
        problem = stage_named(self.stage).problem
        if self.later:
            reads, writes = TABLE_10[self.stage]
            problem = replace(problem, reads=reads, writes=writes)
        name, *arguments = self.count
        return _COUNTS[name](problem, *arguments)


NVVP = tuple(Profiled(*line) for line in data_of("course")["nvvp"])


def counted_rows() -> list[dict[str, Any]]:
    """Return a row per line of the figures: NVVP's efficiencies in %, and the counted ones."""
    rows = []
    for line in NVVP:
        loads, stores = (100 * counted.efficiency for counted in line.counted())
        row: dict[str, Any] = {"figure": line.figure, "stage": line.stage, "variant": line.variant}
        row |= {"report_loads": line.loads, "loads": loads}
        rows.append(row | {"report_stores": line.stores, "stores": stores, "note": line.note})
    return rows


Key = tuple[str, str]
# Suite row -> name of its kernel, one of the kernels of the variant PASSES_OF.
PASSES = {RELU: "relu_in_place", MEAN: "looped_mean"}
_COUNTED = {stage.name for stage in STAGES} | {span.name for span in SPANS}


def _variant(stage: str, name: str) -> StageSpec | None:
    """Return the variant `name` of `stage` as the suite runs it, None if it is no GPU variant."""
    unit = stage_of(stage)
    for variant in variants(unit.kind, "cuda"):
        problem = variant.laid_out(unit.problem)
        if variant.full_name == name and not isinstance(problem, str):
            reads, writes = layouts_of(stage, variant) or (problem.reads, problem.writes)
            return StageSpec(stage, name, reads, writes)
    return None


def suite_keys() -> list[Key]:
    """Return (stage, variant) of every row of the suite on a GPU, without repeats."""
    named = [(figure.stage, figure.variant) for figure in FIGURES]
    named += [(stage, name) for _, _, stage, name in (*UNTIMED, *BEYOND, *AFTER)]
    return list(dict.fromkeys(named))


def specs(keys: Iterable[Key]) -> dict[Key, StageSpec]:
    """Return the stage counted for each key of a variant; a pass is counted with its variant."""
    by_key: dict[Key, StageSpec] = {}
    for stage, name in keys:
        counted = PASSES_OF if name in PASSES else name
        if stage in _COUNTED and (spec := _variant(stage, counted)) is not None:
            by_key.setdefault((stage, counted), spec)
    return by_key


def kernels_of_rows(
    stage: str, variant: str, counted: dict[Key, dict[str, Any]]
) -> dict[str, Any] | None:
    """Return a row's counters, of a pass those of its own kernel; None if it is not counted."""
    if variant not in PASSES:
        return counted.get((stage, variant))
    for kernel in counted.get((stage, PASSES_OF), {}).get("kernels", ()):
        if kernel["kernel"] == PASSES[variant]:
            row: dict[str, Any] = {**kernel, "kernel": None, "kernels": [kernel]}
            return row | {"stage": stage, "variant": variant, "error": None}
    return None


_PERCENTS = {
    "loads": "global_load_efficiency",
    "stores": "global_store_efficiency",
    "shared": "shared_efficiency",
    "active warps": "occupancy",
}


def described(counters: dict[str, Any]) -> str:
    """Summarise counters: efficiencies, active warps, DRAM throughput and the largest stall."""
    shares = [(word, counters.get(name)) for word, name in _PERCENTS.items()]
    words = [f"{word} {share:.0%}" for word, share in shares if share is not None]
    read, written = counters.get("dram_read_gbs"), counters.get("dram_write_gbs")
    if read is not None and written is not None:
        words.append(f"DRAM {read + written:,.0f} GB/s")
    if counters.get("top_stall"):
        words.append(f"{counters['top_stall_share']:.0%} wait for {counters['top_stall']}")
    return f"measured {', '.join(words)}" if words else ""
