"""What a run of the pipeline was asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.check.mistakes import confusion
from lenetgpu.cpu.threads import MOST_THREADS
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.plan import AUTO, Plan

if TYPE_CHECKING:
    from lenetgpu.check.mistakes import Gallery
    from lenetgpu.measure.roofline import Ceilings
    from lenetgpu.measure.timing import StepTiming, Summary
    from lenetgpu.measure.trace import TraceEvent

DEFAULT_BATCH = 10_000
TRANSFERS = ("device", "host")
MOST_STREAMS = 128
"""CUDA streams that a run takes at most: a GPU runs no more kernels at once."""
FEW = 30
"""Images that are shown one by one; of more the digits are counted."""
Progress = Callable[[int, int], None]
"""Told how many images have passed, of how many that are to pass."""


@dataclass(frozen=True)
class Request:
    """What `lenetgpu infer` was asked for.

    `batch` None: DEFAULT_BATCH, and no bound for the chunks of a GPU. `streams` and `chunk` None:
    chosen. `repeat` passes are timed after the one that labels;
    `timing` and `roofline` take their own. `mistakes`: what is read wrong is kept, and shown.
    `each`: images are shown one by one where they are FEW, for which these and scores are kept.
    """

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
    mistakes: bool = False
    transfers: str = "device"
    roofline: bool = False
    trace: bool = False
    min_accuracy: float | None = None
    repeat: int = 0
    each: bool = False

    def images_a_pass(self, images: int) -> int:
        """Images of a pass of the pipeline, of so many in all."""
        return min(self.batch or DEFAULT_BATCH, images)

    @property
    def scored(self) -> bool:
        """Whether scores are wanted beside the labels."""
        return self.scores or self.mistakes

    def check_labels(self, labels: Any, where: str) -> None:
        """LenetError where what was asked for needs labels and there are none in `where`."""
        wanted = {"--min-accuracy": self.min_accuracy is not None, "--errors": self.mistakes}
        for option in wanted:
            if wanted[option] and labels is None:
                raise LenetError(f"{option}: expected labels in {where}, found none")

    def check(self) -> None:
        """LenetError unless the numbers and words are ones that can be run."""
        for option, asked, least, most, unit in (
            ("--batch", self.batch, 1, inf, " image"),
            ("--limit", self.limit, 1, inf, " image"),
            ("--chunk", self.chunk, 1, inf, " image"),
            ("--repeat", self.repeat, 0, inf, ""),
            ("--skip", self.skip, 0, inf, ""),
            ("--streams", self.streams, 1, MOST_STREAMS, ""),
            ("--threads", self.threads, 1, MOST_THREADS, ""),
        ):
            if asked is not None and asked < least:
                raise LenetError(f"{option}: expected at least {least}{unit}, found {asked}")
            if asked is not None and asked > most:
                raise LenetError(f"{option}: expected at most {most:,}, found {asked:,}")
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

    `labels` (done,) int32 of `asked` images, fewer where Ctrl-C ended the run; `truth` (done,) or
    None where `data` has no labels. `end_to_end` is the pass that labelled, unless passes were
    repeated; `compute` has no sample then on a GPU, where copies and kernels overlap.
    """

    request: Request
    data: str
    truth: Any
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
    repeated: bool = False
    streams: int = 1
    chunk: int | None = None
    """Images of a GPU's chunks, which go round its streams."""
    zero_copy: bool = False
    """Chunks are not copied to the GPU: its kernels read the host's memory."""
    model: dict[str, float] | None = None
    """What the schedule's model says in ms: `predicted` host to host, `bare_copy` of all images."""
    streamed: bool = False
    """Read while it was computed: `end_to_end` is from the file to labels."""
    notes: list[str] = field(default_factory=list)
    mistakes: Gallery | None = None
    """What was read wrong, where the request wants it."""
    images: Any = None
    """Of FEW, that the request wants shown each: (asked, 28, 28, 1), uint8 or float32 in 0..1."""

    @property
    def done(self) -> int:
        """Images that were classified."""
        return len(self.labels)

    @property
    def batch(self) -> int:
        """Images of a pass, the last apart: no more than there are."""
        return self.request.images_a_pass(max(self.asked, self.done))

    def ended(self) -> dict[str, Any]:
        """What the JSON says of the run's end: whether Ctrl-C was it, and how far it came.

        `batch` is the real one, which may be more than was done; `repeated`: times are of passes
        after the one that labelled; `from`: whether `end_to_end` begins in memory or in the file.
        """
        return {
            "interrupted": self.interrupted,
            "images_asked": self.asked,
            "images_done": self.done,
            "batch": self.batch,
            "streams": self.streams,
            "chunk": self.chunk,
            "zero_copy": self.zero_copy,
            "model_ms": self.model,
            "repeated": self.repeated,
            "from": "file" if self.streamed else "memory",
            "notes": self.notes,
        }

    def sentence(self) -> str:
        """How far a run that Ctrl-C ended came."""
        done = self.done
        left = f", {self.asked - done:,} not" if done < self.asked else ""
        return f"lenetgpu: interrupted: {done:,} of {self.asked:,} images classified{left}"

    @property
    def correct(self) -> int | None:
        """How many labels are right, or None where the data has no labels."""
        return None if self.truth is None else int((self.labels == self.truth).sum())

    @cached_property
    def counts(self) -> Any:
        """How often each digit was read as each, (10, 10); None where the data has no labels."""
        return None if self.truth is None else confusion(self.truth, self.labels)

    @property
    def too_low(self) -> bool:
        """Whether less than the asked share of the labels is right."""
        least, correct = self.request.min_accuracy, self.correct
        return least is not None and correct is not None and correct / self.done < least

    @property
    def images_per_second(self) -> float:
        """Images over the median end-to-end time."""
        return self.done / (self.end_to_end.median / 1e3)
