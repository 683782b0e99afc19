"""What `lenetgpu classify` says in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lenetgpu.commands.classify import ClassifyOutcome


def lines(outcome: ClassifyOutcome) -> list[str]:
    """What was read, what came of it, and how fast this run was."""
    job = outcome.job
    right, labelled = outcome.right
    files = "file" if len(job.inputs) == 1 else "files"
    found = [
        f"data     {job.images:,} images in {len(job.inputs):,} {files}, "
        f"{len(job.shards):,} shards of at most {job.size:,}",
        f"weights  {job.weights}",
        f"plan     {job.plan}, {job.precision}, on {outcome.machine.get('name', job.device)}",
        f"done     {outcome.images:,} images, {len(outcome.rows):,} shards in {outcome.folder}"
        + (f", {len(outcome.failed):,} set aside" if outcome.failed else "")
        + (f", {outcome.left:,} left" if outcome.left else ""),
        "digits   " + "  ".join(f"{k}: {count:,}" for k, count in enumerate(outcome.counts)),
    ]
    if labelled:
        found.append(f"accuracy {right:,}/{labelled:,} = {right / labelled:.2%}")
    if outcome.fresh:
        rate = outcome.fresh_images / outcome.seconds
        found.append(
            f"elapsed  {outcome.seconds:,.2f} s for {outcome.fresh_images:,} images of this run, "
            f"{rate:,.0f} images/s"
        )
    return found
