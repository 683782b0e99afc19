"""What stands beside a shape's candidates: `conv --explain`, and the convnet2 paper's ladder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
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
from lenetgpu.papers.shapes import Shape, Suite
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant, variants

Rows = list[tuple[str, str]]


def floor_rows(problem: Conv, n: int, limits: Ceilings) -> Rows:
    """Work, bytes, intensity, and the least time by arithmetic and by bytes on this device."""
    flop, moved = problem.flop(n), problem.bytes(n)
    compute = flop / (limits.fma_tflops * 1e12)
    memory = moved / (limits.copy_gbs * 1e9)
    bound = "arithmetic" if compute >= memory else "bytes"
    rows = [
        ("output", f"{n:,} x {problem.M} maps of {problem.OH}x{problem.OW}"),
        ("work", f"{flop / 1e9:,.4g} GFLOP, {problem.depth:,} multiply-adds an output"),
        ("bytes", f"{moved / 1e6:,.4g} MB: input and filters read once, output written once"),
        ("intensity", f"{flop / moved:,.3g} FLOP/byte"),
        ("floor, arithmetic", f"{_microseconds(compute)} at {limits.fma_tflops:,.3g} TFLOP/s"),
        ("floor, bytes", f"{_microseconds(memory)} at {limits.copy_gbs:,.0f} GB/s"),
    ]
    if limits.tensor_tflops:
        tensor = 3 * flop / (limits.tensor_tflops * 1e12)
        rows.append(("floor, fp16x3", f"{_microseconds(tensor)}: three fp16 products each"))
    return [*rows, ("bound", f"{bound}, {max(compute, memory) / min(compute, memory):,.3g}x over")]


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.4g} us"


def launch_rows(launches: list[Launch], n: int) -> Rows:
    """Residency by each resource, waves, and batches that fill the last wave, of each kernel."""
    from lenetgpu.gpu.launch import explain_launch, grid_of

    rows: Rows = []
    for launched in dict.fromkeys(launches):
        entry, per_image = launched.kernel.entry, Fraction(grid_of(launched), n)
        rows.append((entry, f"grid {launched.grid}, block {launched.block}"))
        rows += [(f"  {what}", found) for what, found in explain_launch(launched, per_image)]
    return rows


def latency_json(measure: Callable[[], Latency], machine: Machine) -> dict[str, Any]:
    """Return a section of a case's `explanation`: N_FMA by what is measured here, and planned."""
    rows = _or_why_not(lambda: _latency_rows(measure(), machine))
    return {"about": "latency, measured here", "rows": [list(row) for row in rows]}


def _latency_rows(found: Latency, machine: Machine) -> Rows:
    return [
        ("load from global memory", f"{found.load:,.0f} clocks, planned with {machine.latency:,}"),
        ("N_FMA", f"{found.n_fma(machine):,} multiply-adds, planned with {machine.n_fma:,}"),
        ("multiply-add", f"{found.fma:.1f} clocks until the next that needs it"),
        (
            "busy cores",
            f"{found.busy_warps(machine)} warps of chained multiply-adds a multiprocessor; "
            f"in a load's time they issue {found.issued(machine):,}",
        ),
    ]


def _or_why_not(make: Callable[..., Rows]) -> Rows:
    try:
        return make()
    except Exception as error:  # what was measured is worth more than its explanation
        return [("explanation", f"none here: {type(error).__name__}: {error}")]


def named(words: str | None) -> list[Variant]:
    """The GPU variants that a comma list names, or their families; all where there is no list."""
    wanted = None if words is None else {word.strip() for word in words.split(",")}
    return [v for v in variants("conv", "cuda") if wanted is None or wanted & {v.family, *v.names}]


def _planned(variant: Variant, shape: Shape, machine: Machine) -> Rows:
    """Return what a variant would do on `machine`, where it can say so without it."""
    laid = laid_out(variant, shape.problem)
    if variant.explain is None or isinstance(laid, str):
        return []
    try:
        return variant.explain(laid, shape.batch, machine)
    except Exception:
        return []


def _elsewhere(shape: Shape, machine: Machine, only: str | None) -> Iterator[tuple[str, Rows]]:
    """Yield what variants would do on `machine`, a section each.

    A word of `only` has a section that says why not: a variant's name, or a family's of which
    nobody has anything to say.
    """
    words = set() if only is None else {word.strip() for word in only.split(",")}
    found = [(variant, _planned(variant, shape, machine)) for variant in named(only)]
    told = {variant.family for variant, rows in found if rows}
    for variant, rows in found:
        family = variant.family in words and variant.family not in told
        if not rows and (family or words & {*variant.names}):
            why = laid_out(variant, shape.problem)
            rows = [("refused", why) if isinstance(why, str) else ("explanation", "none here")]
        if rows:
            yield f"{variant.full_name}, planned for {machine.name}", rows


def _here(
    shape: Shape, comparison: Comparison, chosen: list[Variant], machine: Machine
) -> Iterator[tuple[str, Rows]]:
    """Yield what the variants did on the GPU that is here, a section each."""
    benches = {c.name: c.bench for c in comparison.candidates}
    for variant in chosen:
        rows: Rows = []
        problem = laid_out(variant, shape.problem)
        if variant.explain is not None and not isinstance(problem, str):
            rows += _or_why_not(lambda v=variant, p=problem: v.explain(p, shape.batch, machine))
        bench = benches.get(variant.full_name)
        if isinstance(bench, ConvBench) and bench.launched:
            rows += _or_why_not(lambda b=bench: launch_rows(b.launched, shape.batch))
        if rows:
            yield variant.full_name, rows
    for name, bench in benches.items():
        if isinstance(bench, PluginBench):
            rows = _or_why_not(lambda b=bench: b.explain(shape.batch, machine))
            rows += _or_why_not(lambda b=bench: launch_rows(b.launched, shape.batch))
            if rows:
                yield name, rows


def explained(
    request: ConvRequest,
    shape: Shape,
    comparison: Comparison,
    limits: Ceilings,
    here: list[Variant] | None,
) -> list[dict[str, Any]]:
    """Return the `explanation` of a case: of the shape, then of each variant that has one.

    Variants are those on the GPU `here`, or all for the machine that was asked for; `here` is None
    where there is no GPU.
    """
    machine = machines.current() if request.machine is None else machines.known(request.machine)
    sections = [("the shape", floor_rows(shape.problem, shape.batch, limits))]
    first = []
    if request.machine is None and here is not None:
        first = [latency_json(lambda: latency.measured(machine), machine)]
        sections += _here(shape, comparison, here, machine)
    else:
        sections += _elsewhere(shape, machine, request.only)
    return first + [{"about": about, "rows": [*map(list, rows)]} for about, rows in sections]


def has_ladder(suite: Suite | None, chosen: list[Variant]) -> bool:
    """Whether the suite's steps are measured one by one too on a GPU: where they are chosen."""
    if suite is None or suite.name != "convnet2":
        return False
    return any(variant.family == suite.name for variant in chosen)


def ladder(shape: Shape, gpu: Gpu, say: Say) -> list[dict[str, Any]]:
    """The paper's steps on one shape; a row that says why where they cannot be measured."""
    try:
        return measure_ladder(shape.problem, shape.batch, gpu=gpu, say=say)
    except (MemoryError, RuntimeError) as error:
        reason = f"not measured: {(str(error).splitlines() or [''])[0]}"
        return [{"step": "the ladder", "variant": "", "status": "skipped", "note": reason}]
