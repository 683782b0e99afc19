"""Images and labels: in memory (`Dataset`), or read by parts in any order (`Source`)."""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.cpu.memory import free_bytes
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.regular import OpenFile
from lenetgpu.network import CLASSES, IMAGE_SHAPE

PIXELS = IMAGE_SHAPE[0] * IMAGE_SHAPE[1]
SMALL_BYTES = 64 << 20  # always allowed for a whole inflated read; else _RATIO times the file's
_RATIO = 512
BLOCK = 512  # images that are converted or checked at a time: their floats fit a core's cache
_SLACK = 1e-3
# Lower bound of the brightest float of an image that is not blank: products with it stay normal
# numbers where it matters, and denormals may be flushed to zero.
FAINTEST = 2.0**-100
EXPECTED_BRIGHT = f"only zeros or a brightest float of at least {FAINTEST:.1e}"


@dataclass(frozen=True)
class Dataset:
    """`images` (N, 28, 28, 1), uint8 pixels or float32 in 0..1; `labels` (N,) int64 or None."""

    images: Array
    labels: Array | None
    source: str

    def __len__(self) -> int:
        return len(self.images)


def check_memory(what: str, length: int, stored: int | None) -> None:
    """Raise LenetError if `length` bytes for `what` exceed free memory, or are too many to inflate.

    `stored` is the size of the file they are inflated from; None if stored uncompressed.
    """
    free = free_bytes()
    if free is not None and length > free:
        expected = f"data that this machine's {free:,} bytes of free memory hold"
        raise unexpected(what, expected, f"{length:,} bytes")
    if stored is not None and length > (most := max(SMALL_BYTES, _RATIO * stored)):
        expected = f"at most {most:,} bytes to read whole from a file of {stored:,}"
        raise unexpected(what, expected, f"{length:,}")


def selected(path: object, count: int, skip: int, limit: int | None) -> range:
    """Return the range of `limit` images (None: all) after `skip`; raise LenetError if empty."""
    if skip < 0 or (limit is not None and limit < 1):
        expected = "to skip 0 or more images and to read 1 or more"
        raise unexpected(path, expected, f"skip {skip} and limit {limit}")
    if skip >= count:
        raise LenetError(f"{path}: expected more images than the {skip:,} to skip, found {count:,}")
    return range(skip, count if limit is None else min(count, skip + limit))


