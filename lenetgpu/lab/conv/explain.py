"""Additions to a shape's candidates: `conv --explain`, and the convnet2 paper's ladder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

from lenetgpu.gpu import latency, machines
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.latency import Latency
from lenetgpu.gpu.launch import Launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.lab.conv.request import ConvRequest
from lenetgpu.measure.conv_bench import ConvBench, laid_out
from lenetgpu.measure.plugins import PluginBench
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.rounds import Comparison, Say
from lenetgpu.papers.convnet2_measured import measure_ladder
from lenetgpu.papers.shapes import Shape
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant, variants

Rows = list[tuple[str, str]]


def floor_rows(problem: Conv, n: int, limits: Ceilings) -> Rows:
    """Return work, bytes, intensity, and the least times by arithmetic and bytes on this device."""
    flop, moved = problem.flop(n), problem.bytes(n)
    compute = flop / (limits.fma_tflops * 1e12)
    memory = moved / (limits.copy_gbs * 1e9)
    bound = "arithmetic" if compute >= memory else "bytes"
    rows = [
        ("output", f"{n:,} x {problem.M} maps of {problem.OH}x{problem.OW}"),
        ("work", f"{flop / 1e9:,.4g} GFLOP, {problem.gemm_k:,} multiply-adds an output"),
        ("bytes", f"{moved / 1e6:,.4g} MB: input and filters read once, output written once"),
        ("intensity", f"{flop / moved:,.3g} FLOP/byte"),
        ("floor, arithmetic", f"{_microseconds(compute)} at {limits.fma_tflops:,.3g} TFLOP/s"),
        ("floor, bytes", f"{_microseconds(memory)} at {limits.copy_gbs:,.0f} GB/s"),
    ]
    if limits.tensor_tflops:
        tensor = 3 * flop / (limits.tensor_tflops * 1e12)
        rows.append(("floor, fp16x3", f"{_microseconds(tensor)}: three fp16 products each"))
    over = max(compute, memory) / min(compute, memory)
    return [*rows, ("bound", f"{bound}, {over:,.3g}x over")]


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.4g} us"


def launch_rows(launches: list[Launch], n: int) -> Rows:
    """Return each kernel's blocks per SM by resource, waves, and batches with a full last wave."""
    from lenetgpu.gpu.launch import explain_launch, grid_of

    rows: Rows = []
    for launched in dict.fromkeys(launches):
        entry, per_image = launched.kernel.entry, Fraction(grid_of(launched), n)
        rows.append((entry, f"grid {launched.grid}, block {launched.block}"))
        rows += [(f"  {what}", found) for what, found in explain_launch(launched, per_image)]
    return rows


def latency_rows(measure: Callable[[], Latency], machine: Machine) -> Rows:
    """Return the load latency and N_FMA, as measured here and as planned with."""
    found = measure()
    busy, issued = found.busy_warps(machine), found.issued(machine)
    chained = f"{busy} warps of dependent multiply-adds per multiprocessor"
    return [
        ("load from global memory", f"{found.load:,.0f} cycles, planned with {machine.latency:,}"),
        ("N_FMA", f"{found.n_fma(machine):,} multiply-adds, planned with {machine.n_fma:,}"),
        ("multiply-add", f"{found.fma:.1f} cycles until a dependent one can start"),
        ("busy cores", f"{chained}; they issue {issued:,} during one load"),
    ]


def _or_why_not(make: Callable[..., Rows], *given: Any) -> Rows:
    try:
        return make(*given)
    except Exception as error:  # a failed explanation must not discard the measurements
        return [("explanation", f"none here: {type(error).__name__}: {error}")]


def named(words: str | None) -> list[Variant]:
    """Return the GPU variants that a comma list names, also by family; all if it is None."""
    wanted = None if words is None else {word.strip() for word in words.split(",")}
    return [v for v in variants("conv", "cuda") if wanted is None or wanted & {v.family, *v.names}]


def _planned(variant: Variant, shape: Shape, machine: Machine) -> Rows:
    """Return what a variant would do on `machine`; no rows if it cannot explain that without it."""
    laid = laid_out(variant, shape.problem)
    if variant.explain is None or isinstance(laid, str):
        return []
    try:
        return variant.explain(laid, shape.batch, machine)
    except Exception:
        return []


def _elsewhere(shape: Shape, machine: Machine, only: str | None) -> Iterator[tuple[str, Rows]]:
    """Yield what variants would do on `machine`, a section each.

    A variant that `only` names and that explains nothing has a section with the reason. So has
    each variant of a family that `only` names, if none of the family explains anything.
    """
    words = {word.strip() for word in (only or "").split(",")}
    found = {variant: _planned(variant, shape, machine) for variant in named(only)}
    described = {variant.family for variant, rows in found.items() if rows}
    for variant, rows in found.items():
        family = variant.family in words and variant.family not in described
        if not rows and (family or words & {*variant.names}):
            why = laid_out(variant, shape.problem)
            rows = [("refused", why) if isinstance(why, str) else ("explanation", "none here")]
        if rows:
            yield f"{variant.full_name}, planned for {machine.name}", rows


def _here(
    shape: Shape, comparison: Comparison, selected: list[Variant], machine: Machine
) -> Iterator[tuple[str, Rows]]:
    """Yield what the variants did on this host's GPU, a section each."""
    explains = {v.full_name: (v.explain, laid_out(v, shape.problem)) for v in selected}
    for candidate in comparison.candidates:
        rows: Rows = []
        bench, n = candidate.bench, shape.batch
        explain, problem = explains.get(candidate.name, (None, ""))
        if explain is not None and not isinstance(problem, str):
            rows += _or_why_not(explain, problem, n, machine)
        if isinstance(bench, PluginBench):
            rows += _or_why_not(bench.explain, n, machine)
        if isinstance(bench, PluginBench) or (isinstance(bench, ConvBench) and bench.launched):
            rows += _or_why_not(launch_rows, bench.launched, n)
        if rows:
            yield candidate.name, rows


def explained(
    request: ConvRequest,
    shape: Shape,
    comparison: Comparison,
    limits: Ceilings,
    here: list[Variant] | None,
) -> list[dict[str, Any]]:
    """Return the `explanation` of a case: of the shape, then of each variant that has one.

    The variants are `here`, those on this host's GPU, or all of them for the requested machine.
    `here` is None if there is no GPU.
    """
    machine = machines.current() if request.machine is None else machines.known(request.machine)
    sections = [("the shape", floor_rows(shape.problem, shape.batch, limits))]
    if request.machine is None and here is not None:
        measured = _or_why_not(latency_rows, partial(latency.measured, machine), machine)
        sections.insert(0, ("latency, measured here", measured))
        sections += _here(shape, comparison, here, machine)
    else:
        sections += _elsewhere(shape, machine, request.only)
    return [{"about": about, "rows": [*map(list, rows)]} for about, rows in sections]


def ladder(shape: Shape, gpu: Gpu, say: Say) -> list[dict[str, Any]]:
    """Return the paper's steps on one shape, or a row with the reason if they cannot be timed."""
    try:
        return measure_ladder(shape.problem, shape.batch, gpu=gpu, say=say)
    except (MemoryError, RuntimeError) as error:
        reason = f"not measured: {str(error).partition(chr(10))[0]}"
        return [{"step": "the ladder", "variant": "", "status": "skipped", "note": reason}]
