"""What `lenetgpu classify` says in the end."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lenetgpu.jobs.costs import Predicted
    from lenetgpu.jobs.outcome import ClassifyOutcome


def lines(outcome: ClassifyOutcome) -> list[str]:
    """What was read, what came of it, and how fast this run was."""
    job = outcome.job
    right, labelled = outcome.right
    word = "pictures" if job.pictures else "images"
    files = "" if job.pictures else f" in {len(job.valid):,} file{'s' * (len(job.valid) != 1)}"
    found = [
        f"data     {job.images:,} {word}{files}, "
        f"{len(job.shards):,} shards of at most {job.size:,}",
        f"weights  {job.weights}",
        f"plan     {job.plan}, {job.precision}, on {outcome.machine.get('name', job.device)}",
        f"done     {outcome.images:,} {word}, {outcome.shards:,} shards in {outcome.folder}"
        + (f", {len(outcome.failed):,} set aside" if outcome.failed else "")
        + (f", {outcome.left:,} left" if outcome.left else ""),
        "digits   " + "  ".join(f"{k}: {count:,}" for k, count in enumerate(outcome.counts)),
    ]
    if outcome.lacking:
        more = ", as" if len(outcome.said) < outcome.lacking else ""
        found.append(f"no label {outcome.lacking:,} of them{more}")
        found += [f"  {sentence}" for sentence in outcome.said]
    if labelled:
        found.append(f"accuracy {right:,}/{labelled:,} = {right / labelled:.2%}")
    if outcome.fresh:
        rate = outcome.fresh_images / outcome.seconds
        found.append(
            f"elapsed  {outcome.seconds:,.2f} s for {outcome.fresh_images:,} {word} of this run, "
            f"{rate:,.0f} {word}/s"
        )
    return found


def print_predicted(console: Any, foreseen: Predicted) -> None:
    """What one worker was measured at, and what several would come to by the model."""
    from lenetgpu.lab.render import Table, show
    from lenetgpu.lab.rows import Column, fixed, words

    job = foreseen.job
    for line in _measured(foreseen):
        console.print(line)
    columns = (
        Column("workers", "workers"),
        Column("images/s", "rate", fixed(0)),
        Column("all of them, s", "seconds", fixed(1)),
        words("bound by", "bound"),
    )
    rows = [asdict(row) for row in foreseen.rows()]
    title = f"{job.images:,} images in shards of {job.size:,}, by the model"
    show(console, [Table(columns, rows, title)])


def _measured(foreseen: Predicted) -> list[str]:
    job, costs = foreseen.job, foreseen.costs
    found = [
        f"a worker, plan {job.plan} on {foreseen.machine['name']}, measured here:",
        f"  ready in            {costs.start:,.2f} s",
        f"  a reader            {costs.read:,.0f} images/s; a reader a core {costs.read_all:,.0f}",
        f"  memory to labels    {costs.label:,.0f} images/s",
    ]
    if costs.bus is not None and costs.kernels is not None:
        found.append(
            f"  of that             bus {costs.bus:,.0f}, kernels {costs.kernels:,.0f} images/s"
        )
    if costs.there > 1:
        found.append(f"  {costs.there} workers at once   {costs.label_all:,.0f} images/s")
    found.append(
        f"  a shard             {costs.opening * 1e3:,.2f} ms to open; {costs.ending * 1e3:,.2f} "
        f"to write and list, {costs.line * 1e3:,.2f} of it its line"
    )
    task = f"{costs.task * 1e3:,.2f} ms a task" if costs.task else "none; --workers 1 measures one"
    return [*found, f"  a scheduler         {task}"]
