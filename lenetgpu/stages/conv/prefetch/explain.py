"""The Pascal paper's analysis of a convolution on a device, for `lenetgpu conv --explain`."""

from __future__ import annotations

from lenetgpu.gpu.machines import Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch.multi_plan import flat, multi_tile, plan_multi
from lenetgpu.stages.conv.prefetch.single_plan import plan_single, single_tile
from lenetgpu.stages.registry import Rows


def explain_single(problem: Conv, batch: int, machine: Machine) -> Rows:
    """(label, value) rows: Table 1 of the machine, then section 3.1."""
    return explain_machine(machine) + _explain_single(problem, machine)


def explain_multi(problem: Conv, batch: int, machine: Machine) -> Rows:
    """(label, value) rows: Table 1 of the machine, then section 3.2."""
    return explain_machine(machine) + _explain_multi(problem, machine)


def explain_machine(machine: Machine) -> Rows:
    """(label, value) rows: Table 1 of the machine."""
    return [
        (
            "device",
            f"{machine.name}: {machine.multiprocessors} multiprocessors of {machine.cores} cores "
            f"at {machine.clock_mhz:g} MHz, {machine.shared_bytes >> 10} KiB shared memory each",
        ),
        ("latency", f"{machine.latency} clocks"),
        ("transmission rate", f"{machine.bytes_per_clock:,} bytes a clock"),
        ("N_FMA", f"{machine.n_fma:,} multiply-adds = latency x cores x 2"),
        (
            "V_s",
            f"{machine.v_s:,} bytes: {machine.threads:,} threads a multiprocessor, 4 bytes each, "
            f"cover {machine.data_requirement:,}",
        ),
    ]


def _range(bounds: tuple[int | None, int]) -> str:
    lower, upper = bounds
    if lower is None:
        return "none: the other operand alone is larger than shared memory"
    return f"{lower:,} to {upper:,}" + ("" if lower <= upper else ", which is empty")


def _explain_single(problem: Conv, machine: Machine) -> Rows:
    plan, tile = plan_single(problem, machine), single_tile(problem, machine)
    methods = {
        1: "1: filters divided among the multiprocessors, the map in P pieces",
        2: "2: the map divided among the multiprocessors, filters in Q pieces",
    }
    rows = [
        ("D_filter + D_map", f"{plan.d_filter:,} + {plan.d_map:,} bytes (3)"),
        ("P may be", f"{_range(plan.p_bounds)} (steps 1, 2)"),
        ("Q may be", f"{_range(plan.q_bounds)} (steps 1, 2)"),
        ("P", f"{plan.p}"),
        ("Q", f"{plan.q}"),
        ("D1", f"{plan.d1:,} bytes (5)"),
        ("D2", f"{plan.d2:,} bytes (8)"),
        ("Th1", f"{plan.th1:,} multiply-adds (6)"),
        ("Th2", f"{plan.th2:,} multiply-adds (9)"),
        ("method", methods[plan.division]),
        ("approach", plan.approach),
    ]
    if tile is None:
        return [*rows, ("block", "none fits this device's shared memory")]
    bytes_all = tile.row_parts * tile.filter_parts * tile.shared(problem)
    return [
        *rows,
        (
            "block",
            f"{tile.rows} rows x {tile.filters} filters"
            + (f", {tile.pieces} after each other" if tile.pieces > 1 else "")
            + f", by {tile.threads} threads of {tile.px * tile.pc} x {tile.fm} outputs",
        ),
        ("blocks", f"{tile.row_parts} x {tile.filter_parts}, {bytes_all:,} bytes in all"),
    ]


def _explain_multi(problem: Conv, machine: Machine) -> Rows:
    plan, tile = plan_multi(problem, machine), multi_tile(problem, machine)
    rows = [
        ("S", f"{plan.segment} bytes of each filter"),
        ("W'x", f"{plan.columns} pixels"),
        ("M' at least", f"{plan.least_filters} = N_FMA x 4 / (S x W'x)"),
        ("M'", f"{plan.filters} filters"),
        ("W'y", f"{plan.lines} lines = ceil(S / 4K)"),
        (
            "data set",
            f"{plan.data_set:,} bytes = S x M' + 4 x W'y x W'x, "
            + ("within" if plan.fits else "MORE THAN")
            + f" half of {machine.shared_bytes:,}",
        ),
    ]
    if tile is None:
        return [*rows, ("block", "none fits this device's shared memory")]
    return [
        *rows,
        (
            "block",
            f"{tile.rows} x {tile.columns} pixels x {tile.filters} filters by {tile.threads} "
            f"threads of {4 * tile.quads} x {tile.fm} outputs, channels in {tile.splits} parts",
        ),
        (
            "blocks",
            f"{tile.blocks(flat(problem))} an image, {tile.shared(flat(problem)):,} bytes of "
            "shared memory each",
        ),
    ]
