"""The profile command: a plan's stages measured and written in every form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lenetgpu.cpu.threads import cpu_name
from lenetgpu.lab.show import counters as hardware
from lenetgpu.lab.show import infer as report
from lenetgpu.lab.show import tables
from lenetgpu.lab.show.compare import hint
from lenetgpu.lab.show.tables import LAUNCH_COLUMNS, MACHINE_COLUMNS, STAGE_COLUMNS, Column, used
from lenetgpu.measure.document import ceilings_json, head, infer_json
from lenetgpu.measure.outcome import Outcome
from lenetgpu.measure.trace import chrome_trace, copies_under_kernels
from lenetgpu.store import json_text

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = (*STAGE_COLUMNS, *LAUNCH_COLUMNS, *MACHINE_COLUMNS)


def _beside_model(outcome: Outcome) -> str:
    """What the schedule's model says of a pass, and what it took."""
    assert outcome.model is not None and outcome.chunk is not None
    how = ", zero-copy" if outcome.zero_copy else ""
    return (
        f"chunks of up to {outcome.chunk:,} images, streams {outcome.streams}{how}, host to host: "
        f"{outcome.end_to_end.median:.3f} ms, by the model {outcome.model['predicted']:.3f} ms, "
        f"the bare copy {outcome.model['bare_copy']:.3f} ms"
    )


@dataclass(frozen=True)
class Profile:
    """An outcome with its stage rows, and the counters of its kernels where they were asked for."""

    outcome: Outcome
    rows: list[dict[str, Any]]
    counters: dict[str, Any] | None = None

    @property
    def residual_ms(self) -> float | None:
        """The unprofiled pass less the sum of the stages; None where one of the two is missing."""
        if not self.rows or not self.outcome.compute.samples:
            return None
        total: float = sum(row["median_ms"] for row in self.rows)
        return self.outcome.compute.median - total

    def hint(self) -> str | None:
        """Where the time goes and what to try; None where no stage was timed."""
        return hint(self.outcome, self.rows) if self.rows else None

    def document(self) -> dict[str, Any]:
        """Schema 1, as infer's, with the residual, the ceilings and the hint."""
        limits = self.outcome.limits
        document = infer_json(self.outcome, 0.0) | {
            "command": "profile",
            "residual_ms": self.residual_ms,
            "hint": self.hint(),
            **self.outcome.ended(),
            "counters": self.counters,
        }
        if limits is not None:
            document["ceilings"] = ceilings_json(limits)
        return document

    def as_json(self) -> str:
        """The document as text."""
        return json_text(self.document(), indent=1) + "\n"

    def passes(self) -> str:
        """How many passes were timed stage by stage, as the end of a sentence."""
        timings = self.outcome.rows
        return f", stages timed in {len(timings[0].samples) if timings else 0} passes"

    def _counted(self) -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
        """The rows with the counters of all kernels of each, and the columns."""
        if self.counters is None:
            return _COLUMNS, self.rows
        own = {(row["stage"], row["variant"]): row for row in self.counters["rows"]}
        rows = [row | {"counters": own.get((row["name"], row["variant"]))} for row in self.rows]
        return (*_COLUMNS, *hardware.nested(self.counters)), rows

    def as_csv(self) -> str:
        """A line per row, counters behind it."""
        return tables.as_csv(*self._counted())

    def as_markdown(self) -> str:
        """A Markdown table of the rows, counters behind them."""
        columns, rows = self._counted()
        return tables.as_markdown(used(columns, rows), rows)

    def as_trace(self) -> str:
        """The traced pass for chrome://tracing or Perfetto, with what it was made on."""
        outcome = self.outcome
        where = outcome.gpu.name if outcome.gpu else cpu_name()
        title = f"lenetgpu profile --plan {outcome.plan.name} on {where}"
        lane = "all cores" if outcome.gpu is None else "stream {}"
        trace = json.loads(chrome_trace(outcome.trace, title, lane, outcome.interrupted))
        trace["otherData"]["made"] = head("profile", outcome.gpu)
        return json_text(trace)

    def print(self, console: Console) -> None:
        """The table, the ceilings it is judged by, and the hint."""
        limits = self.outcome.limits
        console.print(f"device  {report.describe_device(self.outcome)}", highlight=False)
        if limits is not None:
            tensor = f", tensor cores {limits.tensor_tflops:,.0f} TFLOP/s"
            console.print(
                f"roof    copy {limits.copy_gbs:,.0f} GB/s, multiply-adds "
                f"{limits.fma_tflops:.3g} TFLOP/s{tensor if limits.tensor_tflops else ''} "
                f"(measured {limits.date})",
                highlight=False,
            )
        for note in self.outcome.notes:
            console.print(f"note    {note}", soft_wrap=True, highlight=False)
        if self.outcome.model is not None:
            console.print(f"bus     {_beside_model(self.outcome)}", soft_wrap=True, highlight=False)
        if self.rows:
            report.print_stages(console, self.outcome)
        if self.counters is not None:
            hardware.print_counters(console, self.counters, self.counters["rows"], True)
        if self.outcome.trace and self.outcome.gpu is not None:
            total, hidden = copies_under_kernels(self.outcome.trace)
            console.print(
                f"trace   {total:.3f} ms of copies, {hidden:.3f} ms of them under other streams' "
                "stages",
                highlight=False,
            )
        if self.rows:
            console.print(self.hint(), highlight=False, soft_wrap=True)
