"""Images of an HDF5 file in the course's layout: /x (N, 28, 28[, 1]), and optional labels /y.

Contiguous images are read directly from the file; chunks are decoded by a pool of threads.
"""

import os
from functools import lru_cache
from pathlib import Path

from lenetgpu.arrays import Array, np
from lenetgpu.cpu.threads import core_count
from lenetgpu.errors import unexpected
from lenetgpu.files import checksums, hdf5, reading
from lenetgpu.files.sums import Sum, Sums
from lenetgpu.network import CLASSES, IMAGE_SHAPE

CACHE_BYTES = 256 << 20  # most bytes of decoded chunks that are cached for later reads
_SMALL_BYTES = 16 << 20  # of chunks decoded at once or cached; twice the file's size if more
_LABELS_AT_ONCE = 1 << 17
_MANY = 4  # parts of a read for each thread of the pool


def open_images(path: Path, skip: int, limit: int | None) -> reading.Source:
    """Open images /x, and labels /y if present, of an HDF5 file."""
    file = hdf5.open_file(path)
    try:
        with hdf5.readable(path):
            return _open(path, file, skip, limit)
    except BaseException:
        file.close()
        raise


def _open(path: Path, file: hdf5.Untrusted, skip: int, limit: int | None) -> reading.Source:
    sums = checksums.stated(file)
    height, width, _ = IMAGE_SHAPE
    sides, shapes = f"N, {height}, {width}", (IMAGE_SHAPE[:2], IMAGE_SHAPE)
    expected = f"float or uint8 images of shape ({sides}) or ({sides}, 1) with N at least 1"
    item = hdf5.find(file, "x", expected, lambda s: s[:1] > (0,) and s[1:] in shapes, "fu")
    if item.dtype != np.uint8 and item.dtype.kind == "u":
        raise unexpected(path, "dataset /x to be float or uint8", f"type {item.dtype}")
    selection = reading.selected(path, item.shape[0], skip, limit)
    if not item.chunks:
        hdf5.require_written(item)
    blocks = checksums.blocks(item, sums)
    labels = _labels(file, item.shape[0], selection, sums) if file.holds("y") else None
    if item.offset is None:
        return ChunkedSource(item, labels, selection, blocks)
    where = f"{path}: expected dataset /x"
    source = reading.RawSource(file.bytes(), where, item.offset, item.dtype, labels, selection)
    file.close()
    return source


def _labels(file: hdf5.Untrusted, count: int, selection: range, sums: Sums) -> Array:
    """Return the labels (n,) int64 of the selected images; with a checksum, all labels are read."""
    expected = f"labels of shape ({count},) or one-hot of shape ({count}, {CLASSES})"
    shapes = ((count,), (count, CLASSES), (count, 1))
    item = hdf5.find(file, "y", expected, lambda shape: shape in shapes, "fiu")
    hdf5.require_written(item)
    length = len(selection) * np.dtype(np.int64).itemsize
    reading.check_memory(f"{item.path}: {item.where}", length, file.size if item.filters else None)
    labels = np.empty(len(selection), np.int64)
    checksum = Sum(item.dtype, item.shape)
    rows = range(count) if "y" in sums else selection
    for lo, hi in reading.spans(rows, item.whole_chunks(_LABELS_AT_ONCE)):
        part = hdf5.read_rows(item, lo, hi)
        file.check_size()
        if "y" in sums:
            checksum.add(part)
        begin, end = max(lo, selection.start), min(hi, selection.stop)
        if begin < end:
            numbers = reading.class_numbers(part[begin - lo : end - lo], file.path, "/y")
            labels[begin - selection.start : end - selection.start] = numbers
    if "y" in sums:
        sums.compare("y", checksum.hex())
    return labels


class ChunkedSource(reading.Source):
    """Images in chunks of any shape of an open file, decoded by as many threads as cores."""

    def __init__(
        self,
        item: hdf5.Stored,
        labels: Array | None,
        selection: range,
        blocks: checksums.Blocks | None,
    ) -> None:
        dtype = "uint8" if item.dtype.kind == "u" else "float32"
        super().__init__(str(item.path), dtype, labels, selection)
        self._item, self._blocks = item, blocks
        self._where = f"{item.path}: expected {item.where}"
        if item.filters:
            self.inflated_from = item.file.size
        budget = max(_SMALL_BYTES, 2 * item.file.size)
        self._threads = max(1, min(core_count(), budget // item.piece_bytes))
        self._most_cached = max(1, min(CACHE_BYTES, budget) // item.piece_bytes)
        self._begin()

    def _begin(self) -> None:
        """Start threads and an empty cache, again in a forked child, which inherits no threads."""
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="lenetgpu-chunks")
        # the latest chunks that several reads need a part of
        self._cached = lru_cache(self._most_cached)(self._decoded)
        self._process = os.getpid()

    def _fill(self, first: int, out: Array) -> None:
        if self._process != os.getpid():
            self._begin()
        images = out.reshape(len(out), *self._item.shape[1:])
        rows = self._item.piece[0]
        step = -(-len(out) // (_MANY * self._threads * rows)) * rows
        parts = reading.spans(range(first, first + len(out)), step)
        if len(parts) == 1:
            self._rows(*parts[0], images)
        else:
            jobs = [self._pool.submit(self._rows, a, z, images[a - first : z - first])
                    for a, z in parts]  # fmt: skip
            errors = [error for job in jobs if (error := job.exception()) is not None]
            if errors:
                raise errors[0]

    def _rows(self, lo: int, hi: int, images: Array) -> None:
        rows, count = self._item.piece[0], self._item.shape[0]
        for corner, to, part in self._item.cuts(lo, hi):
            whole = part[0] == slice(0, min(rows, count - corner[0]))
            chunk = self._decoded(corner) if whole else self._cached(corner)
            reading.narrowed(chunk[part], images[to])
        if self.dtype == "float32":
            reading.check_floats(images.reshape(-1, *IMAGE_SHAPE), lo, self._where)

    def _decoded(self, corner: tuple[int, ...]) -> Array:
        with hdf5.readable(self._item.path):
            chunk = self._item.read_piece(corner)
        if self._blocks is not None:
            self._blocks.require(corner[0], chunk)
        return chunk

    def close(self) -> None:
        """Close the file after the last chunk is decoded."""
        self._pool.shutdown()
        self._item.file.close()
