"""Results for people (tables) and for programs (JSON, one schema for every command)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.lab.show.mistakes.lines import lines
from lenetgpu.measure.document import PHASES, device_json
from lenetgpu.measure.outcome import DEFAULT_BATCH

if TYPE_CHECKING:
    from rich.console import Console

    from lenetgpu.measure.outcome import Outcome
    from lenetgpu.measure.timing import Summary

_PHASE_NAMES = {"first": "pass"}


def shown(source: str) -> str:
    """A path as the user would type it: relative where it lies below the working folder."""
    path = Path(source)
    try:
        folder = Path.cwd()
    except OSError:  # it was deleted
        return source
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else source


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
    from lenetgpu.lab.show.tables import (
        LAUNCH_COLUMNS,
        MACHINE_COLUMNS,
        STAGE_COLUMNS,
        as_rich,
        used,
    )
    from lenetgpu.measure.document import stage_rows

    n = outcome.done
    rows = stage_rows(outcome.rows, n, outcome.limits)
    total = sum(row["median_ms"] for row in rows)
    compute = outcome.compute.median
    ends = [
        {"name": "sum", "variant": "of the stages", "median_ms": total},
        {"name": "compute", "variant": "unprofiled pass", "median_ms": compute},
        {"name": "residual", "variant": "compute less sum", "median_ms": compute - total},
    ]
    columns = used((*STAGE_COLUMNS, *LAUNCH_COLUMNS, *MACHINE_COLUMNS), rows)
    if not outcome.compute.samples:
        ends = ends[:1]
    passes = len(outcome.rows[0].samples)
    title = f"{_images(outcome)}, plan {outcome.plan.name}, medians of {passes} passes"
    console.print(as_rich(columns, [*rows, *ends], title, width=console.width))
    print_above(console, outcome, rows)


def print_above(console: Console, outcome: Outcome, rows: list[dict[str, Any]]) -> None:
    """Say which stages are above the roof that they are judged by, and why that can be."""
    from lenetgpu.measure.roofline import above

    names = above(rows)
    if names and outcome.limits is not None:
        verb = "is" if len(names) == 1 else "are"
        console.print(
            f"note: {', '.join(names)} {verb} above a ceiling measured {outcome.limits.date}: "
            "what lies in a cache moves faster than the copy that measures memory",
            highlight=False,
            soft_wrap=True,
        )


def _images(outcome: Outcome) -> str:
    """How many images, and how many at once where that is not all of them as asked."""
    n, asked = outcome.done, outcome.request.batch or DEFAULT_BATCH
    of = f" of {outcome.asked:,}" if n < outcome.asked else ""
    whole = outcome.chunk is not None and outcome.chunk >= outcome.asked
    if outcome.zero_copy and whole and not outcome.streamed:
        return f"{n:,}{of} images, read by the kernels where they lie (zero-copy)"
    if outcome.chunk is not None and outcome.chunk < outcome.asked:
        streams = f"{outcome.streams} streams" if outcome.streams > 1 else "one stream"
        return f"{n:,}{of} images in chunks of up to {outcome.chunk:,} on {streams}"
    if outcome.batch < outcome.asked and outcome.chunk is None:
        return f"{n:,}{of} images in batches of {outcome.batch:,}"
    return f"{n:,}{of} {'image' if outcome.asked == 1 else 'images'}" + (
        " in one batch" if asked > outcome.asked else ""
    )


def print_infer(console: Console, outcome: Outcome, import_ms: float) -> None:
    """The lines that end `lenetgpu infer`."""
    n = outcome.done
    console.print(f"device   {describe_device(outcome)}", soft_wrap=True, highlight=False)
    console.print(
        f"data     {_images(outcome)}, {shown(outcome.data)}",
        soft_wrap=True,
        highlight=False,
    )
    console.print(f"weights  {shown(outcome.weights.source)}", soft_wrap=True, highlight=False)
    ran = ", ".join(
        f"{'+'.join(slot.stages)}={slot.variant.full_name}" for slot in outcome.plan.slots
    )
    console.print(
        f"plan     {outcome.plan.name}, {outcome.plan.precision}: {ran}",
        soft_wrap=True,
        highlight=False,
    )
    for note in outcome.notes:
        console.print(f"note     {note}", soft_wrap=True, highlight=False)
    if outcome.rows:
        print_stages(console, outcome)
    correct = outcome.correct
    if correct is None:
        console.print("accuracy unknown: the data has no labels", highlight=False)
    else:
        console.print(
            f"accuracy {correct:,}/{n:,} = {correct / n:.2%}", style="bold", highlight=False
        )
        for line in lines(outcome.counts, console.width):
            console.print(line, soft_wrap=True, highlight=False)
    compute, whole = outcome.compute, outcome.end_to_end
    own = outcome.gpu is not None and bool(compute.samples)
    inner = f", {compute.median:,.2f} ms compute" if own else ""
    console.print(
        f"[bold]elapsed  {whole.median:,.2f} ms {_ends(outcome)}{inner}[/] "
        f"({_passes(outcome)}), {outcome.images_per_second:,.0f} images/s",
        markup=True,
        soft_wrap=True,
        highlight=False,
    )
    phases = {"import": import_ms} | {
        name: outcome.phases[name] for name in PHASES if name in outcome.phases
    }
    phases["import"] = import_ms + outcome.phases.get("import", 0.0)
    spent = ", ".join(f"{_PHASE_NAMES.get(name, name)} {ms:,.0f}" for name, ms in phases.items())
    console.print(f"time     {spent} ms", soft_wrap=True, highlight=False)


def _ends(outcome: Outcome) -> str:
    """Where the elapsed time begins and ends."""
    return "file to labels" if outcome.streamed else "host to host"


def _passes(outcome: Outcome) -> str:
    """What the times are of: the one pass, or of how many that were repeated the medians."""
    if not outcome.repeated:
        return "one pass"
    whole, compute = len(outcome.end_to_end.samples), len(outcome.compute.samples)
    if outcome.gpu is None:
        return f"median of {whole} passes, {_spread(outcome.end_to_end)}"
    return f"medians of {whole} and {compute} passes, {_spread(outcome.end_to_end)}"


def _spread(summary: Summary) -> str:
    return f"{summary.p05:,.2f} to {summary.p95:,.2f}"
