"""IDX files (MNIST's), optionally gzip-compressed, and `.npy` files: a header, then images."""

import os
import struct
from contextlib import suppress
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError, first_line, unexpected
from lenetgpu.files.kinds import foreign
from lenetgpu.files.models.layouts import by
from lenetgpu.files.reading import PIXELS, RawSource, Source, check_memory, class_numbers, selected
from lenetgpu.files.regular import MOST_RATIO, OpenFile, broken, is_gzip, open_regular, unpacking
from lenetgpu.network import IMAGE_SHAPE

IMAGE_MAGIC, LABEL_MAGIC = 2051, 2049
CACHE_BYTES = 256 << 20  # inflated images cached per gzip file, at most
_STEP = 1 << 20


class _Header:
    """A checked IDX header: `count` items of `bytes` in all after `length` bytes."""

    def __init__(self, path: Path, file: BinaryIO, magic: int, item: tuple[int, ...], what: str):
        expected = f"an IDX file of {what}"
        self.path, self.what, self.length = path, what, 8 + 4 * len(item)
        header = file.read(self.length)
        if len(header) < self.length:
            raise unexpected(path, expected, f"only {len(header)} bytes")
        found, self.count, *shape = struct.unpack(f">{2 + len(item)}I", header)
        if found != magic:
            other = foreign(header, None) or str(found)
            raise unexpected(path, f"{expected} (magic number {magic})", other)
        if tuple(shape) != item:
            raise unexpected(path, f"{expected} of {by(item)}", by(tuple(shape)))
        if self.count == 0:
            raise unexpected(path, expected, "none")
        self.bytes = self.count * prod(item)

    def refuse(self, found: int) -> LenetError:
        expected = f"{self.bytes:,} bytes after the header for {self.count:,} {self.what}"
        return unexpected(self.path, expected, "more" if found > self.bytes else f"{found:,}")

    def check_size(self, size: int, gzipped: bool) -> None:
        """Raise LenetError if a file of `size` bytes does not hold what the header declares."""
        if gzipped and self.length + self.bytes > MOST_RATIO * size:
            found = f"a header of {self.count:,} {self.what}, {self.bytes:,} bytes"
            raise unexpected(self.path, f"what a gzip file of {size:,} bytes can hold", found)
        if not gzipped and size - self.length != self.bytes:
            raise self.refuse(size - self.length)


