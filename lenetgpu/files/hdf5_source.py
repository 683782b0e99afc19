"""Images of an HDF5 file in the course's layout: /x (N, 28, 28[, 1]), and labels /y beside them.

Contiguous images are read where they lie, chunks are read raw and decoded by a pool of threads.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from itertools import pairwise, product
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from lenetgpu.cpu.threads import core_count
from lenetgpu.errors import LenetError
from lenetgpu.files import checksums, hdf5
from lenetgpu.files.disk import RawSource, narrowed
from lenetgpu.files.hdf5.chunks import Chunks
from lenetgpu.files.packed.source import ATTRIBUTE, PackedSource
from lenetgpu.files.reading import (
    BLOCK,
    Source,
    check_floats,
    class_numbers,
    require_room,
    selected,
)
from lenetgpu.network import CLASSES, IMAGE_SHAPE

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np

    Array = np.ndarray[Any, Any]

KEPT_BYTES = 256 << 20
"""What is kept at most of decoded chunks of which a later read wants the rest."""
_SMALL_BYTES = 16 << 20
"""Of chunks decoded at once or kept, whatever the file's size; else at most twice that."""
_LABELS_AT_ONCE = 1 << 17
_MANY = 4
"""Parts of a read for each thread of the pool."""


def open_images(path: Path, skip: int, limit: int | None) -> Source:
    """Images /x, and labels /y where there are any, of an HDF5 file."""
    file = hdf5.open_file(path)
    try:
        with hdf5.readable(path):
            return _open(path, file, skip, limit)
    except BaseException:
        file.close()
        raise


def _open(path: Path, file: hdf5.Untrusted, skip: int, limit: int | None) -> Source:
    import numpy as np

    sums = checksums.stated(file)
    if file.holds_attribute(ATTRIBUTE):
        packed = PackedSource(path, file, skip, limit, sums)
        file.close()
        return packed
    height, width, _ = IMAGE_SHAPE
    expected = (
        f"float or uint8 images of shape (N, {height}, {width}) or "
        f"(N, {height}, {width}, 1) with N at least 1"
    )
    shapes = IMAGE_SHAPE[:2], IMAGE_SHAPE
    item = hdf5.find(file, "x", expected, lambda s: s[:1] > (0,) and s[1:] in shapes, "fu")
    if item.dtype != np.uint8 and item.dtype.kind == "u":
        raise LenetError(
            f"{path}: expected dataset /x to be float or uint8, found type {item.dtype}"
        )
    chosen = selected(path, item.shape[0], skip, limit)
    if not item.chunks:
        hdf5.require_written(item)
    blocks = checksums.blocks(item, sums)
    labels = _labels(file, item.shape[0], chosen, sums) if file.holds("y") else None
    where = f"{path}: expected dataset /x"
    if item.chunks:
        return ChunkedSource(item, where, labels, chosen, blocks)
    if item.offset is None or not item.plain:
        return _RowsSource(item, where, labels, chosen)
    source = RawSource(file.bytes(), where, item.offset, item.dtype, labels, chosen)
    file.close()
    return source


def _labels(file: hdf5.Untrusted, count: int, chosen: range, sums: checksums.Sums) -> Array:
    """Labels (n,) int64 of the images chosen; all of them are read where they have a checksum."""
    import numpy as np

    expected = f"labels of shape ({count},) or one-hot of shape ({count}, {CLASSES})"
    shapes = ((count,), (count, CLASSES), (count, 1))
    item = hdf5.find(file, "y", expected, lambda shape: shape in shapes, "fiu")
    hdf5.require_written(item)
    length = len(chosen) * np.dtype(np.int64).itemsize
    if length > hdf5.MAX_DATASET_BYTES:
        raise item.refuse(f"{length:,} bytes, more than {hdf5.MAX_DATASET_BYTES:,}")
    require_room(f"{item.path}: {item.where}", length, file.size if item.filters else None)
    labels = np.empty(len(chosen), np.int64)
    found = checksums.Sum(item.dtype, item.shape)
    for lo, hi in _spans(range(count) if "y" in sums else chosen, _step(item, _LABELS_AT_ONCE)):
        part = hdf5.read_rows(item, lo, hi)
        file.check_size()
        if "y" in sums:
            found.add(part)
        begin, end = max(lo, chosen.start), min(hi, chosen.stop)
        if begin < end:
            mine = class_numbers(part[begin - lo : end - lo], file.path, "/y")
            labels[begin - chosen.start : end - chosen.start] = mine
    if "y" in sums:
        sums.compare("y", found.hex())
    return labels


