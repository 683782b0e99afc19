"""Request and outcome of a pipeline run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.check.mistakes import Gallery, confusion
from lenetgpu.cpu.threads import MOST_THREADS
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.orientation import AUTO as AUTO_POLARITY
from lenetgpu.files.orientation import Orientation
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.plan import AUTO, Plan

if TYPE_CHECKING:
    from lenetgpu.measure.roofline import Ceilings
    from lenetgpu.measure.timing import StepTiming, Summary
    from lenetgpu.measure.trace import TraceEvent

DEFAULT_BATCH = 10_000
TRANSFERS = ("device", "host")
MOST_STREAMS = 128  # Most CUDA streams of a run; a GPU runs no more kernels at once.
FEW = 30  # images; up to this many are shown one by one, more are counted by digit
Progress = Callable[[int, int], None]  # callback: images done, images in total


@dataclass(frozen=True)
class Request:
    """Options of `lenetgpu infer`; what is None is chosen automatically."""

    data: Path | None = None
    weights: Path | None = None
    batch: int | None = None
    limit: int | None = None
    skip: int = 0
    plan: str = AUTO
    overrides: dict[str, str] = field(default_factory=dict)
    precision: str | None = None
    device: str = "auto"
    threads: int | None = None
    streams: int | None = None
    chunk: int | None = None
    timing: bool = False
    scores: bool = False
    mistakes: bool = False  # collect misclassified images
    transfers: str = "device"
    roofline: bool = False
    trace: bool = False
    min_accuracy: float | None = None
    repeat: int = 0  # passes timed after the one that computes labels
    each: bool = False  # show up to FEW images one by one
    polarity: str = AUTO_POLARITY
    transpose: bool = False

    def images_a_pass(self, images: int) -> int:
        """Return the images per pass of the pipeline, out of `images` in all."""
        return min(self.batch or DEFAULT_BATCH, images)

    @property
    def orientation(self) -> Orientation:
        """Orientation of the stored images."""
        return Orientation(self.polarity, self.transpose)

    @property
    def scored(self) -> bool:
        """True if scores are needed as well as labels."""
        return self.scores or self.mistakes

    def check_labels(self, labels: Any, where: str) -> None:
        """Raise LenetError if an option needs labels and `where` has none."""
        wanted = {"--min-accuracy": self.min_accuracy is not None, "--errors": self.mistakes}
        for option, needed in wanted.items():
            if needed and labels is None:
                raise LenetError(f"{option}: expected labels in {where}, found none")

    def check(self) -> None:
        """Raise LenetError if a number or word is invalid."""
        for option, number, least, most, unit in (
            ("--batch", self.batch, 1, inf, " image"),
            ("--limit", self.limit, 1, inf, " image"),
            ("--chunk", self.chunk, 1, inf, " image"),
            ("--repeat", self.repeat, 0, inf, ""),
            ("--skip", self.skip, 0, inf, ""),
            ("--streams", self.streams, 1, MOST_STREAMS, ""),
            ("--threads", self.threads, 1, MOST_THREADS, ""),
        ):
            if number is not None and number < least:
                raise LenetError(f"{option}: expected at least {least}{unit}, found {number}")
            if number is not None and number > most:
                raise LenetError(f"{option}: expected at most {most:,}, found {number:,}")
        share = self.min_accuracy
        if share is not None and not 0 <= share <= 1:
            raise LenetError(f"--min-accuracy: expected a share from 0 to 1, found {share:g}")
        self.orientation.check("--polarity")
        if self.transfers not in TRANSFERS:
            raise unexpected("--transfers", " or ".join(TRANSFERS), repr(self.transfers))


@dataclass
class Outcome:
    """Labels, scores if requested, and times in milliseconds."""

    request: Request
    data: str
    truth: Any  # None if `data` has no labels
    weights: Weights
    plan: Plan
    gpu: Gpu | None
    why_device: str
    labels: Any  # (done,) int32
    scores: Any
    compute: Summary  # without repeats, no samples on a GPU, where copies and kernels overlap
    end_to_end: Summary  # of the pass that computed the labels, or of the repeated ones
    phases: dict[str, float]
    rows: list[StepTiming]
    limits: Ceilings | None = None
    trace: list[TraceEvent] = field(default_factory=list)
    requested: int = 0
    interrupted: bool = False
    repeated: bool = False
    streams: int = 1
    chunk: int | None = None  # images per GPU chunk; chunks alternate over the streams
    zero_copy: bool = False  # GPU kernels read the host's memory instead of copied chunks
    # ms by the schedule's model: `predicted` host to host, `bare_copy` of all images
    model: dict[str, float] | None = None
    streamed: bool = False  # `end_to_end` is from file to labels
    notes: list[str] = field(default_factory=list)
    mistakes: Gallery | None = None  # misclassified images, if requested
    images: Any = None  # (requested, 28, 28, 1), uint8 or float32 in 0..1, if each is shown

    @property
    def done(self) -> int:
        """Number of classified images."""
        return len(self.labels)

    @property
    def batch(self) -> int:
        """Images per pass, except the last: at most the number of images."""
        return self.request.images_a_pass(max(self.requested, self.done))

    def ended(self) -> dict[str, Any]:
        """Return the JSON fields on the run's extent and schedule, and on what was timed."""
        names = ("interrupted", "batch", "streams", "chunk", "zero_copy", "repeated", "notes")
        return {name: getattr(self, name) for name in names} | {
            "images_asked": self.requested,
            "images_done": self.done,
            "model_ms": self.model,
            "from": "file" if self.streamed else "memory",
        }

    def sentence(self) -> str:
        """Return a message on how far an interrupted run came."""
        done = self.done
        missing = f", {self.requested - done:,} not" if done < self.requested else ""
        return f"lenetgpu: interrupted: {done:,} of {self.requested:,} images classified{missing}"

    @property
    def correct(self) -> int | None:
        """Number of correct labels, or None if the data has no labels."""
        return None if self.truth is None else int((self.labels == self.truth).sum())

    @cached_property
    def counts(self) -> Any:
        """Confusion matrix (10, 10) of label by prediction; None if the data has no labels."""
        return None if self.truth is None else confusion(self.truth, self.labels)

    @property
    def too_low(self) -> bool:
        """True if the share of correct labels is below the requested minimum."""
        least, correct = self.request.min_accuracy, self.correct
        return least is not None and correct is not None and correct / self.done < least

    @property
    def images_per_second(self) -> float:
        """Images over the median end-to-end time."""
        return self.done / (self.end_to_end.median / 1e3)
