"""What a run of the pipeline was asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.files.dataset import Dataset
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.timing import StepTiming, Summary
from lenetgpu.measure.trace import TraceEvent
from lenetgpu.plan import AUTO, Plan

DEFAULT_BATCH = 10_000
TRANSFERS = ("device", "host")
MOST_STREAMS = 128
"""CUDA streams that a run takes at most: a GPU runs no more kernels at once."""
Progress = Callable[[int, int], None]
"""Told how many images have passed, of how many that are to pass."""


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

    def check(self) -> None:
        """LenetError unless the numbers and words are ones that can be run."""
        counts = {"--batch": self.batch, "--limit": self.limit, "--chunk": self.chunk}
        for option, count in counts.items():
            if count is not None and count < 1:
                raise LenetError(f"{option}: expected at least 1 image, found {count}")
        if self.streams < 1:
            raise LenetError(f"--streams: expected at least 1, found {self.streams}")
        if self.streams > MOST_STREAMS:
            raise LenetError(f"--streams: expected at most {MOST_STREAMS}, found {self.streams}")
        if self.min_accuracy is not None and not 0 <= self.min_accuracy <= 1:
            raise LenetError(
                f"--min-accuracy: expected a share from 0 to 1, found {self.min_accuracy:g}"
            )
        if self.transfers not in TRANSFERS:
            raise LenetError(
                f"--transfers: expected {' or '.join(TRANSFERS)}, found {self.transfers!r}"
            )


@dataclass
class Outcome:
    """Labels, scores where asked, and where the time went, in milliseconds.

    Of a run that Ctrl-C ended, `dataset` is the images that were classified, of `asked`.
    """

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
    asked: int = 0
    interrupted: bool = False
    cold: bool = False

    @property
    def batch(self) -> int:
        """Images of a pass, the last apart: no more than there are."""
        return min(self.request.batch, max(self.asked, len(self.dataset)))

    def ended(self) -> dict[str, Any]:
        """What the JSON says of the run's end: whether Ctrl-C was it, and how far it came.

        `batch` is the real one, which may be more than was done; `cold`: the only pass that was
        timed is the first.
        """
        return {
            "interrupted": self.interrupted,
            "images_asked": self.asked,
            "images_done": len(self.dataset),
            "batch": self.batch,
            "cold": self.cold,
        }

    def sentence(self) -> str:
        """How far a run that Ctrl-C ended came."""
        done = len(self.dataset)
        left = f", {self.asked - done:,} not" if done < self.asked else ""
        return f"lenetgpu: interrupted: {done:,} of {self.asked:,} images classified{left}"

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
