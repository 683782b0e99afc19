"""Which counters are read, what they mean, and what NVVP called them (course report, figs 4 to 6).

ncu's metrics are those that NVIDIA's guide names for each of nvprof's, which NVVP showed.

- `dram_read_gbs`, `dram_write_gbs`: Device Memory Read / Write Throughput, bytes that DRAM moved
  over the kernel's time. The same.
- `global_load_efficiency`, `global_store_efficiency`: Global Memory Load / Store Efficiency,
  requested over required throughput. ncu: bytes that a warp's threads ask for over bytes of the
  32-byte sectors that they lie in; loads by cp.async and the TMA, newer than NVVP's GPUs, are not
  among them.
- `shared_efficiency`: Shared Memory Efficiency, requested over required throughput. ncu: bytes
  asked for over 128 a wavefront; what tensor cores read of shared memory is among them. NVVP says
  0 % where nothing is asked for, here it is None.
- `occupancy`: Achieved Occupancy, warps active over those that a multiprocessor holds, while it has
  any. The same.
- `stalls`: Stall Reasons, the share of each cause in the warps that wait. NVVP sampled them or
  counted per instruction; ncu counts, at each issue, warps by what they wait for. The warp that is
  chosen is left out; one that could have been is `not_selected`. NVVP_CAUSES has its names.
- `l2_gbs`: bytes asked of the L2 cache by all units over the kernel's time. Not in the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Value = float | None
TIME = "gpu__time_duration.sum"
READ = "dram__bytes_read.sum.per_second"
WRITTEN = "dram__bytes_write.sum.per_second"
L2 = "lts__t_bytes.sum.per_second"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
LOADS = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
STORES = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"
SHARED = "smsp__sass_average_data_bytes_per_wavefront_mem_shared.pct"
LOADED = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORED = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_st.sum"
SHARED_BYTES = "smsp__sass_data_bytes_mem_shared.sum"
CAUSES = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
)
NVVP_CAUSES = {
    "long_scoreboard": "memory dependency",
    "lg_throttle": "memory throttle",
    "drain": "memory throttle",
    "short_scoreboard": "execution dependency",
    "wait": "execution dependency",
    "barrier": "synchronisation",
    "membar": "synchronisation",
    "no_instruction": "instruction fetch",
    "branch_resolving": "instruction fetch",
    "imc_miss": "constant",
    "math_pipe_throttle": "pipe busy",
    "mio_throttle": "pipe busy",
    "tex_throttle": "texture",
    "not_selected": "not selected",
}
"""What NVVP counted a cause of today under; what is not here it called "other"."""


def stall(cause: str) -> str:
    """The metric of the warps that wait for `cause` at each issue."""
    return f"smsp__average_warps_issue_stalled_{cause}_per_issue_active.ratio"


UNITS = {
    TIME: "ns", READ: "byte/s", WRITTEN: "byte/s", L2: "byte/s", OCCUPANCY: "%", LOADS: "%",
    STORES: "%", SHARED: "%", LOADED: "", STORED: "", SHARED_BYTES: "",
    **{stall(cause): "" for cause in CAUSES},
}  # fmt: skip
"""Every metric to its base unit; "" where it is only a number, whatever it counts."""
_HOPPER = 90
_ONLY_HOPPER = stall("gmma")


def asked(compute_capability: int) -> dict[str, str]:
    """The metrics that a GPU of that capability (90 for 9.0) has, to their units.

    Warps wait for `wgmma` on Hopper only; asked elsewhere, it would refuse all the others.
    """
    own = compute_capability // 10 == _HOPPER // 10
    return {name: unit for name, unit in UNITS.items() if own or name != _ONLY_HOPPER}


@dataclass(frozen=True)
class Counters:
    """What the counters say of a kernel, or of several together.

    `ms` is of all its launches, by the profiler, for whom each runs alone: no time to compare.
    Throughputs are in GB/s (1e9); efficiencies, `occupancy` and the shares in `stalls`, the largest
    first, from 0 to 1, None where there was nothing to count. What efficiencies are of:
    `load_sectors`, `store_sectors`, `shared_bytes`.
    """

    kernel: str
    launches: int
    ms: float
    dram_read_gbs: Value = None
    dram_write_gbs: Value = None
    l2_gbs: Value = None
    global_load_efficiency: Value = None
    global_store_efficiency: Value = None
    shared_efficiency: Value = None
    occupancy: Value = None
    stalls: Mapping[str, float] = field(default_factory=dict)
    load_sectors: Value = None
    store_sectors: Value = None
    shared_bytes: Value = None

    @property
    def top_stall(self) -> str | None:
        """What most warps that waited waited for."""
        return next(iter(self.stalls), None)

    def as_json(self) -> dict[str, Any]:
        """Every field, with `top_stall` and `top_stall_share`."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        top = self.top_stall
        share = None if top is None else self.stalls[top]
        return found | {"stalls": dict(self.stalls), "top_stall": top, "top_stall_share": share}


