"""A job: its inputs cut into shards, and all that decides what their labels are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lenetgpu import __version__
from lenetgpu.errors import LenetError
from lenetgpu.shards.inputs import Input
from lenetgpu.store import json_text

SHARD = 1_000_000
"""Images of a shard, where nothing else is asked."""


@dataclass(frozen=True)
class Shard:
    """Images `lo` to `hi` of one file; its labels are in a file of its own, `name`."""

    number: int
    input: Input
    lo: int
    hi: int
    name: str

    def __len__(self) -> int:
        return self.hi - self.lo


@dataclass(frozen=True)
class Job:
    """What is read, by which weights and plan, in shards of at most `size` images, to which form.

    Two jobs that are equal give the same files; `form` is an ending (".npy"). `weights` is their
    path, `digest` what they are known by; `plan` and `device` ("cpu", "cuda") are what really runs.
    """

    inputs: tuple[Input, ...]
    weights: str
    digest: str
    plan: str
    precision: str
    device: str
    size: int = SHARD
    form: str = ".npy"
    scores: bool = False

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All of them, in the order of inputs; a shard has images of one file only."""
        cuts = [(i, lo, min(lo + size, i.images)) for i, lo, size in self._cuts()]
        digits = max(5, len(str(len(cuts) - 1)))
        return tuple(
            Shard(number, i, lo, hi, f"part-{number:0{digits}}{self.form}")
            for number, (i, lo, hi) in enumerate(cuts)
        )

    def _cuts(self) -> Iterator[tuple[Input, int, int]]:
        for entry in self.inputs:
            size = entry.images if entry.whole else self.size
            for lo in range(0, entry.images, size):
                yield entry, lo, size

    @property
    def images(self) -> int:
        """Images of all inputs."""
        return sum(entry.images for entry in self.inputs)

    @cached_property
    def key(self) -> str:
        """What the job is known by."""
        return hashlib.sha256(json_text(self.header()).encode()).hexdigest()[:16]

    def header(self) -> dict[str, Any]:
        """The manifest's first line."""
        return {"schema": 1, "lenetgpu": __version__, "job": asdict(self)}


def of_header(document: Any) -> Job:
    """The job of a manifest's first line; ValueError or TypeError where it is none."""
    if document["schema"] != 1:
        raise ValueError(f"schema {document['schema']}")
    found = dict(document["job"])
    found["inputs"] = tuple(Input(**entry) for entry in found["inputs"])
    return Job(**found)


_WORDS = {
    "digest": "weights",
    "form": "files of",
    "size": "shards of",
    "scores": "scores",
    "plan": "plan",
    "precision": "precision",
    "device": "device",
}


def require_same(folder: Path, begun: Job, asked: Job) -> None:
    """LenetError where `folder` holds another job than the one that is asked for."""
    for name, word in _WORDS.items():
        old, new = getattr(begun, name), getattr(asked, name)
        if old != new:
            if name == "digest":
                old, new = begun.weights, f"{asked.weights}, which differ"
            raise LenetError(
                f"{folder}: expected the job that was begun there, with {word} {old}, "
                f"found {word} {new}"
            )
    if begun.inputs == asked.inputs:
        return
    before, now = ({i.path: i for i in job.inputs} for job in (begun, asked))
    for path in [*before, *now]:
        if path not in now or path not in before:
            there = "is not there now" if path in before else "was not there then"
            raise LenetError(
                f"{folder}: expected the inputs of the job that was begun there, "
                f"found that {path} {there}"
            )
        if before[path] != now[path]:
            raise LenetError(
                f"{path}: expected the file that the job in {folder} was begun with, "
                f"found it changed since"
            )
    raise LenetError(
        f"{folder}: expected the inputs in the order of the job that was begun there, "
        f"found another order"
    )
