"""A shard's images, where they are still those that its job was begun with."""

from __future__ import annotations

from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files.source import MemorySource, Source, open_source
from lenetgpu.jobs.inputs import Input, changed, fingerprint
from lenetgpu.jobs.job import Job, Shard
from lenetgpu.jobs.pictures import PictureSource, listing
from lenetgpu.network import IMAGE_SHAPE

_OPEN = 1 << 23


def opened(folder: Path, job: Job, shard: Shard) -> Source:
    """The images of a shard of the job in `folder`.

    LenetError where its file, or the list of its pictures, is damaged or another one by now; of a
    picture that is shown when it is read.
    """
    if shard.input.pictures:
        found = listing(folder / shard.input.path, shard.input.fingerprint)
        return PictureSource(found, shard.lo, shard.hi, job.as_is)
    require_known(shard)
    return open_source(Path(shard.input.path), shard.lo, len(shard))


def require_known(shard: Shard) -> None:
    """LenetError where the file of a shard is another one than the job was begun with.

    Pictures are looked at one by one, when they are read, and so are files that are done together.
    """
    if shard.input.pictures or shard.more:
        return
    path = Path(shard.input.path)
    if fingerprint(path) != shard.input.fingerprint:
        raise _other(path)


def _other(path: Path) -> LenetError:
    return LenetError(
        f"{path}: expected the file that the job was begun with, found {changed(path)} "
        "changed since"
    )


def _together(shard: Shard) -> Source:
    """The images of several small files, in memory; LenetError as of `opened`."""
    import numpy as np

    images = np.empty((len(shard), *IMAGE_SHAPE), shard.input.dtype)
    labels = np.empty(len(shard), np.int64) if shard.input.labelled else None
    at = 0
    for one in shard.each:
        path, end = Path(one.input.path), at + len(one)
        with open_source(path) as source:
            found = len(source), source.dtype, source.labels is not None
            if found != (one.input.images, one.input.dtype, one.input.labelled):
                raise _other(path)
            source.read(0, images[at:end])
            if labels is not None:
                labels[at:end] = np.asarray(source.labels)
        require_known(one)  # nobody wrote into it before it was read, or meanwhile
        at = end
    return MemorySource(images, labels, shard.input.path)


class Opened:
    """The file that was read last: the next shard is most often of it, and opening takes a while.

    Open are the images from that shard's first on, no more than _OPEN, whose labels are in memory.
    Pictures are opened one by one.
    """

    def __init__(self, folder: Path, job: Job) -> None:
        self._folder, self._job = folder, job
        self._source: Source | None = None
        self._of: Input | None = None

    def close(self) -> None:
        """Let go of it."""
        if self._source is not None:
            self._source.close()
        self._source = None

    def part(self, shard: Shard) -> Source:
        """The shard's images; LenetError as of `opened`."""
        if shard.input.pictures:
            return opened(self._folder, self._job, shard)
        if shard.more:
            return _together(shard)
        require_known(shard)
        held = range(0) if self._source is None else self._source.chosen
        if self._source is None or self._of != shard.input or not (
            held.start <= shard.lo < shard.hi <= held.stop
        ):  # fmt: skip
            self.close()
            self._source, self._of = _from(shard), shard.input
        return self._source.part(shard.lo - self._source.chosen.start, len(shard))


def _from(shard: Shard) -> Source:
    path = Path(shard.input.path)
    try:
        return open_source(path, shard.lo, max(len(shard), _OPEN))
    except LenetError:  # behind the shard; if not, it is said again
        return open_source(path, shard.lo, len(shard))
