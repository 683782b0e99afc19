"""`lenetgpu profile`: measure a plan's stages and write them in every format."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lenetgpu.cpu.threads import cpu_name
from lenetgpu.dispatch.candidates import comparable
from lenetgpu.files import assets
from lenetgpu.lab import counters as hardware
from lenetgpu.lab.infer import infer
from lenetgpu.lab.summary import describe_device, stage_parts
from lenetgpu.lab.tables import STAGE, Part, Table
from lenetgpu.measure.counters import document as counters_of
from lenetgpu.measure.counters.child import Images, Work
from lenetgpu.measure.document import ceilings_json, head, infer_json, stage_rows
from lenetgpu.measure.outcome import Outcome, Progress, Request
from lenetgpu.measure.trace import chrome_trace, copies_under_kernels
from lenetgpu.plan import choose_device
from lenetgpu.store import json_text


@dataclass(frozen=True)
class Profile:
    """An outcome with its stage rows and, if requested, the counters of its kernels."""

    outcome: Outcome
    rows: list[dict[str, Any]]
    counters: dict[str, Any] | None = None

    @property
    def residual_ms(self) -> float | None:
        """The unprofiled pass minus the sum of the stages, or None if either is missing."""
        if not self.rows or not self.outcome.compute.samples:
            return None
        total: float = sum(row["median_ms"] for row in self.rows)
        return self.outcome.compute.median - total

    def hint(self) -> str | None:
        """Return the dominant cost and a suggestion, or None if no stage was timed."""
        if not self.rows:
            return None
        heaviest = max(self.rows, key=lambda row: float(row["median_ms"]))
        hint = f"hint: {heaviest['name']} ({heaviest['variant']}) takes {heaviest['share']:.0%}"
        if heaviest["roofline"] is not None:
            hint += f" at {heaviest['roofline']:.0%} of the {heaviest['bound']} roof"
        if not heaviest["stages"]:
            return f"{hint}; a plan whose stages agree on device and layout has no such row"
        if heaviest["name"] not in comparable():
            return f"{hint}; `lenetgpu compare plans` ranks the plans"
        return f"{hint}; `lenetgpu compare {heaviest['name']}` ranks its variants"

    def document(self) -> dict[str, Any]:
        """Return the JSON document: infer's schema 1, residual, ceilings and hint."""
        limits = self.outcome.limits
        document = infer_json(self.outcome) | {
            "command": "profile",
            "residual_ms": self.residual_ms,
            "hint": self.hint(),
            **self.outcome.ended(),
            "counters": self.counters,
        }
        if limits is not None:
            document["ceilings"] = ceilings_json(limits)
        return document

    def passes(self) -> str:
        """Return the number of passes timed stage by stage, worded as the end of a sentence."""
        timings = self.outcome.rows
        return f", stages timed in {len(timings[0].samples) if timings else 0} passes"

    def table(self) -> Table:
        """Return the rows, with the counters of each row's kernels."""
        if self.counters is None:
            return Table(STAGE, self.rows)
        own = {(row["stage"], row["variant"]): row for row in self.counters["rows"]}
        rows = [row | {"counters": own.get((row["name"], row["variant"]))} for row in self.rows]
        return Table([*STAGE, *hardware.nested(self.counters)], rows)

    def as_trace(self) -> str:
        """Return the traced pass for chrome://tracing or Perfetto, with its device and sources."""
        outcome = self.outcome
        where = outcome.gpu.name if outcome.gpu else cpu_name()
        title = f"lenetgpu profile --plan {outcome.plan.name} on {where}"
        stream = "all cores" if outcome.gpu is None else "stream {}"
        trace = chrome_trace(outcome.trace, title, stream, outcome.interrupted)
        trace["otherData"]["made"] = head("profile", outcome.gpu)
        return json_text(trace)

    def parts(self) -> Iterator[Part]:
        """Yield the table, the device's ceilings, and the hint."""
        outcome, limits = self.outcome, self.outcome.limits
        yield f"device  {describe_device(outcome)}"
        if limits is not None:
            tensor = f", tensor cores {limits.tensor_tflops:,.0f} TFLOP/s"
            yield (
                f"roof    copy {limits.copy_gbs:,.0f} GB/s, multiply-adds "
                f"{limits.fma_tflops:.3g} TFLOP/s{tensor if limits.tensor_tflops else ''} "
                f"(measured {limits.date})"
            )
        yield from (f"note    {note}" for note in outcome.notes)
        if outcome.model is not None and outcome.chunk is not None:
            copies, model = ", zero-copy" if outcome.zero_copy else "", outcome.model
            yield (
                f"bus     chunks of up to {outcome.chunk:,} images, streams {outcome.streams}"
                f"{copies}, host to host: {outcome.end_to_end.median:.3f} ms, predicted "
                f"{model['predicted']:.3f} ms, copy alone {model['bare_copy']:.3f} ms"
            )
        if self.rows:
            yield from stage_parts(outcome)
        if self.counters is not None:
            yield from hardware.parts(self.counters, self.counters["rows"], kernels=True)
        if outcome.trace and outcome.gpu is not None:
            total, hidden = copies_under_kernels(outcome.trace)
            yield (
                f"trace   {total:.3f} ms of copies, {hidden:.3f} ms of them overlap with stages "
                "of other streams"
            )
        if self.rows:
            yield self.hint()


def profile(request: Request, progress: Progress | None = None, counters: bool = False) -> Profile:
    """Run `request` with timing and ceilings; `counters` need a GPU (LenetError), and come last."""
    if counters:
        counters_of.require_gpu(*choose_device(request.device, request.plan))
    outcome, counted = infer(request, progress), None
    if counters and not outcome.interrupted:
        try:
            counted = _counters(outcome)
        except KeyboardInterrupt:
            outcome.interrupted = True
    return Profile(outcome, stage_rows(outcome.rows, outcome.done, outcome.limits), counted)


def _counters(outcome: Outcome) -> dict[str, Any]:
    request, gpu = outcome.request, outcome.gpu
    assert gpu is not None
    data = request.data or assets.default_digits()
    weights = request.weights or assets.default_weights()
    how = (request.skip, request.chunk, request.transfers)
    images = Images(data, weights, outcome.batch, *how)
    head, (rows,) = counters_of.find([Work.of(outcome.plan)], images, gpu)
    return head | {"rows": rows}
