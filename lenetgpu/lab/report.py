"""Results for people (tables) and for programs (JSON, one schema for every command)."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.gpu.launch import Launch
from lenetgpu.lab.timing import StepTiming, summarise

if TYPE_CHECKING:
    from rich.console import Console

    from lenetgpu.inference import Outcome
    from lenetgpu.plan import Plan

SCHEMA = 1


def device_json(gpu: Any) -> dict[str, Any]:
    """The `device` object of the schema."""
    if gpu is None:
        from lenetgpu.cpu.threads import core_count

        return {"kind": "cpu", "name": cpu_name(), "cores": core_count()}
    version = f"{gpu.compute_capability // 10}.{gpu.compute_capability % 10}"
    return {"kind": "cuda", "name": gpu.name, "compute_capability": version}


def cpu_name() -> str:
    """The processor's model name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()


def plan_json(plan: Plan) -> list[dict[str, Any]]:
    """The `plan` list of the schema."""
    return [{"stages": list(slot.stages), "variant": slot.variant.full_name} for slot in plan.slots]


def _heaviest(launches: list[Launch]) -> Launch | None:
    def threads(launch: Launch) -> int:
        total = 1
        for extent in (*launch.grid, *launch.block):
            total *= extent
        return total

    return max(launches, key=threads, default=None)


def _padded(dim: tuple[int, ...]) -> list[int]:
    return [*dim, 1, 1][:3]


def stage_json(row: StepTiming, images: int) -> dict[str, Any]:
    """One entry of `stages`: times, rates, and the largest launch's grid and resources."""
    summary = summarise(row.samples)
    problem, seconds = row.step.problem, summary.median / 1e3
    flop = problem.flop(images) if problem is not None else 0
    if problem is not None:
        moved = problem.bytes(images)
    else:
        items = images
        for extent in row.step.writes[1]:
            items *= extent
        moved = 4 * items
    entry: dict[str, Any] = {
        "stages": list(row.step.stages),
        "name": row.step.name,
        "variant": row.step.label,
        "median_ms": summary.median,
        "p05_ms": summary.p05,
        "p95_ms": summary.p95,
        "gflop": flop / 1e9,
        "mbytes": moved / 1e6,
        "tflops": flop / seconds / 1e12 if seconds else 0.0,
        "gbs": moved / seconds / 1e9 if seconds else 0.0,
        "roofline": None,
        "grid": None,
        "block": None,
        "registers": None,
        "shared_bytes": None,
        "local_bytes": None,
    }
    launch = _heaviest(row.launches)
    if launch is not None:
        from lenetgpu.gpu.device import current_arch
        from lenetgpu.gpu.nvrtc import compile_kernel

        resources = compile_kernel(launch.kernel, current_arch()).resources
        entry |= {
            "grid": _padded(launch.grid),
            "block": _padded(launch.block),
            "registers": resources.registers,
            "shared_bytes": resources.shared_bytes + launch.shared,
            "local_bytes": resources.stack_bytes,
        }
    return entry


def infer_json(outcome: Outcome, import_ms: float) -> dict[str, Any]:
    """`lenetgpu infer --json`: schema 1."""
    phases, n = outcome.phases, len(outcome.dataset)
    correct = outcome.correct
    timing = {
        "import": import_ms + phases.get("import", 0.0),
        **{name: phases.get(name, 0.0) for name in ("context", "compile", "load", "copy", "first")},
        "compute": outcome.compute.as_json(),
        "end_to_end": outcome.end_to_end.as_json(),
    }
    return {
        "schema": SCHEMA,
        "command": "infer",
        "date": datetime.date.today().isoformat(),
        "images": n,
        "batch": min(outcome.request.batch, n),
        "correct": correct,
        "accuracy": None if correct is None else correct / n,
        "device": device_json(outcome.gpu),
        "precision": outcome.plan.precision,
        "weights": outcome.weights.source,
        "data": outcome.dataset.source,
        "plan": plan_json(outcome.plan),
        "timing_ms": timing,
        "images_per_second": outcome.images_per_second,
        "stages": [stage_json(row, n) for row in outcome.rows],
    }


def _shown(source: str) -> str:
    """A path as the user would type it: relative where it lies below the working folder."""
    path = Path(source)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else source


