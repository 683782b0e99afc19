"""A job: its inputs divided into shards, and all settings that determine its labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from lenetgpu import __version__
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.orientation import AUTO, BLACK, Orientation
from lenetgpu.jobs.inputs import Input
from lenetgpu.store import json_text

SHARD, PICTURES = 1_000_000, 1_000  # default images per shard, and pictures per shard
SCHEMA = 2  # version of the manifest format
# Limits of shared label files: images of one input file, images in total, number of input files.
LITTLE, TOGETHER, FILES = 4_096, 60_000, 1_000
MOST = 1_000_000  # shards of a job: up to here label files sort by their shards' numbers


@dataclass(frozen=True)
class Shard:
    """Images `lo` to `hi` of one input, whose labels are in file `name`."""

    number: int
    input: Input
    lo: int
    hi: int
    name: str
    more: tuple[Shard, ...] = ()  # following ones that share the file, each a whole input file

    def __len__(self) -> int:
        return self.hi - self.lo + sum(map(len, self.more))

    @property
    def each(self) -> tuple[Shard, ...]:
        """This shard alone, and those that share its label file."""
        return replace(self, more=()), *self.more

    @property
    def hash(self) -> str:
        """Fingerprint of its input, or a hash of those of its inputs."""
        if not self.more:
            return self.input.fingerprint
        joined = "".join(shard.input.fingerprint for shard in self.each)
        return hashlib.sha256(joined.encode()).hexdigest()[:32]


def merged(shards: Sequence[Shard]) -> Shard:
    """Merge shards of one input file each, in their order, into one that shares a label file."""
    return replace(shards[0], more=tuple(shards[1:]))


@dataclass(frozen=True)
class Job:
    """Settings of a job; equal jobs give the same files."""

    inputs: tuple[Input, ...]
    weights: str  # path
    digest: str  # hash of the weights
    plan: str  # resolved, like `precision` and `device` ("cpu", "cuda")
    precision: str
    device: str
    size: int = SHARD  # images per shard
    form: str = ".npy"  # suffix of the label files
    scores: bool = False
    void: tuple[int, ...] = ()  # indices of replaced inputs: they keep numbers, but have no shards
    as_is: bool = False  # pictures are not prepared
    inverted: bool = False  # stored images are black on white
    transposed: bool = False
    id: str = ""  # random, so that a job begun again in the same folder has another

    @property
    def orientation(self) -> Orientation:
        """Orientation of the stored images."""
        return Orientation(BLACK if self.inverted else AUTO, self.transposed)

    @cached_property
    def pictures(self) -> bool:
        """True if the job reads pictures rather than files of many images."""
        return any(entry.pictures for entry in self.valid)

    @cached_property
    def valid(self) -> tuple[Input, ...]:
        """Inputs that have shards."""
        return tuple(entry for at, entry in enumerate(self.inputs) if at not in self.void)

    @cached_property
    def images(self) -> int:
        """Images of all shards."""
        return sum(entry.images for entry in self.valid)

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All shards, in the order of inputs; a shard has images of one input only."""
        return tuple(shard for at, shard in self._all_shards() if at not in self.void)

    def _all_shards(self) -> Iterator[tuple[int, Shard]]:
        """Yield every shard with its input's index, also those of replaced inputs."""
        number = 0
        for at, entry in enumerate(self.inputs):
            size = entry.images if entry.whole else self.size
            for lo in range(0, entry.images, size):
                name = f"part-{number:06}{self.form}"
                yield at, Shard(number, entry, lo, min(lo + size, entry.images), name)
                number += 1

    def count(self, inputs: Sequence[Input]) -> int:
        """Return the number of shards of `inputs`, computed without creating them."""
        return sum(1 if entry.whole else -(-entry.images // self.size) for entry in inputs)

    def shard(self, number: int) -> Shard:
        """Return the shard with this number; raise KeyError if there is none."""
        return self._by_number[number]

    @cached_property
    def _by_number(self) -> dict[int, Shard]:
        return {shard.number: shard for shard in self.shards}

    def joined(self, numbers: Iterable[int]) -> Iterator[Shard]:
        """Yield the shards with these numbers; consecutive ones of small files are merged."""

        def run(item: tuple[int, Shard]) -> tuple[int | Shard, int]:
            at, shard = item
            return self._groups.get(shard.number, shard), shard.number - at

        for _, items in groupby(enumerate(map(self.shard, numbers)), run):
            yield merged([shard for _, shard in items])

    def several(self, first: int, count: int) -> Shard:
        """Merge `count` shards from number `first` on; KeyError if they share no label file."""
        shards = list(self.joined(range(first, first + count)))
        if len(shards) != 1:
            raise KeyError(first)
        return shards[0]

    @cached_property
    def _groups(self) -> dict[int, int]:
        """Map each shard that may share a label file to the first of its group, by numbers."""
        # formed from the first input on, so that inputs added later change no earlier group
        groups, last, images, files = dict[int, int](), None, 0, 0
        for _, shard in self._all_shards():
            entry = shard.input
            if entry.pictures or entry.images > min(self.size, LITTLE):
                last = None
                continue
            full = images + len(shard) > min(self.size, TOGETHER) or files == FILES
            if last is None or full or last.labelled != entry.labelled:
                images, files = 0, 0
            groups[shard.number] = shard.number - files
            last, images, files = entry, images + len(shard), files + 1
        return groups

    def extended(self, entry: Input) -> Job:
        """Return the job with one more input, which replaces one with the same path."""
        old = [at for at, other in enumerate(self.inputs) if other.path == entry.path]
        return replace(self, inputs=(*self.inputs, entry), void=(*self.void, *old))

    @cached_property
    def key(self) -> str:
        """Hash that identifies the job."""
        return hashlib.sha256(json_text(self.header()).encode()).hexdigest()[:16]

    def header(self) -> dict[str, Any]:
        """Return the first line of the manifest."""
        fields = asdict(self)
        return {"schema": SCHEMA, "lenetgpu": __version__, "id": fields.pop("id"), "job": fields}


def of_header(path: Path, document: Any) -> Job:
    """Return the job of the first line of the manifest at `path`; LenetError for another version's.

    Raises ValueError, TypeError or KeyError if the line is malformed.
    """
    if document["schema"] != SCHEMA:
        raise LenetError(
            f"{path}: expected a manifest of format {SCHEMA}, found one of format "
            f"{document['schema']}, by lenetgpu {document['lenetgpu']}: go on with the one that "
            "wrote it, or begin in another folder"
        )
    fields = dict(document["job"])
    fields["inputs"] = tuple(Input(**entry) for entry in fields["inputs"])
    fields["void"] = tuple(fields["void"])
    return Job(**fields, id=str(document.get("id", "")))


_WORDS = {"digest": "weights", "form": "files of", "size": "shards of", "scores": "scores"}
_WORDS |= {"as_is": "pictures as they are"}
_WORDS |= {name: name for name in ("plan", "precision", "device", "inverted", "transposed")}


def require_same(folder: Path, begun: Job, requested: Job) -> None:
    """Raise LenetError if the job in `folder` has other weights, another plan or other settings."""
    for name, word in _WORDS.items():
        old, new = getattr(begun, name), getattr(requested, name)
        if old != new:
            if name == "digest":
                old, new = begun.weights, f"{requested.weights}, which differ"
            expected = f"the job that was begun there, with {word} {old}"
            raise unexpected(folder, expected, f"{word} {new}")
