"""Files of packed images as a source: any slice alone, every block's checksum looked at.

The file is untrusted: what it says of itself is checked against its own size before any memory is
taken, a block against its checksum before its records are read, a record before its pixels are.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.checksums import Sums
from lenetgpu.files.hdf5 import Untrusted, attribute, find
from lenetgpu.files.packed.records import LONGEST, SHORTEST, check_records, unpack
from lenetgpu.files.reading import Source, class_numbers, selected

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    Array = np.ndarray[Any, Any]

ATTRIBUTE, VERSION = "packed_images", 1
BLOCK_ATTRIBUTE = "images_a_block"
BLOCK = 256
MAX_BLOCK = 1 << 15
MAX_BLOCKS = 1 << 26
RECORDS, LENGTHS, STARTS, SUMS, LABELS = "records", "lengths", "starts", "sums", "y"
_TYPES = {RECORDS: "|u1", LENGTHS: "<u2", STARTS: "<u8", SUMS: "<u4", LABELS: "|u1"}
_AT_ONCE = 4096


def checksum(facts: tuple[int, int, bool], lengths: Any, labels: Any, records: Any) -> int:
    """CRC-32 of a block: its facts (images of the file, block, labels or not), then its bytes."""
    found = zlib.crc32(struct.pack("<QQQ", *facts))
    for part in (lengths, labels, records):
        found = zlib.crc32(part, found)
    return found


@dataclass(frozen=True)
class _Place:
    """A dataset's first byte in the file, and how many items it has."""

    offset: int
    items: int


def _whole_number(file: Untrusted, name: str, least: int, most: int) -> int:
    found = attribute(file, name)
    if isinstance(found, int) and least <= found <= most:
        return found
    raise LenetError(
        f"{file.path}: expected attribute {name} to be "
        f"{f'{least} to {most}' if most > least else least}, "
        f"found {'none' if found is None else str(found)[:40]}"
    )


def _place(file: Untrusted, name: str, size: int) -> _Place:
    """Where dataset `name` lies: uncompressed and in one piece, within the file's `size` bytes."""
    import numpy as np

    stored = np.dtype(_TYPES[name])
    expected = f"one row of {stored.name} in one piece, as of packed images"
    item = find(file, name, expected, lambda shape: len(shape) == 1, stored.kind)
    if item.dtype != stored:
        raise item.refuse(f"type {item.dtype}")
    if item.chunks is not None:
        raise item.refuse("chunks")
    if item.offset is None:
        raise item.refuse("nothing written")
    if item.offset + item.bytes > size:
        raise item.refuse(f"{item.shape[0]:,} items, which end beyond the file")
    return _Place(item.offset, item.shape[0])