def describe_device(outcome: Outcome) -> str:
    """One line: the device and why it was chosen."""
    found = device_json(outcome.gpu)
    detail = (
        f"{found['cores']} cores"
        if outcome.gpu is None
        else f"compute capability {found['compute_capability']}"
    )
    return f"{found['name']} ({detail}; {outcome.why_device})"


def print_stages(console: Console, outcome: Outcome) -> None:
    """The per-stage table, ending with the residual between its sum and the unprofiled pass."""
    from rich import box
    from rich.table import Table

    n = len(outcome.dataset)
    entries = [stage_json(row, n) for row in outcome.rows]
    total = sum(entry["median_ms"] for entry in entries)
    table = Table(
        title=f"{n:,} images, plan {outcome.plan.name}", title_justify="left",
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for name in ("stage", "variant"):
        table.add_column(name, no_wrap=True)
    on_gpu = outcome.gpu is not None
    heads = ["median ms", "p05", "p95", "share", "TFLOP/s", "GB/s"]
    if on_gpu:
        heads += ["grid", "block", "regs", "shared", "local"]
    for name in heads:
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        cells = [
            entry["name"],
            entry["variant"],
            f"{entry['median_ms']:.3f}",
            f"{entry['p05_ms']:.3f}",
            f"{entry['p95_ms']:.3f}",
            f"{entry['median_ms'] / total:.1%}",
            f"{entry['tflops']:.2f}" if entry["gflop"] else "",
            f"{entry['gbs']:.1f}",
        ]
        if on_gpu:
            launched = entry["grid"] is not None
            cells += (
                [
                    "x".join(map(str, entry["grid"])),
                    "x".join(map(str, entry["block"])),
                    str(entry["registers"]),
                    str(entry["shared_bytes"]),
                    str(entry["local_bytes"]),
                ]
                if launched
                else [""] * 5
            )
        table.add_row(*cells)
    table.add_section()
    table.add_row("sum", "", f"{total:.3f}")
    table.add_row("compute", "unprofiled pass", f"{outcome.compute.median:.3f}")
    table.add_row("residual", "", f"{outcome.compute.median - total:+.3f}")
    console.print(table)


def print_infer(console: Console, outcome: Outcome, import_ms: float) -> None:
    """The lines that end `lenetgpu infer`."""
    n = len(outcome.dataset)
    console.print(f"device   {describe_device(outcome)}", soft_wrap=True, highlight=False)
    console.print(
        f"data     {n:,} images, {_shown(outcome.dataset.source)}", soft_wrap=True, highlight=False
    )
    console.print(f"weights  {_shown(outcome.weights.source)}", soft_wrap=True, highlight=False)
    ran = ", ".join(
        f"{'+'.join(slot.stages)}={slot.variant.full_name}" for slot in outcome.plan.slots
    )
    console.print(
        f"plan     {outcome.plan.name}, {outcome.plan.precision}: {ran}",
        soft_wrap=True,
        highlight=False,
    )
    if outcome.rows:
        print_stages(console, outcome)
    correct = outcome.correct
    if correct is None:
        console.print("accuracy unknown: the data has no labels", highlight=False)
    else:
        console.print(f"[bold]accuracy {correct:,}/{n:,} = {correct / n:.2%}[/]", highlight=False)
    compute, whole = outcome.compute, outcome.end_to_end
    console.print(
        f"[bold]elapsed  {whole.median:,.2f} ms host to host, {compute.median:,.2f} ms compute[/] "
        f"(medians of {len(whole.samples)} and {len(compute.samples)} passes), "
        f"{outcome.images_per_second:,.0f} images/s",
        soft_wrap=True,
        highlight=False,
    )
    phases = {"import": import_ms} | {
        name: outcome.phases[name]
        for name in ("import", "context", "compile", "load", "copy", "first")
        if name in outcome.phases
    }
    phases["import"] = import_ms + outcome.phases.get("import", 0.0)
    spent = ", ".join(f"{name} {ms:,.0f}" for name, ms in phases.items())
    console.print(
        f"time     {spent}, compute {compute.median:,.2f} ms", soft_wrap=True, highlight=False
    )
