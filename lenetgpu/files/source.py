"""Images from a file of any size, read by parts: HDF5, IDX (`.gz` or not) or `.npy`."""

from collections.abc import Callable
from math import prod
from pathlib import Path

from lenetgpu.arrays import Array
from lenetgpu.errors import unexpected
from lenetgpu.files.idx import open_idx, open_npy
from lenetgpu.files.kinds import START, foreign, kind_of
from lenetgpu.files.reading import Dataset, MemorySource, Source
from lenetgpu.files.regular import GZIP_MAGIC, MAGIC, start_of
from lenetgpu.network import IMAGE_SHAPE

_EXPECTED = "images in HDF5, IDX or .npy format"


def _open_hdf5(path: Path, skip: int, limit: int | None) -> Source:
    from lenetgpu.files.hdf5_source import open_images

    return open_images(path, skip, limit)


# openers of files of many images, by form
DATA: dict[str, Callable[[Path, int, int | None], Source]] = {
    "HDF5": _open_hdf5,
    "IDX": open_idx,
    "npy": open_npy,
}


def form_of(path: Path, expected: str) -> str:
    """Return the form that the first bytes indicate: one of DATA, a kind of picture, or ""."""
    start = start_of(path, expected, START)
    if start.startswith(MAGIC):
        return "HDF5"
    if is_idx(start):
        return "IDX"
    return "npy" if start.startswith(b"\x93NUMPY") else kind_of(start) or ""


def is_idx(start: bytes) -> bool:
    """Return True if a file with these first bytes is an IDX file, gzip-compressed or not."""
    return start[:2] == GZIP_MAGIC or start[:3] == b"\0\0\x08"


def open_source(path: Path, skip: int = 0, limit: int | None = None) -> Source:
    """Open `limit` images (None: all) of a file after the first `skip`, without reading them.

    The first bytes decide the file's form, not its name; labels are read at once. Raises
    LenetError naming the file, what was expected and what was found.
    """
    form = form_of(path, _EXPECTED)
    if form in DATA:
        return DATA[form](path, skip, limit)
    found = foreign(start_of(path, _EXPECTED, START), path.stat().st_size)
    raise unexpected(path, _EXPECTED, f"{found}; only `lenetgpu infer` takes it" if form else found)


def load_dataset(path: Path) -> Dataset:
    """Read all images and labels of a file; raise LenetError like `open_source`."""
    with open_source(path) as source:
        return source.whole()


EARLY_BYTES = 64 << 20  # bytes of images that `read_early` reads ahead, at most


def read_early(source: Source) -> Source:
    """Start reading a small `source` in a thread; errors are raised by later reads."""
    size = len(source) * prod(IMAGE_SHAPE) * (1 if source.dtype == "uint8" else 4)
    if size > EARLY_BYTES or isinstance(source, MemorySource):
        return source
    return _EarlySource(source)


class _EarlySource(Source):
    def __init__(self, inner: Source) -> None:
        from concurrent.futures import ThreadPoolExecutor

        super().__init__(inner.source, inner.dtype, inner.labels, inner.selection)
        self._inner = inner
        pool = ThreadPoolExecutor(1, "lenetgpu-early")
        self._future = pool.submit(inner.whole)
        pool.shutdown(wait=False)

    def whole(self) -> Dataset:
        """Wait for the images that the thread reads; raise the thread's exception here."""
        return self._future.result()

    def _fill(self, first: int, out: Array) -> None:
        lo = first - self.selection.start
        out[...] = self.whole().images[lo : lo + len(out)]

    def close(self) -> None:
        """Wait for the thread, then release the file."""
        self._future.exception()
        self._inner.close()
