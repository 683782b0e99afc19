"""Packed images: of each row its span of ink, nothing lost (docs/packed.md has every byte).

A record is a mask of the rows with ink (4 bytes), 10 bits a row for the span's first column and
its count less one, and the spans' pixels.
"""

from __future__ import annotations

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
    bits = np.unpackbits(spans[:, :, None].view(np.uint8), axis=2, count=_COLUMNS,
                         bitorder="little")  # fmt: skip
    kept[:, _HEADER:] = bits.reshape(n, -1)
    return kept


def spans_of(payload: Array, lengths: Array, where: str, number: int = 0) -> tuple[Array, ...]:
    """What records of an unknown maker say of their rows, checked before anything is used.

    `payload` holds the records, as long as `lengths` say together. Returns each row's first column
    and count, both (n, 28) uint8, and each header's bytes (n,). LenetError names `where` and the
    image, counted from `number`.
    """
    import numpy as np

    def require(bad: Array, expected: str, found: Array) -> None:
        if bad.any():
            at = int(bad.argmax())
            raise LenetError(
                f"{where}: expected packed image {number + at:,} to {expected}, found {found[at]}"
            )

    lengths = lengths.astype(np.int64)
    require((lengths < SHORTEST) | (lengths > LONGEST), f"have {SHORTEST} to {LONGEST} bytes",
            lengths)  # fmt: skip
    starts = lengths.cumsum() - lengths
    at = np.minimum(starts[:, None] + np.arange(_HEADER), len(payload) - 1)
    header = payload[at]
    masks = header[:, :MASK_BYTES].copy().view("<u4")[:, 0]
    require(masks >> _ROWS != 0, f"have {_ROWS} rows", masks)
    inked = np.unpackbits(header[:, :MASK_BYTES], axis=1, count=_ROWS, bitorder="little") != 0
    sizes = _header_bytes(inked.sum(1))
    header[np.arange(_HEADER) >= sizes[:, None]] = 0
    words = np.zeros((len(lengths), _ROWS // _TOGETHER, 8), np.uint8)
    words[:, :, : _TOGETHER * SPAN_BITS // 8] = header[:, MASK_BYTES:].reshape(
        len(lengths), _ROWS // _TOGETHER, -1
    )
    shifts = np.arange(_TOGETHER, dtype=np.uint64) * np.uint64(SPAN_BITS)
    codes = (words.view("<u8") >> shifts).astype(np.uint16) & ((1 << SPAN_BITS) - 1)
    codes = codes.reshape(len(lengths), _ROWS)
    in_order = np.arange(_ROWS) < inked.sum(1)[:, None]
    rest = np.where(in_order, 0, codes).max(1)
    require(rest != 0, "end its spans with zero bits", rest)
    first, count = (np.zeros(codes.shape, np.uint8) for _ in range(2))
    first[inked] = codes[in_order] & ((1 << FIRST_BITS) - 1)
    count[inked] = (codes[in_order] >> FIRST_BITS) + 1
    ends = (first + count).max(1)
    require(ends > _COLUMNS, f"have spans inside {_COLUMNS} columns", ends)
    needed = sizes + count.sum(1, dtype=np.int64)
    require(needed != lengths, "be as long as its spans say", lengths)
    return first, count, sizes


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
        spans = spans_of(records, lengths[part], where, number + part.start)
        row = np.zeros((len(lengths[part]), LONGEST), np.uint8)
        row[_kept(*spans)] = records
        out[part] = row[:, _HEADER:].reshape(-1, *IMAGE_SHAPE)