def spans(rows: range, step: int) -> list[tuple[int, int]]:
    """Return `rows` cut at multiples of `step`."""
    edges = [rows.start, *range((rows.start // step + 1) * step, rows.stop, step), rows.stop]
    return list(pairwise(edges))


class Source(AbstractContextManager["Source"]):
    """Images that are read by parts, from a file or from memory, by any number of threads.

    `source` names them, `dtype` is "uint8" (pixels) or "float32" (0..1), `labels` is (N,) int64
    or None, `selection` are the images' numbers in the file.
    """

    def __init__(self, source: str, dtype: str, labels: Array | None, selection: range) -> None:
        self.source, self.dtype, self.labels, self.selection = source, dtype, labels, selection
        # bytes of the file that images are inflated from; None if stored uncompressed
        self.inflated_from: int | None = None

    def __len__(self) -> int:
        return len(self.selection)

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _fill(self, first: int, out: Array) -> None:
        """Fill `out` (n, 28, 28, 1), n at least 1, with the file's images from `first` on."""

    def close(self) -> None:
        """Release the file."""

    def read(self, lo: int, out: Array) -> None:
        """Fill `out` (n, 28, 28, 1) of `dtype` from image lo on; raise LenetError if damaged."""
        if out.dtype != self.dtype or out.shape[1:] != IMAGE_SHAPE or not out.flags.c_contiguous:
            raise ValueError(f"out: expected (n, 28, 28, 1) {self.dtype}, found {out.shape}")
        if not 0 <= lo <= lo + len(out) <= len(self):
            raise ValueError(f"expected images within {len(self)}, found {lo} to {lo + len(out)}")
        if len(out):
            self._fill(self.selection.start + lo, out)

    def raw(self, lo: int, count: int) -> tuple[int, int] | None:
        """Return the file descriptor and byte where uint8 images lie as they are, or None."""
        return None

    def name(self, number: int) -> str:
        """Return the name of image `number` of the selection, for lists of images."""
        return f"{self.source}[{self.selection.start + number}]"

    def part(self, lo: int, count: int) -> "Source":
        """Return `count` images of the selection from `lo` on; this source still owns the file."""
        if not 0 <= lo < lo + count <= len(self):
            raise ValueError(f"expected images within {len(self)}, found {lo} to {lo + count}")
        part = copy(self)
        part.selection = self.selection[lo : lo + count]
        part.labels = None if self.labels is None else self.labels[lo : lo + count]
        return part

    def whole(self) -> Dataset:
        """Return all selected images; raise LenetError if they exceed free memory."""
        length = len(self) * int(np.prod(IMAGE_SHAPE)) * np.dtype(self.dtype).itemsize
        check_memory(self.source, length, self.inflated_from)
        images = np.empty((len(self), *IMAGE_SHAPE), self.dtype)
        self.read(0, images)
        return Dataset(images, self.labels, self.source)


class MemorySource(Source):
    """`images` (N, 28, 28, 1), uint8 or float32 as they are, not checked; `labels` (N,) or None.

    `first` is the number of the first image, `names` are those of all images if they have own ones.
    """

    def __init__(
        self, images: Array, labels: Array | None, name: str, first: int = 0,
        names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        if images.shape[1:] != IMAGE_SHAPE or images.dtype.name not in ("uint8", "float32"):
            raise ValueError(f"{name}: expected (N, 28, 28, 1) uint8 or float32 images")
        super().__init__(name, images.dtype.name, labels, range(first, first + len(images)))
        self.images, self._first, self._names = images, first, names

    def name(self, number: int) -> str:
        """Return the name of image `number` of the selection."""
        skipped = self.selection.start - self._first
        return super().name(number) if self._names is None else self._names[skipped + number]

    def _fill(self, first: int, out: Array) -> None:
        lo = first - self._first
        out[...] = self.images[lo : lo + len(out)]

    def whole(self) -> Dataset:
        """Return the same arrays."""
        return Dataset(self.images, self.labels, self.source)


class RawSource(Source):
    """Contiguous images in a file from byte `offset` on, of dtype `stored`: uint8 or any floats.

    `where` begins messages ("FILE: expected dataset /x"). The caller checks the file's size.
    """

    def __init__(
        self,
        file: OpenFile,
        where: str,
        offset: int,
        stored: "np.dtype[Any]",
        labels: Array | None,
        selection: range,
    ) -> None:
        name = "uint8" if stored.kind == "u" else "float32"
        super().__init__(str(file.path), name, labels, selection)
        self._file, self._where, self._offset, self._stored = file, where, offset, stored

    def _fill(self, first: int, out: Array) -> None:
        size = PIXELS * self._stored.itemsize
        step = len(out) if self.dtype == "uint8" else BLOCK
        for lo in range(0, len(out), step):
            part = out[lo : lo + step]
            raw = part if self._stored == out.dtype else np.empty(part.shape, self._stored)
            at = self._offset + (first + lo) * size
            self._file.read_into(raw.view(np.uint8).data.cast("B"), at)
            if raw is not part:
                narrowed(raw, part)
            if self.dtype == "float32":
                check_floats(part, first + lo, self._where)

    def raw(self, lo: int, count: int) -> tuple[int, int] | None:
        """Return the file descriptor and byte of image lo, or None for floats."""
        at = self._offset + (self.selection.start + lo) * PIXELS
        return (self._file.file.fileno(), at) if self.dtype == "uint8" else None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def narrowed(raw: Array, out: Array) -> None:
    """Convert floats of any kind to float32 `out`; values out of range become infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        out[...] = raw.reshape(out.shape)


def first_unfit(images: Array) -> tuple[int, float, float] | None:
    """Find the first image of floats (n, ...) that is outside 0..1 beyond rounding, or too faint.

    Returns its number, least and largest float; None if there is none. See FAINTEST.
    """
    for lo in range(0, len(images), BLOCK):
        part = images[lo : lo + BLOCK]
        part = part.reshape(len(part), -1)
        high = part.max(axis=1)
        faint = (high > 0) & (high < FAINTEST)
        if part.min() >= -_SLACK and high.max() <= 1 + _SLACK and not faint.any():  # false for NaN
            continue
        low = part.min(axis=1)
        bad = int(np.argmin((low >= -_SLACK) & (high <= 1 + _SLACK) & ~faint))
        return lo + bad, float(low[bad]), float(high[bad])
    return None


def check_floats(images: Array, first: int, where: str) -> None:
    """Raise LenetError if `first_unfit` finds an image in float32 (n, 28, 28, 1).

    `first` is the number of the first image in the file, `where` its name in messages.
    """
    unfit = first_unfit(images)
    if unfit is None:
        return
    number, low, high = unfit
    at = f"in image {first + number:,} (from 0)"
    if not (isfinite(low) and isfinite(high)):
        raise LenetError(f"{where} to be finite, found NaN or infinity {at}")
    if 0 < high < FAINTEST:
        raise LenetError(f"{where} to hold {EXPECTED_BRIGHT}, found {high:.2g} {at}")
    expected = f"{where} to hold floats in 0..1 (or uint8 pixels)"
    raise LenetError(f"{expected}, found {low:g} to {high:g} {at}")


def class_numbers(labels: Array, path: object, where: str) -> Array:
    """Return labels (n,), (n, 1) or one-hot (n, 10) as (n,) int64; raise LenetError for others."""
    if labels.ndim == 2 and labels.shape[1] == CLASSES:
        if ((labels != 0) & (labels != 1)).any() or (labels.sum(axis=1) != 1).any():
            raise LenetError(f"{path}: expected {where} to be one-hot rows, found other values")
        return np.asarray(labels.argmax(axis=1), np.int64)
    flat = labels.reshape(-1)
    with np.errstate(invalid="ignore"):
        numbers: Array = flat.astype(np.int64)
    if (numbers != flat).any() or numbers.min() < 0 or numbers.max() >= CLASSES:
        expected = f"{where} to hold class numbers 0..{CLASSES - 1}"
        raise unexpected(path, expected, f"{flat.min()} to {flat.max()}")
    return numbers