class _Unpacked:
    """Blocks of a gzip file's images, which can only be inflated sequentially.

    Skipped blocks are cached, up to CACHE_BYTES, until every image of a block has been read.
    Reading an evicted block inflates the file from its start again.
    """

    def __init__(self, file: OpenFile, header: _Header) -> None:
        self._packed, self._header, self._lock = file, header, Lock()
        self._cached: dict[int, Array] = {}
        self._unread: dict[int, int] = {}
        self._file: BinaryIO | None = None
        self._next = 0

    def read(self, first: int, out: Array) -> None:
        with self._lock:
            while len(out):
                number, at = divmod(first, _STEP // PIXELS)
                if number not in self._cached:
                    self._inflate_to(number)
                part = self._cached[number][at : at + len(out)]
                out[: len(part)] = part
                self._unread[number] -= len(part)
                if self._unread[number] <= 0:
                    del self._cached[number]
                first, out = first + len(part), out[len(part) :]

    def _inflate_to(self, number: int) -> None:
        file, self._file = self._file, None  # stays None if the file is damaged
        if file is None or number < self._next:
            file, self._next = unpacking(self._packed.file), 0
            file.read(self._header.length)
        while self._next <= number:
            size = _STEP // PIXELS
            count = min(size, self._header.count - self._next * size)
            block = np.empty((count, *IMAGE_SHAPE), np.uint8)
            self._inflate(file, block.reshape(-1).data, self._next * size * PIXELS)
            self._cached[self._next], self._unread[self._next] = block, count
            self._next += 1
            while len(self._cached) > max(1, CACHE_BYTES // _STEP):
                del self._cached[next(iter(self._cached))]
        self._file = file

    def _inflate(self, file: BinaryIO, view: memoryview, at: int) -> None:
        """Fill `view` with the images' bytes from `at` on; no bytes may follow the last."""
        done = 0
        try:
            while done < len(view):
                got = file.readinto(view[done:])  # type: ignore[attr-defined]
                if not got:
                    raise self._header.refuse(at + done)
                done += got
            if at + done == self._header.bytes and file.read(1):
                raise self._header.refuse(at + done + 1)
        except broken() as error:
            raise _damaged(self._packed.path, self._header.what, error) from error


class GzipSource(Source):
    """Images of a gzip-compressed IDX file; reads should be roughly in order."""

    def __init__(self, file: OpenFile, header: _Header, labels: Array | None, selection: range):
        super().__init__(str(file.path), "uint8", labels, selection)
        self._unpacked, self._packed = _Unpacked(file, header), file
        self.inflated_from = file.size

    def _fill(self, first: int, out: Array) -> None:
        self._unpacked.read(first, out)

    def close(self) -> None:
        """Close the file."""
        self._packed.close()


def _damaged(path: Path, what: str, error: Exception) -> LenetError:
    return LenetError(f"{path}: expected an IDX file of {what}, found a damaged file ({error})")


def open_idx(path: Path, skip: int, limit: int | None) -> Source:
    """Open images of an IDX file, with labels from a label file named as in MNIST."""
    file = OpenFile(path)
    try:
        gzipped = is_gzip(file.file)
        header = _Header(path, unpacking(file.file), IMAGE_MAGIC, IMAGE_SHAPE[:2], "images")
        header.check_size(file.size, gzipped)
        selection = selected(path, header.count, skip, limit)
        label_path = label_file(path)
        labels = _read_labels(label_path, path, header.count, selection) if label_path else None
    except BaseException as error:
        file.close()
        if isinstance(error, broken()):
            raise _damaged(path, "images", error) from error
        raise
    if gzipped:
        return GzipSource(file, header, labels, selection)
    where = f"{path}: expected the images"
    return RawSource(file, where, header.length, np.dtype(np.uint8), labels, selection)


def label_file(images: Path) -> Path | None:
    """Return the label file of an image file, by MNIST's naming, gzipped or not; None if absent."""
    if "images" not in images.name:
        return None
    for rank in ("idx1", "idx3"):
        name = images.name.replace("images", "labels").replace("idx3", rank)
        stem = name.removesuffix(".gz")
        for candidate in (name, stem, f"{stem}.gz"):
            path = images.with_name(candidate)
            with suppress(OSError):  # the name is too long for a file
                if path.is_file() and path != images:
                    return path
    return None


def _read_labels(path: Path, images: Path, count: int, selection: range) -> Array:
    try:
        with open_regular(path, "an IDX file of labels") as opened:
            gzipped, file = is_gzip(opened), unpacking(opened)
            header = _Header(path, file, LABEL_MAGIC, (), "labels")
            if header.count != count:
                raise unexpected(path, f"{count:,} labels for {images.name}", f"{header.count:,}")
            size = os.fstat(opened.fileno()).st_size
            header.check_size(size, gzipped)
            check_memory(str(path), count, size if gzipped else None)
            stored, left = bytearray(), selection.stop + (selection.stop == count)
            while part := file.read(min(left - len(stored), _STEP)):
                stored += part
    except broken() as error:
        raise _damaged(path, "labels", error) from error
    if len(stored) < selection.stop or len(stored) > count:
        raise header.refuse(len(stored))
    selected_labels = np.frombuffer(stored, np.uint8)[selection.start : selection.stop]
    return class_numbers(selected_labels, path, "the labels")


def npy_header(file: BinaryIO, what: str) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Return an .npy header's shape, Fortran order and type; raise LenetError if it is damaged."""
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(file)
        reads = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in reads:
            raise ValueError(f"version {version[0]}.{version[1]}")
        return reads[version](file)
    except Exception as error:  # the header is Python source, read by Python's tokenizer
        raise LenetError(f"{what}, found a damaged header ({first_line(error)})") from error


def open_npy(path: Path, skip: int, limit: int | None) -> Source:
    """Open images of a `.npy` file: (N, 28, 28[, 1]) or (N, 1, 28, 28), uint8 or floats."""
    height, width, _ = IMAGE_SHAPE
    shapes = ((height, width), IMAGE_SHAPE, (1, height, width))
    what = f"{path}: expected an .npy file of uint8 or float images"
    with open_regular(path, "an .npy file") as file:
        shape, fortran, stored = npy_header(file, what)
        offset, size = file.tell(), os.fstat(file.fileno()).st_size
    if stored != np.uint8 and stored.kind != "f":
        raise LenetError(f"{what}, found type {stored}")
    if len(shape) < 3 or shape[0] < 1 or shape[1:] not in shapes:
        known = ", ".join(f"(N, {str(each)[1:]}" for each in shapes)
        raise LenetError(f"{what} of shape {known} with N at least 1, found shape {shape}")
    if fortran:
        raise LenetError(f"{what} in C order, found Fortran order")
    length = shape[0] * PIXELS * stored.itemsize
    if size - offset != length:
        expected = f"{length:,} bytes after the header for {shape[0]:,} images"
        raise unexpected(path, expected, f"{size - offset:,}")
    where, selection = f"{path}: expected the images", selected(path, shape[0], skip, limit)
    return RawSource(OpenFile(path), where, offset, stored, None, selection)
