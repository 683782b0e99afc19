"""Small files read by a thread from the moment they are opened, while libraries are imported."""

from __future__ import annotations

from math import prod
from threading import Thread
from typing import TYPE_CHECKING

from lenetgpu.files.reading import Dataset, MemorySource, Source
from lenetgpu.network import IMAGE_SHAPE

if TYPE_CHECKING:
    from lenetgpu.files.reading import Array

MOST_BYTES = 64 << 20
"""Of a file's images as they are read; larger ones are read where they are wanted."""


def read_early(source: Source) -> Source:
    """`source`, being read from now on where it is small; what fails is raised where it is read."""
    size = len(source) * prod(IMAGE_SHAPE) * (1 if source.dtype == "uint8" else 4)
    if size > MOST_BYTES or isinstance(source, MemorySource):
        return source
    return _EarlySource(source)


class _EarlySource(Source):
    def __init__(self, inner: Source) -> None:
        super().__init__(inner.source, inner.dtype, inner.labels, inner.chosen)
        self._inner = inner
        self._found: Dataset | None = None
        self._failed: BaseException | None = None
        self._thread = Thread(target=self._read, name="lenetgpu-early")
        self._thread.start()

    def _read(self) -> None:
        try:
            self._found = self._inner.whole()
        except BaseException as error:
            self._failed = error

    def whole(self) -> Dataset:
        """What the thread read, waited for; what it raised is raised here."""
        self._thread.join()
        if self._found is None:
            assert self._failed is not None
            raise self._failed
        return self._found

    def _fill(self, first: int, out: Array) -> None:
        lo = first - self.chosen.start
        out[...] = self.whole().images[lo : lo + len(out)]

    def close(self) -> None:
        """Let go of the file when it is read."""
        self._thread.join()
        self._inner.close()
