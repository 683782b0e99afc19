"""Results as JSON: one schema for every command, with device, plan, stages and candidates."""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable
from dataclasses import asdict
from math import prod
from typing import TYPE_CHECKING, Any

from lenetgpu.check.mistakes import confusions, per_digit
from lenetgpu.cpu.threads import core_count, cpu_name
from lenetgpu.gpu.device import Gpu, current_arch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel, compile_kernel
from lenetgpu.measure.timing import StepTiming, Summary, summarise
from lenetgpu.plan import Plan
from lenetgpu.stages import Variant

if TYPE_CHECKING:
    from lenetgpu.gpu.launch import Launch
    from lenetgpu.measure.outcome import Outcome
    from lenetgpu.measure.roofline import Ceilings
    from lenetgpu.measure.rounds import Candidate, Comparison
    from lenetgpu.measure.statistics import Interval

SCHEMA = 1
# Families whose sums are computed by a library; our own launches there are helpers.
_LIBRARIES = ("cublas", "fft")
_NEAR = 0.75
PHASES = (
    "start", "import", "context", "choose", "schedule", "compile", "verify", "load", "copy", "first"
)  # fmt: skip
_LAUNCH = (
    "grid", "block", "registers", "shared_bytes", "local_bytes", "occupancy", "blocks_per_sm",
    "limited_by", "waves",
)  # fmt: skip


def device_json(gpu: Gpu | None) -> dict[str, Any]:
    """Return the `device` object of the schema."""
    if gpu is None:
        return {"kind": "cpu", "name": cpu_name(), "cores": core_count()}
    return {"kind": "cuda", "name": gpu.name, "compute_capability": gpu.version}


def head(command: str, gpu: Gpu | None) -> dict[str, Any]:
    """Return the fields that begin every document: schema, command, date, device and software."""
    from lenetgpu.gpu.software import software

    return {
        "schema": SCHEMA,
        "command": command,
        "date": datetime.date.today().isoformat(),
        "device": device_json(gpu),
        **software(gpu),
    }


def ceilings_json(limits: Ceilings) -> dict[str, Any]:
    """Return the `ceilings` object of the schema."""
    names = ("copy_gbs", "fma_tflops", "tensor_tflops", "date", "cores")
    return {name: getattr(limits, name) for name in names} | {"cuda_driver": limits.driver}


def times_json(summary: Summary) -> dict[str, float]:
    """Return median and percentiles in milliseconds."""
    return {f"{name}_ms": getattr(summary, name) for name in ("median", "p05", "p95", "p99")}


def interval_json(interval: Interval) -> dict[str, float]:
    """Return an interval's value and bounds."""
    return {"median": interval.value, "low": interval.low, "high": interval.high}


def again_json(comparison: Comparison, limits: Ceilings | None) -> dict[str, Any] | None:
    """Return the control as a candidate, or None if the baseline was not timed twice."""
    again = comparison.again
    if again is None or comparison.control() is None:
        return None
    return candidate_json(comparison, again, limits)


def launch_of_sums(
    launches: list[Launch], variant: Variant | None, registers: Callable[[Kernel], int]
) -> Launch | None:
    """Return the launch that computes the variant's sums, or None if a library computes them.

    Sums are held in registers; copies, im2col and transforms use few. Of the kernels with at
    least `_NEAR` of the highest register count, it is the largest launch of the last one from a
    source named after the variant's module, else of the last one. `registers` returns a
    kernel's registers per thread.
    """
    if not launches or (variant is not None and variant.family in _LIBRARIES):
        return None
    module = "" if variant is None else inspect.unwrap(variant.run).__module__
    kernels = list(dict.fromkeys(launch.kernel for launch in launches))
    most = max(map(registers, kernels))
    near = [kernel for kernel in kernels if registers(kernel) >= _NEAR * most]
    own = [kernel for kernel in near if kernel.source.stem == module.rpartition(".")[2]]
    chosen = [launch for launch in launches if launch.kernel == (own or near)[-1]]
    return max(chosen, key=lambda launch: prod(launch.grid))


def launch_json(launches: list[Launch], variant: Variant | None = None) -> dict[str, Any]:
    """Return grid, block, registers, memory, occupancy and waves of `launch_of_sums`, or nulls."""
    from lenetgpu.gpu.launch import active_blocks, binding_limit, occupancy

    launch = launch_of_sums(
        launches, variant, lambda kernel: compile_kernel(kernel, current_arch()).resources.registers
    )
    if launch is None:
        return dict.fromkeys(_LAUNCH)
    concurrent = active_blocks(launch) * multiprocessors()
    resources = compile_kernel(launch.kernel, current_arch()).resources
    return {
        **{name: [*getattr(launch, name), 1, 1][:3] for name in ("grid", "block")},
        "registers": resources.registers,
        "shared_bytes": resources.shared_bytes + launch.shared,
        "local_bytes": resources.stack_bytes,
        "occupancy": occupancy(launch),
        "blocks_per_sm": active_blocks(launch),
        "limited_by": binding_limit(launch),
        "waves": prod(launch.grid) / concurrent if concurrent else None,
    }


