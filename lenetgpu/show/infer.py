"""Results for people (tables) and for programs (JSON, one schema for every command)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lenetgpu.measure.document import stage_rows
from lenetgpu.show.tables import LAUNCH_COLUMNS, STAGE_COLUMNS, as_rich, used

if TYPE_CHECKING:
    from rich.console import Console

    from lenetgpu.measure.outcome import Outcome
from lenetgpu.measure.document import PHASES, device_json


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
    n = len(outcome.dataset)
    rows = stage_rows(outcome.rows, n, outcome.limits)
    total = sum(row["median_ms"] for row in rows)
    compute = outcome.compute.median
    ends = [
        {"name": "sum", "variant": "of the stages", "median_ms": total},
        {"name": "compute", "variant": "unprofiled pass", "median_ms": compute},
        {"name": "residual", "variant": "compute less sum", "median_ms": compute - total},
    ]
    columns = used((*STAGE_COLUMNS, *LAUNCH_COLUMNS), rows)
    title = f"{n:,} images, plan {outcome.plan.name}"
    console.print(as_rich(columns, [*rows, *ends], title, width=console.width))


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
        console.print(
            f"accuracy {correct:,}/{n:,} = {correct / n:.2%}", style="bold", highlight=False
        )
    compute, whole = outcome.compute, outcome.end_to_end
    console.print(
        f"[bold]elapsed  {whole.median:,.2f} ms host to host, {compute.median:,.2f} ms compute[/] "
        f"(medians of {len(whole.samples)} and {len(compute.samples)} passes), "
        f"{outcome.images_per_second:,.0f} images/s",
        markup=True,
        soft_wrap=True,
        highlight=False,
    )
    phases = {"import": import_ms} | {
        name: outcome.phases[name] for name in PHASES if name in outcome.phases
    }
    phases["import"] = import_ms + outcome.phases.get("import", 0.0)
    spent = ", ".join(f"{name} {ms:,.0f}" for name, ms in phases.items())
    console.print(
        f"time     {spent}, compute {compute.median:,.2f} ms", soft_wrap=True, highlight=False
    )
