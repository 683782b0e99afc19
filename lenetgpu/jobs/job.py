"""A job: its inputs cut into shards, and all that decides what their labels are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from lenetgpu import __version__
from lenetgpu.errors import LenetError, printable
from lenetgpu.jobs.inputs import Input, changed
from lenetgpu.store import json_text

SHARD, PICTURES = 1_000_000, 1_000
"""Images of a shard, and pictures of one, where nothing else is asked."""
SCHEMA = 2
"""Of the manifest: one of 1 knew no files of labels by their bytes, and none of several shards."""
LITTLE, TOGETHER, FILES = 4_096, 60_000, 1_000
"""Images of a file at most that shares its file of labels, of all that share one, and files."""
MOST = 1_000_000
"""Shards of a job: the order of their files' names is that of their numbers."""


@dataclass(frozen=True)
class Shard:
    """Images `lo` to `hi` of one input; their labels are in a file `name`.

    `more`: the shards behind it that share that file, and are done with it: all of a file each.
    """

    number: int
    input: Input
    lo: int
    hi: int
    name: str
    more: tuple[Shard, ...] = ()

    def __len__(self) -> int:
        return self.hi - self.lo + sum(map(len, self.more))

    @property
    def each(self) -> tuple[Shard, ...]:
        """It alone, and those that share its file."""
        return replace(self, more=()), *self.more

    @property
    def halves(self) -> tuple[Shard, Shard]:
        """Two of half as many files, of at least two."""
        each = self.each
        return together(each[: len(each) // 2]), together(each[len(each) // 2 :])

    @property
    def hash(self) -> str:
        """What its input is known by, or its inputs are."""
        if not self.more:
            return self.input.fingerprint
        found = hashlib.sha256("".join(one.input.fingerprint for one in self.each).encode())
        return found.hexdigest()[:32]


def together(shards: Sequence[Shard]) -> Shard:
    """One of several, in their order, which are of a file each."""
    return replace(shards[0], more=tuple(shards[1:]))


@dataclass(frozen=True)
class Job:
    """What is read, by which weights and plan, in shards of at most `size` images, to which form.

    Two jobs that are equal give the same files; `form` is an ending (".npy"). `weights` is their
    path, `digest` what they are known by; `plan` and `device` ("cpu", "cuda") are what really runs.
    `as_is`: pictures are not prepared. `void` are the inputs, by their place, that others took the
    place of: they have numbers, and no shards. `id` is drawn: one that is begun again in the same
    folder has another.
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
    void: tuple[int, ...] = ()
    as_is: bool = False
    id: str = ""

    @cached_property
    def pictures(self) -> bool:
        """Whether pictures are read, rather than files of many images."""
        return any(entry.pictures for entry in self.valid)

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All of them, in the order of inputs; a shard has images of one input only."""
        return tuple(shard for place, shard in self._cuts() if place not in self.void)

    def _cuts(self) -> Iterator[tuple[int, Shard]]:
        number = 0
        for place, entry in enumerate(self.inputs):
            size = entry.images if entry.whole else self.size
            for lo in range(0, entry.images, size):
                name = f"part-{number:06}{self.form}"
                yield place, Shard(number, entry, lo, min(lo + size, entry.images), name)
                number += 1

    def shard(self, number: int) -> Shard:
        """That of this number; KeyError where there is none."""
        return self._by_number[number]

    @cached_property
    def _by_number(self) -> dict[int, Shard]:
        return {shard.number: shard for shard in self.shards}

    def joined(self, numbers: Iterable[int]) -> Iterator[Shard]:
        """The shards of these numbers; those of small files that follow one another as one."""

        def run(placed: tuple[int, Shard]) -> tuple[int | Shard, int]:
            place, shard = placed
            return self._groups.get(shard.number, shard), shard.number - place

        for _, found in groupby(enumerate(map(self.shard, numbers)), run):
            yield together([shard for _, shard in found])

    def several(self, first: int, count: int) -> Shard:
        """`count` shards from number `first` on as one; KeyError where they are not to be one."""
        found = list(self.joined(range(first, first + count)))
        if len(found) != 1:
            raise KeyError(first)
        return found[0]

    @cached_property
    def _groups(self) -> dict[int, int]:
        """By the numbers of shards that may share a file of labels, that of the first of them.

        Cut from the first input on, so that inputs that are taken in later change none.
        """
        found, last, images, files = dict[int, int](), None, 0, 0
        for _, shard in self._cuts():
            entry = shard.input
            if entry.pictures or entry.images > min(self.size, LITTLE):
                last = None
                continue
            full = images + len(shard) > min(self.size, TOGETHER) or files == FILES
            if last is None or full or last.input.labelled != entry.labelled:
                images, files = 0, 0
            found[shard.number] = shard.number - files
            last, images, files = shard, images + len(shard), files + 1
        return found

    @cached_property
    def valid(self) -> tuple[Input, ...]:
        """Inputs that have shards."""
        return tuple(i for place, i in enumerate(self.inputs) if place not in self.void)

    @property
    def count(self) -> int:
        """How many shards there are, without making them."""
        return sum(map(self._pieces, self.valid))

    @property
    def numbers(self) -> int:
        """How many numbers were given to shards, of inputs that others took the place of too."""
        return sum(map(self._pieces, self.inputs))

    def _pieces(self, entry: Input) -> int:
        return 1 if entry.whole else -(-entry.images // self.size)

    @cached_property
    def images(self) -> int:
        """Images of all shards."""
        return sum(entry.images for entry in self.valid)

    def extended(self, entry: Input) -> Job:
        """With one more input, which takes the place of one that has its path."""
        known = enumerate(self.inputs)
        old = [n for n, other in known if other.path == entry.path and n not in self.void]
        return replace(self, inputs=(*self.inputs, entry), void=(*self.void, *old))

    @cached_property
    def key(self) -> str:
        """What the job is known by."""
        return hashlib.sha256(json_text(self.header()).encode()).hexdigest()[:16]

    def header(self) -> dict[str, Any]:
        """The manifest's first line."""
        job = asdict(self)
        return {"schema": SCHEMA, "lenetgpu": __version__, "id": job.pop("id"), "job": job}


class OtherSchemaError(LenetError):
    """A manifest of another version of the format."""


def of_header(document: Any) -> Job:
    """The job of a manifest's first line; ValueError, TypeError or KeyError where it is none.

    OtherSchemaError where another version wrote it, without the manifest's name.
    """
    if document["schema"] != SCHEMA:
        raise OtherSchemaError(
            f"expected a manifest of format {SCHEMA}, found one of format "
            f"{printable(str(document['schema']))}, by lenetgpu "
            f"{printable(str(document['lenetgpu']))}: go on with the one that wrote it, "
            "or begin in another folder"
        )
    found = dict(document["job"])
    found["inputs"] = tuple(Input(**entry) for entry in found["inputs"])
    found["void"] = tuple(found["void"])
    return Job(**found, id=str(document.get("id", "")))


_WORDS = {
    "digest": "weights",
    "form": "files of",
    "size": "shards of",
    "scores": "scores",
    "as_is": "pictures as they are",
    "plan": "plan",
    "precision": "precision",
    "device": "device",
}


def require_same(folder: Path, begun: Job, asked: Job) -> None:
    """LenetError where `folder` holds a job of other weights, another plan or another form."""
    for name, word in _WORDS.items():
        old, new = getattr(begun, name), getattr(asked, name)
        if old != new:
            if name == "digest":
                old, new = begun.weights, f"{asked.weights}, which differ"
            raise LenetError(
                f"{folder}: expected the job that was begun there, with {word} {old}, "
                f"found {word} {new}"
            )


def news(folder: Path, begun: Job, asked: Job, unreadable: set[str], done: set[str]) -> list[Input]:
    """Inputs that can be read now and could not when the job was begun in `folder`, or changed.

    `unreadable` are the paths of those, `done` those of inputs of which some shard is done.
    LenetError where other files are asked for than the job was begun with, or one changed of which
    something is done.
    """
    before, now = ({i.path: i for i in job.valid} for job in (begun, asked))
    other = f"{folder}: expected the inputs of the job that was begun there, found "
    for path in [*before, *now]:
        if path not in now:
            raise LenetError(f"{other}that {path} is not among them now")
        if path not in before and path not in unreadable:
            raise LenetError(f"{other}another one, {path}")
        if path in before and before[path] != now[path] and path in done:
            raise LenetError(
                f"{path}: expected the file that the job in {folder} was begun with, "
                f"found {changed(Path(path))} changed since"
            )
    return [entry for path, entry in now.items() if before.get(path) != entry]
