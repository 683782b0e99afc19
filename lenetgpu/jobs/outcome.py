"""Result of a classification job when its command ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lenetgpu.jobs.inputs import Unreadable
from lenetgpu.jobs.job import Job
from lenetgpu.jobs.manifest import Failed, Row
from lenetgpu.network import CLASSES

# Most entries in a summary: pictures without a label; files that are unreadable or altered.
_REASONS, _FILES = 10, 1_000


@dataclass
class ClassifyOutcome:
    """State of a job when the command ends."""

    job: Job
    folder: Path
    bad: list[Unreadable]
    rows: dict[int, Row]
    failed: dict[int, Failed] = field(default_factory=dict)
    fresh: int = 0  # shards of this run
    fresh_images: int = 0
    seconds: float = 0.0  # time for the shards of this run
    ready_seconds: float = 0.0  # time to prepare the workers
    interrupted: bool = False
    altered: list[str] = field(default_factory=list)  # why label files differ from those listed
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Number of shards neither finished nor set aside."""
        return len(self.job.shards) - self.shards - len(self.failed)

    @property
    def shards(self) -> int:
        """Number of finished shards."""
        return sum(row.files for row in self.rows.values())

    @property
    def images(self) -> int:
        """Number of images in finished shards."""
        return sum(row.images for row in self.rows.values())

    @property
    def without_label(self) -> int:
        """Number of pictures that were read and have no label."""
        return sum(row.bad for row in self.rows.values())

    @property
    def reasons(self) -> list[str]:
        """Reasons why the first pictures without a label have none."""
        rows = (self.rows[number] for number in sorted(self.rows))
        return [reason for row in rows for reason in row.said][:_REASONS]

    @property
    def counts(self) -> list[int]:
        """Number of labels of each digit."""
        return [sum(row.counts[digit] for row in self.rows.values()) for digit in range(CLASSES)]

    @property
    def right(self) -> tuple[int, int]:
        """(correct labels, images that have labels to compare with)."""
        labelled = [row for row in self.rows.values() if row.right is not None]
        return sum(row.right or 0 for row in labelled), sum(row.images for row in labelled)

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON."""
        right, labelled = self.right
        return {
            "schema": 1,
            "command": "classify",
            "device": self.machine,
            "inputs": len(self.job.valid),
            "images": self.job.images,
            "images_done": self.images,
            "shards": len(self.job.shards),
            "shards_done": self.shards,
            "label_files": len(self.rows),
            "altered": self.altered[:_FILES],
            "plan": self.job.plan,
            "precision": self.job.precision,
            "weights": self.job.weights,
            "weights_digest": self.job.digest,
            "counts": self.counts,
            "no_label": self.without_label,
            "no_label_why": self.reasons,
            "labelled": labelled,
            "correct": right if labelled else None,
            "accuracy": right / labelled if labelled else None,
            "unreadable_files": len(self.bad),
            "unreadable": [{"path": bad.path, "why": bad.sentence} for bad in self.bad[:_FILES]],
            "set_aside": [
                {"shard": f.shard, "images": f.images, "tries": f.tries, "why": f.sentence}
                for f in self.failed.values()
            ],
            "this_run": {
                "shards": self.fresh,
                "images": self.fresh_images,
                "seconds": self.seconds,
                "ready_seconds": self.ready_seconds,
                "images_per_second": self.fresh_images / self.seconds if self.seconds else 0.0,
            },
            "interrupted": self.interrupted,
        }
