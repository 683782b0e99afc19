"""Final output of `lenetgpu infer`: device, data, plan, stages, accuracy, times and scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lenetgpu.lab.mistakes import lines
from lenetgpu.measure.document import PHASES, device_json
from lenetgpu.measure.outcome import DEFAULT_BATCH

if TYPE_CHECKING:
    from lenetgpu.lab.console import Console
    from lenetgpu.lab.tables import Part
    from lenetgpu.measure.outcome import Outcome

MOST = 20  # images whose scores are printed; an output file gets all
_LEAST_WIDTH = 100
_EVERYWHERE = "--output FILE.csv writes"


def shown(source: str) -> str:
    """Return a path as the user would type it: relative if it is below the working folder."""
    path = Path(source)
    try:
        folder = Path.cwd()
    except OSError:  # the folder was deleted
        return source
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else source


def describe_device(outcome: Outcome) -> str:
    """Return the device and the reason for its choice on one line."""
    device = device_json(outcome.gpu)
    detail = f"compute capability {device.get('compute_capability')}"
    if outcome.gpu is None:
        detail = f"{device['cores']} cores"
    return f"{device['name']} ({detail}; {outcome.why_device})"


def stage_parts(outcome: Outcome) -> Iterator[Part]:
    """Yield the per-stage table, and a note on stages that exceed their roof."""
    from lenetgpu.lab.tables import STAGE, Table
    from lenetgpu.measure.document import stage_rows
    from lenetgpu.measure.roofline import above

    rows = stage_rows(outcome.rows, outcome.done, outcome.limits)
    total = sum(row["median_ms"] for row in rows)
    compute = outcome.compute.median
    ends = {"sum": ("of the stages", total)}
    if outcome.compute.samples:
        ends["compute"] = ("unprofiled pass", compute)
        ends["residual"] = ("compute less sum", compute - total)
    shown = rows + [{"name": n, "variant": v, "median_ms": ms} for n, (v, ms) in ends.items()]
    passes = len(outcome.rows[0].samples)
    title = f"{_images(outcome)}, plan {outcome.plan.name}, medians of {passes} passes"
    yield Table(STAGE, shown, title)
    for name, cause in above(rows).items():
        if outcome.limits is not None:
            yield f"note: {name} is above a ceiling measured {outcome.limits.date}: {cause}"


def _images(outcome: Outcome) -> str:
    requested, chunk = outcome.requested, outcome.chunk
    count = f"{outcome.done:,}" + (f" of {requested:,}" if outcome.done < requested else "")
    if chunk is not None and chunk < requested:
        streams = f"{outcome.streams} streams" if outcome.streams > 1 else "one stream"
        return f"{count} images in chunks of up to {chunk:,} on {streams}"
    if chunk is not None and outcome.zero_copy and not outcome.streamed:
        return f"{count} images, read by the kernels from host memory (zero-copy)"
    if chunk is None and outcome.batch < requested:
        return f"{count} images in batches of {outcome.batch:,}"
    batch = " in one batch" if (outcome.request.batch or DEFAULT_BATCH) > requested else ""
    return f"{count} {'image' if requested == 1 else 'images'}{batch}"


def print_accuracy(console: Console, outcome: Outcome) -> None:
    """Print the share of correct labels, or that it is unknown."""
    correct, count = outcome.correct, outcome.done
    if correct is None:
        console.print("accuracy unknown: the data has no labels")
    else:
        console.print("", bold=f"accuracy {correct:,}/{count:,} = {correct / count:.2%}")


def print_infer(console: Console, outcome: Outcome) -> None:
    """Print the final lines of `lenetgpu infer`."""
    console.print(f"device   {describe_device(outcome)}")
    console.print(f"data     {_images(outcome)}, {shown(outcome.data)}")
    console.print(f"weights  {shown(outcome.weights.source)}")
    bound = (f"{'+'.join(b.stages)}={b.variant.full_name}" for b in outcome.plan.stages)
    console.print(f"plan     {outcome.plan.name}, {outcome.plan.precision}: {', '.join(bound)}")
    for note in outcome.notes:
        console.print(f"note     {note}")
    if outcome.rows:
        from lenetgpu.lab.tables import show

        show(console, stage_parts(outcome))
    print_accuracy(console, outcome)
    if outcome.counts is not None:
        for line in lines(outcome.counts, console.width):
            console.print(line)
    compute, whole = outcome.compute, outcome.end_to_end
    own = outcome.gpu is not None and bool(compute.samples)
    inner = f", {compute.median:,.2f} ms compute" if own else ""
    ends = "file to labels" if outcome.streamed else "host to host"
    console.print(
        f" ({_passes(outcome)}), {outcome.images_per_second:,.0f} images/s",
        bold=f"elapsed  {whole.median:,.2f} ms {ends}{inner}",
    )
    phases = [(name, outcome.phases[name]) for name in PHASES if name in outcome.phases]
    spent = (f"{'pass' if name == 'first' else name} {ms:,.0f}" for name, ms in phases)
    console.print(f"time     {', '.join(spent)} ms")


def _passes(outcome: Outcome) -> str:
    if not outcome.repeated:
        return "one pass"
    whole, compute = outcome.end_to_end, len(outcome.compute.samples)
    spread = f"{whole.p05:,.2f} to {whole.p95:,.2f}"
    if outcome.gpu is None:
        return f"median of {len(whole.samples)} passes, {spread}"
    return f"medians of {len(whole.samples)} and {compute} passes, {spread}"


def print_scores(console: Console, outcome: Outcome) -> None:
    """Print the scores of the first MOST images, and where to find omitted ones."""
    from lenetgpu.lab.tables import Column, Table, columns, fixed, show

    if outcome.scores is None:
        console.print(
            f"scores   not kept for so many images: {_EVERYWHERE} them, --limit N prints the first"
        )
        return
    rows = []
    for index, scores in enumerate(outcome.scores[: min(outcome.done, MOST)].tolist()):
        row = {"image": outcome.request.skip + index, "label": int(outcome.labels[index])}
        truth = None if outcome.truth is None else int(outcome.truth[index])
        rows.append(row | {"truth": truth} | {f"score {k}": s for k, s in enumerate(scores)})
        if console.width < _LEAST_WIDTH:
            true = "" if truth is None else f" (truth {truth})"
            listed = ", ".join(f"{k}={score:.2f}" for k, score in enumerate(scores))
            console.print(f"image {row['image']}  label {row['label']}{true}, scores {listed}")
    if console.width >= _LEAST_WIDTH:
        each = [Column(f"of {k}", f"score {k}", fixed(2)) for k in range(outcome.scores.shape[1])]
        show(console, [Table([*columns(("image, label, truth", str)), *each], rows, "scores")])
    left = outcome.done - len(rows)
    if left:
        console.print(f"scores   of {left:,} more images: {_EVERYWHERE} all, --skip N starts later")
