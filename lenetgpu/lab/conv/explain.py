"""Additions to a shape's candidates: `conv --explain`, and the convnet2 paper's ladder."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

from lenetgpu.errors import first_line
from lenetgpu.gpu import latency, machines
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.latency import Latency
from lenetgpu.gpu.launch import Launch, explain_launch
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
    """Return work, bytes, intensity, and the least times by arithmetic and bytes at `limits`."""
    flop, moved = problem.flop(n), problem.bytes(n)
    compute, memory = flop / limits.fma_tflops / 1e6, moved / limits.copy_gbs / 1e3  # microseconds
    bound = "arithmetic" if compute >= memory else "bytes"
    rows = [
        ("output", f"{n:,} x {problem.M} maps of {problem.OH}x{problem.OW}"),
        ("work", f"{flop / 1e9:,.4g} GFLOP, {problem.gemm_k:,} multiply-adds an output"),
        ("bytes", f"{moved / 1e6:,.4g} MB: input and filters read once, output written once"),
        ("intensity", f"{flop / moved:,.3g} FLOP/byte"),
        ("floor, arithmetic", f"{compute:,.4g} us at {limits.fma_tflops:,.3g} TFLOP/s"),
        ("floor, bytes", f"{memory:,.4g} us at {limits.copy_gbs:,.0f} GB/s"),
    ]
    if limits.tensor_tflops:
        tensor = 3 * flop / limits.tensor_tflops / 1e6
        rows.append(("floor, fp16x3", f"{tensor:,.4g} us: three fp16 products each"))
    return [*rows, ("bound", f"{bound}, {max(compute, memory) / min(compute, memory):,.3g}x over")]


def launch_rows(launches: list[Launch], n: int) -> Rows:
    """Return each kernel's blocks per SM by resource, waves, and batches with a full last wave."""
    rows: Rows = []
    for launched in dict.fromkeys(launches):
        rows.append((launched.kernel.entry, f"grid {launched.grid}, block {launched.block}"))
        explanation = explain_launch(launched, Fraction(prod(launched.grid), n))
        rows += [(f"  {name}", value) for name, value in explanation]
    return rows


def latency_rows(measure: Callable[[], Latency], machine: Machine) -> Rows:
    """Return the load latency and N_FMA, as measured here and as planned with."""
    measured = measure()
    load, n_fma = measured.load, measured.n_fma(machine)
    busy, issued = measured.busy_warps(machine), measured.issued(machine)
    chained = f"{busy} warps of dependent multiply-adds per multiprocessor"
    return [
        ("load from global memory", f"{load:,.0f} cycles, planned with {machine.latency:,}"),
        ("N_FMA", f"{n_fma:,} multiply-adds, planned with {machine.n_fma:,}"),
        ("multiply-add", f"{measured.fma:.1f} cycles until a dependent one can start"),
        ("busy cores", f"{chained}; they issue {issued:,} during one load"),
    ]


def _try_rows(make: Callable[..., Rows], *arguments: Any) -> Rows:
    try:
        return make(*arguments)
    except Exception as error:  # a failed explanation must not discard the measurements
        return [("explanation", f"none here: {type(error).__name__}: {error}")]


def _words(names: str | None) -> set[str]:
    return {word.strip() for word in (names or "").split(",")}


def named(names: str | None) -> list[Variant]:
    """Return the GPU variants that a comma list names, also by family; all if it is None."""
    words = _words(names)
    return [v for v in variants("conv", "cuda") if names is None or words & {v.family, *v.names}]


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
    """Yield what variants would do on `machine`, a section each, or why there is none."""
    words = _words(only)
    planned = {variant: _planned(variant, shape, machine) for variant in named(only)}
    described = {variant.family for variant, rows in planned.items() if rows}
    for variant, rows in planned.items():
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
            rows += _try_rows(explain, problem, n, machine)
        if isinstance(bench, PluginBench):
            rows += _try_rows(bench.explain, n, machine)
        if isinstance(bench, PluginBench) or (isinstance(bench, ConvBench) and bench.launched):
            rows += _try_rows(launch_rows, bench.launched, n)
        if rows:
            yield candidate.name, rows


def explained(
    request: ConvRequest,
    shape: Shape,
    comparison: Comparison,
    limits: Ceilings,
    ran: list[Variant] | None,
) -> list[dict[str, Any]]:
    """Return the `explanation` of a case; `ran`: variants on this host's GPU, None without one."""
    machine = machines.current() if request.machine is None else machines.known(request.machine)
    if request.machine is not None:  # its own peaks, not those measured on this device
        fma = 2 * machine.multiprocessors * machine.cores * machine.clock_mhz / 1e6
        limits = Ceilings(machine.name, machine.bandwidth_gbs, fma, 0.0)
    sections = [(f"the shape on {limits.device}", floor_rows(shape.problem, shape.batch, limits))]
    if request.machine is None and ran is not None:
        measured = _try_rows(latency_rows, partial(latency.measured, machine), machine)
        sections.insert(0, ("latency, measured here", measured))
        sections += _here(shape, comparison, ran, machine)
    else:
        sections += _elsewhere(shape, machine, request.only)
    return [{"about": about, "rows": [*map(list, rows)]} for about, rows in sections]


def ladder(shape: Shape, gpu: Gpu, say: Say) -> list[dict[str, Any]]:
    """Return the paper's steps on one shape, or a row with the reason if they cannot be timed."""
    try:
        return measure_ladder(shape.problem, shape.batch, gpu=gpu, say=say)
    except (MemoryError, RuntimeError) as error:
        reason = f"not measured: {first_line(error)}"
        return [{"step": "the ladder", "variant": "", "status": "skipped", "note": reason}]