def _step(item: hdf5.Stored, least: int) -> int:
    """At least so many rows, in whole chunks."""
    rows: int = item.chunks[0] if item.chunks else 1
    return -(-least // rows) * rows


def _spans(rows: range, step: int) -> list[tuple[int, int]]:
    """`rows` cut at multiples of `step`."""
    edges = [rows.start, *range((rows.start // step + 1) * step, rows.stop, step), rows.stop]
    return list(pairwise(edges))


class _DatasetSource(Source):
    """Images of a dataset whose file stays open until `close`."""

    def __init__(self, item: hdf5.Stored, where: str, labels: Array | None, chosen: range) -> None:
        dtype = "uint8" if item.dtype.kind == "u" else "float32"
        super().__init__(str(item.path), dtype, labels, chosen)
        self._item, self._where = item, where

    def close(self) -> None:
        """Close the file."""
        self._item.file.close()


class _RowsSource(_DatasetSource):
    """Images of floats that NumPy has not, or within an object's header."""

    def _fill(self, first: int, out: Array) -> None:
        for lo, hi in _spans(range(first, first + len(out)), BLOCK):
            part = out[lo - first : hi - first]
            narrowed(hdf5.read_rows(self._item, lo, hi), part)
            self._item.file.check_size()
            if self.dtype == "float32":
                check_floats(part, lo, self._where)


class ChunkedSource(_DatasetSource):
    """Images in chunks of any shape, read raw and decoded by as many threads as there are cores."""

    def __init__(
        self,
        item: hdf5.Stored,
        where: str,
        labels: Array | None,
        chosen: range,
        blocks: checksums.Blocks | None = None,
    ) -> None:
        super().__init__(item, where, labels, chosen)
        self._blocks = blocks
        if item.filters:
            self.inflated_from = item.file.size
        self._shape = item.shape
        self._chunks = Chunks(self._item, self._where)
        room = max(_SMALL_BYTES, 2 * item.file.size)
        self._threads = max(1, min(core_count(), room // self._chunks.bytes))
        self._most_kept = max(1, min(KEPT_BYTES, room) // self._chunks.bytes)
        self._begin()

    def _begin(self) -> None:
        """Threads of this process, and nothing kept: a forked child has its parent's no more."""
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="lenetgpu-chunks")
        self._kept: OrderedDict[tuple[int, ...], Future[Array]] = OrderedDict()
        self._turn = Lock()
        self._process = os.getpid()

    def _fill(self, first: int, out: Array) -> None:
        if self._process != os.getpid():
            self._begin()
        images = out.reshape(len(out), *self._shape[1:])
        rows = self._chunks.shape[0]
        corners = list(range(first // rows * rows, first + len(out), rows))
        step = -(-len(corners) // (_MANY * self._threads))
        parts = [corners[at : at + step] for at in range(0, len(corners), step)]
        if len(parts) == 1:
            self._rows(parts[0], first, images)
        else:
            jobs = [self._pool.submit(self._rows, part, first, images) for part in parts]
            errors = [error for job in jobs if (error := job.exception()) is not None]
            if errors:
                raise errors[0]

    def _rows(self, corners: list[int], first: int, images: Array) -> None:
        """Fill `images` from the chunks that begin at these images."""
        tails = [
            range(0, n, c) for n, c in zip(self._shape[1:], self._chunks.shape[1:], strict=True)
        ]
        last, rows = first + len(images), self._chunks.shape[0]
        for corner in corners:
            lo, hi = max(corner, first), min(corner + rows, last)
            whole = hi - lo == min(rows, self._shape[0] - corner)
            part = images[lo - first : hi - first]
            for tail in product(*tails):
                place = (corner, *tail)
                chunk = self._chunks_read(place) if whole else self._remembered(place)
                to = tuple(
                    slice(t, t + c) for t, c in zip(tail, self._chunks.shape[1:], strict=True)
                )
                target = part[(slice(None), *to)]
                held = tuple(slice(n) for n in target.shape[1:])
                narrowed(chunk[(slice(lo - corner, hi - corner), *held)], target)
            if self.dtype == "float32":
                check_floats(part.reshape(-1, *IMAGE_SHAPE), lo, self._where)

    def _chunks_read(self, corner: tuple[int, ...]) -> Array:
        with hdf5.readable(self._item.path):
            chunk = self._chunks.read(corner)
        if self._blocks is not None:
            self._blocks.require(corner[0], chunk)
        return chunk

    def _remembered(self, corner: tuple[int, ...]) -> Array:
        """A chunk that more than one read wants a part of: decoded once, the latest kept."""
        from concurrent.futures import Future

        with self._turn:
            found = self._kept.get(corner)
            mine = found is None
            if found is None:
                found = self._kept[corner] = Future()
                while len(self._kept) > self._most_kept:
                    self._kept.popitem(last=False)
        if mine:
            try:
                found.set_result(self._chunks_read(corner))
            except BaseException as error:
                found.set_exception(error)
        return found.result()

    def close(self) -> None:
        """Close the file, when no chunk is being decoded any more."""
        self._pool.shutdown()
        super().close()
