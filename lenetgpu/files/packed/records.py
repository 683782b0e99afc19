"""Packed images: of each row its span of ink, nothing lost (docs/packed.md has every byte).

A record is a mask of the rows with ink (4 bytes), 10 bits a row for the span's first column and
its count less one, and the spans' pixels.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.network import IMAGE_SHAPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    Array = np.ndarray[Any, Any]

_ROWS, _COLUMNS, _ = IMAGE_SHAPE
_PIXELS = _ROWS * _COLUMNS
MASK_BYTES, SPAN_BITS, FIRST_BITS = 4, 10, 5
_TOGETHER = 4  # spans that fill whole bytes
_SPAN_BYTES = _ROWS * SPAN_BITS // 8
_HEADER = MASK_BYTES + _SPAN_BYTES
SHORTEST, LONGEST = MASK_BYTES, _HEADER + _PIXELS
_AT_ONCE = 4096


def said_of(bytes_an_image: float) -> str:
    """Bytes that an image takes packed, beside those of its pixels."""
    return f"{bytes_an_image:.1f} bytes each of {_PIXELS}, 1:{_PIXELS / bytes_an_image:.2f}"


def pack(images: Any) -> tuple[Array, Array]:
    """uint8 `images` (n, 28, 28) or (n, 28, 28, 1) as records one after another.

    Returns the records' bytes, uint8, and each record's length, (n,) uint16. LenetError where the
    images are of another type.
    """
    import numpy as np

    if images.dtype != np.uint8:
        raise LenetError(
            f"packing: expected uint8 pixels, which it keeps as they are, found {images.dtype}"
        )
    flat = images.reshape(-1, _ROWS, _COLUMNS)
    parts = [_pack(flat[lo : lo + _AT_ONCE]) for lo in range(0, len(flat), _AT_ONCE)]
    records, lengths = zip(*parts, strict=True)
    return np.concatenate(records), np.concatenate(lengths)


def _pack(images: Array) -> tuple[Array, Array]:
    import numpy as np

    n = len(images)
    ink = np.packbits(images != 0, axis=2, bitorder="little").view("<u4")[:, :, 0]
    inked = ink != 0
    lowest = ink & (~ink + np.uint32(1))
    first = np.where(inked, np.bitwise_count(lowest - inked), 0).astype(np.uint16)
    beyond = np.frexp(ink.astype(np.float64))[1]
    count = np.where(inked, beyond - first, 0).astype(np.uint16)
    in_order = np.arange(_ROWS) < inked.sum(1)[:, None]
    spans = np.zeros((n, _ROWS), np.uint64)
    spans[in_order] = (first + ((count - inked) << FIRST_BITS))[inked]
    shifts = np.arange(_TOGETHER, dtype=np.uint64) * np.uint64(SPAN_BITS)
    words = (spans.reshape(n, -1, _TOGETHER) << shifts).sum(2).astype("<u8")
    row = np.zeros((n, LONGEST), np.uint8)
    row[:, :MASK_BYTES] = np.packbits(inked, axis=1, bitorder="little")
    whole = words[:, :, None].view(np.uint8)[:, :, : _TOGETHER * SPAN_BITS // 8]
    row[:, MASK_BYTES:_HEADER] = whole.reshape(n, -1)
    row[:, _HEADER:] = images.reshape(n, -1)
    kept = _kept(first, count, _header_bytes(inked.sum(1)))
    return row[kept], kept.sum(1).astype(np.uint16)


def _header_bytes(inked: Array) -> Array:
    """Bytes of mask and spans of images with so many rows of ink."""
    return MASK_BYTES + (SPAN_BITS * inked.astype("i8") + 7) // 8


def _kept(first: Array, count: Array, header: Array) -> Array:
    """Which of (n, LONGEST) whole header and pixels are in a record: bool."""
    import numpy as np

    n = len(first)
    kept = np.empty((n, LONGEST), bool)
    kept[:, :_HEADER] = np.arange(_HEADER) < header[:, None]
    ones = (np.uint32(1) << count.astype(np.uint32)) - np.uint32(1)
    spans = (ones << first.astype(np.uint32)).astype("<u4")
    held = spans[:, :, None].view(np.uint8)
    bits = np.unpackbits(held, axis=2, count=_COLUMNS, bitorder="little")
    kept[:, _HEADER:] = bits.reshape(n, -1).view(bool)
    return kept


def _require(bad: Array, where: str, number: int, expected: str, found: Array) -> None:
    if bad.any():
        at = int(bad.argmax())
        raise LenetError(
            f"{where}: expected packed image {number + at:,} to {expected}, found {found[at]}"
        )


def spans_of(payload: Array, lengths: Array, where: str, number: int = 0) -> tuple[Array, ...]:
    """What records of an unknown maker say of their rows, checked before anything is used.

    `payload` holds the records, as long as `lengths` say together. Returns which rows have ink
    (28, n) bool, and in the order of these rows each span's first column and count, both (28, n)
    uint16 and zero beyond them. LenetError names `where` and the image, counted from `number`.
    """
    import numpy as np

    require = partial(_require, where=where, number=number)
    lengths = lengths.astype(np.int64)
    bad = (lengths < SHORTEST) | (lengths > LONGEST)
    require(bad, expected=f"have {SHORTEST} to {LONGEST} bytes", found=lengths)
    starts = lengths.cumsum() - lengths
    header = payload.take(starts + np.arange(_HEADER)[:, None], mode="clip")
    masks = np.ascontiguousarray(header[:MASK_BYTES].T).view("<u4")[:, 0]
    require(masks >> _ROWS != 0, expected=f"have {_ROWS} rows", found=masks)
    inked = np.bitwise_count(masks)
    codes = _codes(header[MASK_BYTES:])
    left = (-SPAN_BITS * inked.astype("i2")) % 8
    rest = codes[np.minimum(inked, _ROWS - 1), np.arange(len(inked))] & ((1 << left) - 1)
    require(rest != 0, expected="end its spans with zero bits", found=rest)
    order = np.arange(_ROWS, dtype=np.uint8)[:, None]
    codes = np.where(order < inked, codes, 0)
    first, count = codes & ((1 << FIRST_BITS) - 1), codes >> FIRST_BITS
    count += order < inked
    ends = (first + count).max(0)
    require(ends > _COLUMNS, expected=f"have spans inside {_COLUMNS} columns", found=ends)
    needed = _header_bytes(inked) + count.sum(0, dtype=np.int64)
    require(needed != lengths, expected="be as long as its spans say", found=lengths)
    return masks >> order & 1 != 0, first, count


def _codes(spans: Array) -> Array:
    """The numbers of 10 bits in (35, n) bytes: (28, n) uint16."""
    import numpy as np

    held = spans.reshape(_ROWS // _TOGETHER, -1, spans.shape[1]).astype(np.uint16)
    found = np.empty((_ROWS // _TOGETHER, _TOGETHER, spans.shape[1]), np.uint16)
    for k in range(_TOGETHER):
        both = held[:, k] | held[:, k + 1] << 8
        found[:, k] = both >> k * (SPAN_BITS - 8) & ((1 << SPAN_BITS) - 1)
    return found.reshape(_ROWS, -1)


def _parts(payload: Array, lengths: Array) -> Iterator[tuple[slice, Array]]:
    """(images, their records) a few thousand at a time."""
    import numpy as np

    ends = lengths.cumsum(dtype=np.int64)
    for lo in range(0, len(lengths), _AT_ONCE):
        part = slice(lo, min(lo + _AT_ONCE, len(lengths)))
        yield part, payload[ends[lo] - lengths[lo] : ends[part.stop - 1]]


def check_records(payload: Array, lengths: Array, where: str, number: int = 0) -> None:
    """LenetError where `spans_of` refuses one of the records."""
    for part, records in _parts(payload, lengths):
        spans_of(records, lengths[part], where, number + part.start)


def unpack(payload: Array, lengths: Array, out: Array, where: str, number: int = 0) -> None:
    """The images of records into `out` (n, 28, 28, 1) uint8; LenetError as of `spans_of`."""
    import numpy as np

    for part, records in _parts(payload, lengths):
        inked, *spans = spans_of(records, lengths[part], where, number + part.start)
        rows = inked.sum(0)
        in_order = np.arange(_ROWS) < rows[:, None]
        first, count = (np.zeros((len(rows), _ROWS), np.uint16) for _ in spans)
        for by_row, found in zip((first, count), spans, strict=True):
            by_row[inked.T] = found.T[in_order]
        row = np.zeros((len(rows), LONGEST), np.uint8)
        row[_kept(first, count, _header_bytes(rows))] = records
        out[part] = row[:, _HEADER:].reshape(-1, *IMAGE_SHAPE)
