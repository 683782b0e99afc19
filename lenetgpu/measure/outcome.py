"""What a run of the pipeline was asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lenetgpu.files.dataset import Dataset
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.timing import StepTiming, Summary
from lenetgpu.measure.trace import TraceEvent
from lenetgpu.plan import AUTO, Plan

DEFAULT_BATCH = 10_000
TRANSFERS = ("device", "host")
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Request:
    """What `lenetgpu infer` was asked for."""

    data: Path | None = None
    weights: Path | None = None
    batch: int = DEFAULT_BATCH
    limit: int | None = None
    plan: str = AUTO
    overrides: dict[str, str] = field(default_factory=dict)
    precision: str | None = None
    device: str = "auto"
    streams: int = 1
    chunk: int | None = None
    timing: bool = False
    scores: bool = False
    transfers: str = "device"
    roofline: bool = False
    trace: bool = False
    min_accuracy: float | None = None


@dataclass
class Outcome:
    """Labels, scores where asked, and where the time went, in milliseconds."""

    request: Request
    dataset: Dataset
    weights: Weights
    plan: Plan
    gpu: Gpu | None
    why_device: str
    labels: Any
    scores: Any
    compute: Summary
    end_to_end: Summary
    phases: dict[str, float]
    rows: list[StepTiming]
    limits: Ceilings | None = None
    trace: list[TraceEvent] = field(default_factory=list)

    @property
    def correct(self) -> int | None:
        """How many labels are right, or None where the data has no labels."""
        if self.dataset.labels is None:
            return None
        return int((self.labels == self.dataset.labels).sum())

    @property
    def too_low(self) -> bool:
        """Whether less than the asked share of the labels is right."""
        least, correct = self.request.min_accuracy, self.correct
        return least is not None and correct is not None and correct / len(self.dataset) < least

    @property
    def images_per_second(self) -> float:
        """Images over the median end-to-end time."""
        return len(self.dataset) / (self.end_to_end.median / 1e3)