def of_values(kernel: str, values: Mapping[str, Value]) -> Counters:
    """The counters of one launch, of the values in base units of the metrics that were asked."""

    def scaled(metric: str, unit: float, only: bool = True) -> Value:
        value = values[metric]
        return None if value is None or not only else value / unit

    waits = {cause: values.get(stall(cause)) or 0.0 for cause in CAUSES}
    total = sum(waits.values())
    ordered = sorted(waits.items(), key=lambda item: -item[1])
    return Counters(
        kernel,
        1,
        (values[TIME] or 0.0) / 1e6,
        scaled(READ, 1e9),
        scaled(WRITTEN, 1e9),
        scaled(L2, 1e9),
        scaled(LOADS, 100, bool(values[LOADED])),
        scaled(STORES, 100, bool(values[STORED])),
        scaled(SHARED, 100, bool(values[SHARED_BYTES])),
        scaled(OCCUPANCY, 100),
        {cause: wait / total for cause, wait in ordered if wait > 0},
        values[LOADED],
        values[STORED],
        values[SHARED_BYTES],
    )


def _weighted(pairs: Sequence[tuple[Value, Value]]) -> Value:
    """The mean of values by their weights; what has no value or no weight does not count."""
    known = [(value, weight) for value, weight in pairs if value is not None and weight]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def merged(kernel: str, parts: Sequence[Counters]) -> Counters:
    """`parts`, at least one, as one called `kernel`.

    Throughputs, occupancy and stalls are means by time, global efficiencies by sectors; the shared
    one is all bytes over all wavefronts.
    """

    def by_time(value: Callable[[Counters], Value]) -> Value:
        return _weighted([(value(part), part.ms) for part in parts])

    def together(name: str) -> Value:
        known = [getattr(part, name) for part in parts if getattr(part, name) is not None]
        return sum(known) if known else None

    waves = sum((p.shared_bytes or 0) / p.shared_efficiency for p in parts if p.shared_efficiency)
    asked = sum(p.shared_bytes or 0 for p in parts if p.shared_efficiency)
    waited = [part for part in parts if part.stalls]
    shares = {
        cause: _weighted([(part.stalls.get(cause, 0.0), part.ms) for part in waited]) or 0.0
        for cause in CAUSES
    }
    return Counters(
        kernel,
        sum(part.launches for part in parts),
        sum(part.ms for part in parts),
        by_time(lambda part: part.dram_read_gbs),
        by_time(lambda part: part.dram_write_gbs),
        by_time(lambda part: part.l2_gbs),
        _weighted([(part.global_load_efficiency, part.load_sectors) for part in parts]),
        _weighted([(part.global_store_efficiency, part.store_sectors) for part in parts]),
        asked / waves if waves else None,
        by_time(lambda part: part.occupancy),
        {c: s for c, s in sorted(shares.items(), key=lambda item: -item[1]) if s > 0},
        together("load_sectors"),
        together("store_sectors"),
        together("shared_bytes"),
    )
