"""The profile command: a plan's stages measured and written in every form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lenetgpu.measure.document import ceilings_json, infer_json
from lenetgpu.measure.outcome import Outcome
from lenetgpu.measure.trace import chrome_trace, copies_under_kernels
from lenetgpu.show import infer as report
from lenetgpu.show import tables
from lenetgpu.show.compare import hint
from lenetgpu.show.tables import LAUNCH_COLUMNS, STAGE_COLUMNS, used

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Profile:
    """An outcome with its stage rows."""

    outcome: Outcome
    rows: list[dict[str, Any]]

    @property
    def residual_ms(self) -> float:
        """The unprofiled pass less the sum of the stages."""
        total: float = sum(row["median_ms"] for row in self.rows)
        return self.outcome.compute.median - total

    def as_json(self) -> str:
        """Schema 1, as infer's, with the residual, the ceilings and the hint."""
        limits = self.outcome.limits
        document = infer_json(self.outcome, 0.0) | {
            "command": "profile",
            "residual_ms": self.residual_ms,
            "hint": hint(self.outcome, self.rows),
        }
        if limits is not None:
            document["ceilings"] = ceilings_json(limits)
        return json.dumps(document, indent=1) + "\n"

    def as_csv(self) -> str:
        """A line per row."""
        return tables.as_csv((*STAGE_COLUMNS, *LAUNCH_COLUMNS), self.rows)

    def as_markdown(self) -> str:
        """A Markdown table of the rows."""
        return tables.as_markdown(used((*STAGE_COLUMNS, *LAUNCH_COLUMNS), self.rows), self.rows)

    def as_trace(self) -> str:
        """The traced pass for chrome://tracing or Perfetto."""
        streams = self.outcome.request.streams
        return chrome_trace(self.outcome.trace, f"plan {self.outcome.plan.name}, {streams} streams")

    def print(self, console: Console) -> None:
        """The table, the ceilings it is judged by, and the hint."""
        limits = self.outcome.limits
        console.print(f"device  {report.describe_device(self.outcome)}", highlight=False)
        if limits is not None:
            tensor = f", tensor cores {limits.tensor_tflops:,.0f}" if limits.tensor_tflops else ""
            console.print(
                f"roof    copy {limits.copy_gbs:,.0f} GB/s, multiply-adds "
                f"{limits.fma_tflops:.3g}{tensor} TFLOP/s (measured)",
                highlight=False,
            )
        report.print_stages(console, self.outcome)
        if self.outcome.trace:
            total, hidden = copies_under_kernels(self.outcome.trace)
            console.print(
                f"trace   {total:.3f} ms of copies, {hidden:.3f} ms of them under other streams' "
                "stages",
                highlight=False,
            )
        console.print(hint(self.outcome, self.rows), highlight=False, soft_wrap=True)