def rates_json(
    flop: int, moved: int, seconds: float, precision: str, limits: Ceilings | None
) -> dict[str, Any]:
    """Return operations, bytes, their rates, the roofline share, and the side that bounds it."""
    share, bound = (None, None) if limits is None else limits.share(flop, moved, seconds, precision)
    return {
        "gflop": flop / 1e9,
        "mbytes": moved / 1e6,
        "tflops": flop / seconds / 1e12 if seconds else 0.0,
        "gbs": moved / seconds / 1e9 if seconds else 0.0,
        "roofline": share,
        "bound": bound,
    }


def stage_rows(
    timings: list[StepTiming], images: int, limits: Ceilings | None
) -> list[dict[str, Any]]:
    """Return the `stages` list of the schema, with each step's share of the total time."""
    summaries = [summarise(row.samples) for row in timings]
    total = sum(summary.median for summary in summaries) or 1.0
    rows = []
    for row, summary in zip(timings, summaries, strict=True):
        step, problem, seconds = row.step, row.step.problem, summary.median / 1e3
        flop, moved = 0, 4 * images * prod(step.writes[1])
        if problem is not None:
            flop, moved = problem.flop(images), problem.bytes(images)
        how = ("fp32", None) if step.variant is None else (step.variant.precision, limits)
        rates = rates_json(flop, moved, seconds, *how)
        names = {"stages": list(step.stages), "name": step.name, "variant": step.label}
        times = times_json(summary) | {"share": summary.median / total}
        machine = {"machine": row.machine and row.machine.as_json()}
        rows.append(names | times | rates | launch_json(row.launches, step.variant) | machine)
    return rows


def candidate_json(
    comparison: Comparison, candidate: Candidate, limits: Ceilings | None
) -> dict[str, Any]:
    """Return one entry of `candidates`: its check, its samples, its ratio to the baseline."""
    from lenetgpu.measure.statistics import time_interval, warnings

    names = ("name", "precision", "status", "note")
    entry: dict[str, Any] = {name: getattr(candidate, name) for name in names}
    if candidate.bits is not None:
        entry["bits"] = candidate.bits
    if candidate.errors is not None:
        entry["same_images"] = asdict(candidate.errors)
    if candidate.checked is not None:
        checked = candidate.checked
        entry |= {
            "max_error": checked.largest,
            "relative_error": checked.verdict.error,
            "tolerance": checked.verdict.tolerance,
            "label_flips": checked.flips,
            "checked_images": checked.images,
            "first_bad_stage": checked.first_bad,
        }
    if not candidate.samples or candidate.bench is None:
        return entry
    summary, bench = summarise(candidate.samples), candidate.bench
    entry |= {
        "images": bench.images,
        "scaled_from": bench.scaled_from,
        **times_json(summary),
        "interval_ms": interval_json(time_interval(candidate.samples)),
        "samples_ms": summary.samples,
        "method": bench.method or None,
        "note": candidate.note or bench.note,
        "warmup": candidate.warmup,
        "warnings": warnings(candidate.samples),
    }
    if candidate.machine is not None:
        entry["machine"] = candidate.machine.as_json()
    ratio = comparison.ratio(candidate)
    if ratio is not None:
        entry["ratio"] = interval_json(ratio)
        entry["verdict"] = comparison.verdict(candidate)
    if bench.problem is not None:
        problem, n = bench.problem, bench.images
        took = summary.median / 1e3
        entry |= rates_json(problem.flop(n), problem.bytes(n), took, candidate.precision, limits)
        entry |= {"reads": problem.reads, "writes": problem.writes}
        entry |= launch_json(bench.launched, getattr(bench, "variant", None))
        if bench.launched:
            entry["launched"] = [*dict.fromkeys(each.kernel.entry for each in bench.launched)]
    else:
        entry["images_per_second"] = bench.images / (summary.median / 1e3)
    return entry


def comparison_json(
    comparison: Comparison, gpu: Gpu | None, limits: Ceilings | None
) -> dict[str, Any]:
    """Return the document of `lenetgpu compare --json`, with every raw sample."""
    names = ("what", "baseline", "cold_l2", "interrupted", "rounds")
    return head("compare", gpu) | {
        **{name: getattr(comparison, name) for name in names},
        "baseline_again": again_json(comparison, limits),
        "candidates": [candidate_json(comparison, c, limits) for c in comparison.candidates],
    }


def plan_json(plan: Plan) -> list[dict[str, Any]]:
    """Return the `plan` list of the schema."""
    return [{"stages": list(s.stages), "variant": s.variant.full_name} for s in plan.stages]


def infer_json(outcome: Outcome) -> dict[str, Any]:
    """Return the document of `lenetgpu infer --json` (schema 1)."""
    phases, n, correct, counts = outcome.phases, outcome.done, outcome.correct, outcome.counts
    timing = {
        **{name: phases.get(name, 0.0) for name in PHASES},
        "compute": outcome.compute.as_json(),
        "end_to_end": outcome.end_to_end.as_json(),
    }
    return head("infer", outcome.gpu) | {
        "images": n,
        "batch": min(outcome.batch, n),
        "correct": correct,
        "accuracy": None if correct is None else correct / n,
        "per_digit": None if counts is None else per_digit(counts),
        "confusions": None if counts is None else confusions(counts),
        "precision": outcome.plan.precision,
        "weights": outcome.weights.source,
        "data": outcome.data,
        "plan": plan_json(outcome.plan),
        "timing_ms": timing,
        "images_per_second": outcome.images_per_second,
        "stages": stage_rows(outcome.rows, n, outcome.limits),
    }
