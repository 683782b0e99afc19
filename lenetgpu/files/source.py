"""Images from a file of any size, read by parts: HDF5, IDX (`.gz` or not) or `.npy`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from lenetgpu.errors import LenetError
from lenetgpu.files.idx import open_idx, open_npy
from lenetgpu.files.kinds import START, kind_of
from lenetgpu.files.reading import Dataset, MemorySource, Source
from lenetgpu.files.regular import GZIP_MAGIC, MAGIC, start_of
from lenetgpu.network import IMAGE_SHAPE

if TYPE_CHECKING:
    from lenetgpu.files.reading import Array

__all__ = ["DATA", "Dataset", "MemorySource", "Source", "form_of", "open_source", "read_early"]

_EXPECTED = "images in HDF5, IDX or .npy form"


def _open_hdf5(path: Path, skip: int, limit: int | None) -> Source:
    from lenetgpu.files.hdf5_source import open_images

    return open_images(path, skip, limit)


DATA: dict[str, Callable[[Path, int, int | None], Source]] = {
    "HDF5": _open_hdf5,
    "IDX": open_idx,
    "npy": open_npy,
}
"""How files of many images are opened, by their form."""


def form_of(path: Path, expected: str) -> str:
    """Return the form that a file's first bytes say: one of DATA, a kind of picture, or "".

    LenetError, naming what is `expected`, where it is no file that can be read.
    """
    start = start_of(path, expected, START)
    if start.startswith(MAGIC):
        return "HDF5"
    if is_idx(start):
        return "IDX"
    return "npy" if start.startswith(b"\x93NUMPY") else kind_of(start) or ""


def is_idx(start: bytes) -> bool:
    """Return true if a file that begins so is an IDX file, of gzip or not."""
    return start[:2] == GZIP_MAGIC or start[:3] == b"\0\0\x08"


def open_source(path: Path, skip: int = 0, limit: int | None = None) -> Source:
    """Open `limit` images (None: all) of a file after the first `skip`; nothing else is read.

    The first bytes decide what the file is, not its name. Raises LenetError naming the file, what
    was expected and what was found. Memory is bounded whatever the file's size, but for the labels
    of the images asked for, which are read at once.
    """
    form = form_of(path, _EXPECTED)
    if form in DATA:
        return DATA[form](path, skip, limit)
    if form:
        found = f"a {form} picture, which only `lenetgpu infer` takes"
    else:
        size = path.stat().st_size
        found = f"{size:,} bytes of another form" if size else "an empty file"
    raise LenetError(f"{path}: expected {_EXPECTED}, found {found}")


EARLY_BYTES = 64 << 20
"""Of images that `read_early` reads; more are read where they are wanted."""


def read_early(source: Source) -> Source:
    """`source`, being read from now on where it is small; what fails is raised where it is read."""
    size = len(source) * prod(IMAGE_SHAPE) * (1 if source.dtype == "uint8" else 4)
    if size > EARLY_BYTES or isinstance(source, MemorySource):
        return source
    return _EarlySource(source)


class _EarlySource(Source):
    def __init__(self, inner: Source) -> None:
        from concurrent.futures import ThreadPoolExecutor

        super().__init__(inner.source, inner.dtype, inner.labels, inner.chosen)
        self._inner = inner
        pool = ThreadPoolExecutor(1, "lenetgpu-early")
        self._found = pool.submit(inner.whole)
        pool.shutdown(wait=False)

    def whole(self) -> Dataset:
        """Wait for the images that the thread reads; raise here what it raised."""
        return self._found.result()

    def _fill(self, first: int, out: Array) -> None:
        lo = first - self.chosen.start
        out[...] = self.whole().images[lo : lo + len(out)]

    def close(self) -> None:
        """Let go of the file when it is read."""
        self._found.exception()
        self._inner.close()