class PackedSource(Source):
    """The images of a packed file (docs/packed.md), after the first `skip`, at most `limit`.

    LenetError where `path` is not what the page says, or was changed since it was written.
    """

    def __init__(
        self, path: Path, file: Untrusted, skip: int, limit: int | None, sums: Sums
    ) -> None:
        """Of `path`, opened as `file`, which stays the caller's, with the sums it states."""
        self._file = file.bytes()
        try:
            self._find(file)
            self._index(sums)
            chosen = selected(path, self._count, skip, limit)
            labels = self._labels_of(chosen.start, len(chosen))
            if labels is not None:
                labels = class_numbers(labels, path, f"/{LABELS}")
        except BaseException:
            self._file.close()
            raise
        super().__init__(str(path), "uint8", labels, chosen)

    def _find(self, file: Untrusted) -> None:
        """What the file says of itself, none of it larger than the file is."""
        _whole_number(file, ATTRIBUTE, VERSION, VERSION)
        self._block = _whole_number(file, BLOCK_ATTRIBUTE, 1, MAX_BLOCK)
        named = [name for name in _TYPES if name != LABELS or file.holds(name)]
        places = {name: _place(file, name, self._file.size) for name in named}
        self._places, self._count = places, places[LENGTHS].items
        blocks = -(-self._count // self._block)
        for name, items in ((STARTS, blocks + 1), (SUMS, blocks), (LABELS, self._count)):
            if name in places and places[name].items != items:
                raise LenetError(
                    f"{file.path}: expected dataset /{name} to have {items:,} items for "
                    f"{self._count:,} packed images, found {places[name].items:,}"
                )
        if not 1 <= blocks <= MAX_BLOCKS:
            raise LenetError(
                f"{file.path}: expected 1 to {MAX_BLOCKS:,} blocks of packed images, "
                f"found {blocks:,}"
            )

    def _index(self, sums: Sums) -> None:
        """Where blocks begin and what they sum to: 12 bytes a block."""
        import numpy as np

        starts = self._bytes(STARTS, 0, self._places[STARTS].items)
        sums.require(STARTS, starts)
        total = self._places[RECORDS].items
        images = np.full(len(starts) - 1, self._block)
        images[-1] = self._count - self._block * (len(images) - 1)
        if starts[0] != 0 or starts[-1] != total or starts.max() > total:
            raise self._refused(f"to rise from 0 to {total}", f"{starts[0]} to {starts.max()}")
        self._starts = starts.astype(np.int64)
        lengths = np.diff(self._starts)
        wrong = (lengths < SHORTEST * images) | (lengths > LONGEST * images)
        if wrong.any():
            at = int(wrong.argmax())
            raise self._refused(
                f"to rise by {SHORTEST} to {LONGEST} bytes an image",
                f"{lengths[at]:,} for the {images[at]:,} images of block {at:,}",
            )
        self._sums = self._bytes(SUMS, 0, self._places[SUMS].items)
        sums.require(SUMS, self._sums)

    def _refused(self, expected: str, found: str) -> LenetError:
        path = self._file.path
        return LenetError(f"{path}: expected dataset /{STARTS} {expected}, found {found}")

    def _labels_of(self, first: int, items: int) -> Array | None:
        return self._bytes(LABELS, first, items) if LABELS in self._places else None

    def _bytes(self, name: str, first: int, items: int, out: Array | None = None) -> Array:
        """`items` of dataset `name` from item `first` on, read now, into `out` where given."""
        import numpy as np

        stored = np.dtype(_TYPES[name])
        found: Array = np.empty(items, stored) if out is None else out[:items]
        at = self._places[name].offset + first * stored.itemsize
        self._file.read_into(found.data.cast("B"), at)
        return found

    @property
    def bytes_an_image(self) -> float:
        """Of the records, over all images of the file."""
        return self._places[RECORDS].items / self._count

    def _blocks(self, first: int, last: int, out: Array | None) -> tuple[Array, Array]:
        """Records and lengths of whole blocks, each block compared with its checksum."""
        import numpy as np

        lo, hi = first * self._block, min(last * self._block, self._count)
        lengths, labels = self._bytes(LENGTHS, lo, hi - lo), self._labels_of(lo, hi - lo)
        begin = int(self._starts[first])
        records = self._bytes(RECORDS, begin, int(self._starts[last]) - begin, out)
        edges = np.arange(0, hi - lo, self._block)
        sums = np.add.reduceat(lengths, edges, dtype=np.int64)
        if (sums != np.diff(self._starts[first : last + 1])).any():
            raise LenetError(
                f"{self._file.path}: expected the records of blocks {first:,} to {last - 1:,} of "
                f"packed images to be as long as dataset /{STARTS} says, found other lengths: "
                "the file is damaged"
            )
        for block, edge in zip(range(first, last), edges.tolist(), strict=True):
            own = slice(*(int(start) - begin for start in self._starts[block : block + 2]))
            part = slice(edge, edge + self._block)
            named = None if labels is None else labels[part]
            self._compare(block, lengths[part], named, records[own])
        return records, lengths

    def _compare(self, block: int, lengths: Array, labels: Array | None, records: Array) -> None:
        lo = block * self._block
        facts = (self._count, block, labels is not None)
        parts = (lengths, b"" if labels is None else labels, records)
        found, expected = checksum(facts, *parts), int(self._sums[block])
        if found != expected:
            raise LenetError(
                f"{self._file.path}: expected block {block:,} of packed images ({lo:,} to "
                f"{lo + len(lengths) - 1:,}) to have the checksum {expected:08x}, "
                f"found {found:08x}: the file is damaged"
            )

    def _records(self, lo: int, hi: int, out: Array | None = None) -> tuple[Array, Array]:
        """Records and lengths of the file's images lo to hi, out of whole blocks."""
        first, last = lo // self._block, -(-hi // self._block)
        records, lengths = self._blocks(first, last, out)
        before = lo - first * self._block
        skipped = int(lengths[:before].sum(dtype="i8"))
        lengths = lengths[before : before + hi - lo]
        return records[skipped : skipped + int(lengths.sum(dtype="i8"))], lengths

    def _parts(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """lo to hi in parts that end where blocks do, of some megabytes each."""
        step = max(1, _AT_ONCE // self._block) * self._block
        while lo < hi:
            end = min(hi, (lo // step + 1) * step)
            yield lo, end
            lo = end

    def _fill(self, first: int, out: Array) -> None:
        for lo, hi in self._parts(first, first + len(out)):
            records, lengths = self._records(lo, hi)
            unpack(records, lengths, out[lo - first : hi - first], self.source, lo)

    def room(self, lo: int, hi: int) -> int:
        """Bytes that `packed(lo, hi)` reads: of the blocks that hold these images."""
        first, last = self.chosen.start + lo, self.chosen.start + hi
        edges = self._starts[[first // self._block, -(-last // self._block)]]
        return int(edges[1] - edges[0])

    def packed(self, lo: int, hi: int, out: Array | None = None) -> tuple[Array, Array]:
        """Images lo to hi of the selection as they are stored, checked as `read` checks them.

        Returns their records, contiguous uint8, a view of `out` where given (uint8, of at least
        `room(lo, hi)` items), and where each begins and the last ends in them, (hi - lo + 1,)
        uint32. Several threads may call it.
        """
        import numpy as np

        if not 0 <= lo < hi <= len(self):
            raise ValueError(f"expected images within {len(self)}, found {lo} to {hi}")
        start = self.chosen.start
        records, lengths = self._records(start + lo, start + hi, out)
        if len(records) >= 1 << 32:
            raise LenetError(f"{self.source}: expected less than 4 GiB at once, found {hi - lo:,}")
        check_records(records, lengths, self.source, start + lo)
        offsets = np.zeros(hi - lo + 1, np.uint32)
        np.cumsum(lengths, out=offsets[1:])
        return records, offsets

    def close(self) -> None:
        """Close the file."""
        self._file.close()
