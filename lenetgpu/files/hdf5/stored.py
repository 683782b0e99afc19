"""Data sets of an untrusted HDF5 file: judged before anything is read, then read as they lie.

Where a data set is not in one piece, its chunks are decoded without HDF5's lock. What a chunk's
filters make of it must have the chunk's declared size, to the byte: one that inflates to more or
to less is refused, and nothing of it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError, first_line
from lenetgpu.files.hdf5.new import later
from lenetgpu.files.hdf5.opened import CLASSES, Untrusted, linked, readable
from lenetgpu.files.reading import require_room
from lenetgpu.files.regular import MOST_RATIO, broken, inflated

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAX_DATASET_BYTES = 64 << 30
"""What is read whole may have so many."""
MAX_CHUNK_BYTES = 1 << 30
"""What is read of a data set that is read by parts; a larger chunk is not taken anywhere."""
DEFLATE, SHUFFLE, FLETCHER = 1, 2, 3
_SMALL_BYTES = 16 << 20
_CHUNK_RATIO = 64
"""A chunk larger than _SMALL_BYTES has at most so many times the file's bytes."""
_CHECKSUM_BYTES = 4

Refuse = Callable[[str], LenetError]
Corner = tuple[int, ...]
Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Stored:
    """A data set that was looked at: numbers of this very file. Nothing of it has been read.

    `filters` are codes in the order in which they were applied. `offset` is the first byte's place
    in the file where all lie in one piece, None in chunks or in an object's header.
    """

    file: Untrusted
    name: str
    expected: str
    id: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None
    filters: tuple[int, ...]
    offset: int | None

    @property
    def path(self) -> Path:
        """The file's."""
        return self.file.path

    @property
    def where(self) -> str:
        """As messages name it."""
        return f"dataset /{self.name}"

    @property
    def bytes(self) -> int:
        """Of all that is declared, as it is before filters."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def piece(self) -> tuple[int, ...]:
        """Shape of what is read at once: a chunk, or all that lies in a header."""
        return self.chunks or self.shape

    @property
    def piece_bytes(self) -> int:
        """Of a whole piece before filters."""
        return prod(self.piece) * self.dtype.itemsize

    @property
    def parts(self) -> int:
        """Pieces that hold all of it."""
        return prod(-(-n // c) for n, c in zip(self.shape, self.piece, strict=True))

    def whole_chunks(self, least: int) -> int:
        """Return at least so many rows, in whole chunks."""
        rows = self.chunks[0] if self.chunks else 1
        return max(1, -(-least // rows)) * rows

    def refuse(self, found: str) -> LenetError:
        """Return what is said where it is not as expected."""
        return self.file.refuse(self.name, self.expected, found)

    def cuts(self, lo: int, hi: int) -> Iterator[tuple[Corner, Slices, Slices]]:
        """Yield (first element of a piece, where of rows lo to hi it goes, which of it does)."""
        rows, *tail = self.piece
        ends = self.shape[1:]
        tails = [range(0, n, c) for n, c in zip(ends, tail, strict=True)]
        for corner in product(range(lo // rows * rows, hi, rows), *tails):
            begin, end = max(corner[0], lo), min(corner[0] + rows, hi)
            sizes = [min(c, n - at) for at, n, c in zip(corner[1:], ends, tail, strict=True)]
            to = [slice(at, at + size) for at, size in zip(corner[1:], sizes, strict=True)]
            held = (slice(begin - corner[0], end - corner[0]), *map(slice, sizes))
            yield corner, (slice(begin - lo, end - lo), *to), held

    def read_piece(self, corner: Corner) -> Array:
        """Return the piece whose first element is `corner`, whole, as `dtype`."""
        import numpy as np

        if self.chunks is None:  # what lies in a header is the only data that HDF5 reads
            import h5py

            require_written(self)
            found = np.empty(self.shape, self.dtype)
            self.id.read(h5py.h5s.ALL, h5py.h5s.ALL, found)
            return found
        data, mask = _raw(self, corner)
        applied = [code for at, code in enumerate(self.filters) if not mask >> at & 1]
        while applied:
            code = applied.pop()
            if code == FLETCHER:
                data = _checked(self, data, corner)
            elif code == DEFLATE:
                length = self.piece_bytes + _CHECKSUM_BYTES * applied.count(FLETCHER)
                data = _inflated(self, data, length, corner)
            else:
                planes = _sized(self, data, corner).reshape(self.dtype.itemsize, -1)
                data = np.ascontiguousarray(planes.T).reshape(-1)
        return _sized(self, data, corner).view(self.dtype).reshape(self.piece)


def find(
    file: Untrusted,
    name: str,
    expected: str,
    accepts: Callable[[tuple[int, ...]], bool],
    kinds: str,
) -> Stored:
    """Return data set `name` of this very file, of which nothing has been read.

    `accepts` judges the shape and `kinds` holds the NumPy kind letters allowed (as "fiu");
    `expected` says both in words. LenetError where the data set is missing or is something else,
    or declares more than the file can hold.
    """
    import h5py

    def refuse(found: str) -> LenetError:
        return file.refuse(name, expected, found)

    place = linked(file.id, name, refuse)
    if place is None:
        held = ", ".join(f"/{key}" for key in file.names(8)) or "nothing"
        raise refuse(f"no such dataset (the file holds {held})")
    item, plist = _opened(*place, refuse)
    space, kind = item.get_space(), item.get_type()
    shape = item.shape if space.is_simple() else None
    if shape is None or not accepts(shape):
        raise refuse(f"shape {shape}")
    dtype = _dtype(kind, refuse)
    if dtype.kind not in kinds:
        raise refuse(f"type {dtype}")
    filters = tuple(_filters(plist, dtype.itemsize, refuse))
    chunked = plist.get_layout() == h5py.h5d.CHUNKED
    if filters and not chunked:
        raise refuse("filters on data that are not in chunks")
    most = space.get_simple_extent_dims(maxdims=True)
    free = None, h5py.h5s.UNLIMITED
    if chunked and any(end not in (n, *free) for n, end in zip(shape, most, strict=True)):
        # HDF5 takes the length of the index of chunks from it, and reads past a shorter index
        raise refuse(f"shape {shape} that may grow to {most}")
    chunks = tuple(plist.get_chunk()) if chunked else None
    offset = None if chunked else item.get_offset()
    found = Stored(file, name, expected, item, shape, dtype, chunks, filters, offset)
    _require_held(found)
    if chunked and not filters:
        _require_chunks(found)
    return found


def _opened(group: Any, name: bytes, refuse: Refuse) -> tuple[Any, Any]:
    """Return HDF5's handles of a data set of numbers and of how it was made.

    Neither shape nor data were asked for. The order matters: HDF5 opens other files to say the
    shape of a virtual data set.
    """
    import h5py

    kind = h5py.h5o.get_info(group, name).type
    if kind != h5py.h5o.TYPE_DATASET:
        raise refuse("a group" if kind == h5py.h5o.TYPE_GROUP else "a type")
    found = h5py.h5d.open(group, name)
    plist = found.get_create_plist()
    inside = h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED
    if plist.get_layout() not in inside or plist.get_external_count():
        raise refuse("data stored in other files")
    code = found.get_type().get_class()
    if code not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT):
        raise refuse(f"{CLASSES.get(code, 'an unknown type')}, which is not taken as numbers")
    return found, plist


def _dtype(kind: Any, refuse: Refuse) -> np.dtype[Any]:
    import h5py

    dtype: np.dtype[Any] = kind.dtype
    byte = kind.get_size() == 1 and (kind.get_precision(), kind.get_offset()) == (8, 0)
    same = (byte and dtype.kind in "iu") or kind.equal(h5py.h5t.py_create(dtype))
    if dtype.itemsize != kind.get_size() or not same:
        raise refuse(f"numbers of {kind.get_size():,} bytes that NumPy has no type for")
    return dtype


def _filters(plist: Any, width: int, refuse: Refuse) -> Iterator[int]:
    """Yield deflate, shuffle by the numbers' width and Fletcher's checksum, once each at most."""
    known = set()
    for index in range(plist.get_nfilters()):
        code, _, values, _ = plist.get_filter(index)
        if code not in (DEFLATE, SHUFFLE, FLETCHER):
            raise refuse(f"filter {code}, which is none of gzip, shuffle and fletcher32")
        if code in known:
            raise refuse(f"filter {code} twice")
        if code == SHUFFLE and tuple(values[:1]) != (width,):
            raise refuse(f"a shuffle by {list(values)} bytes of elements of {width}")
        known.add(code)
        yield int(code)


def _require_held(item: Stored) -> None:
    """LenetError where a data set declares what a file of this size cannot hold."""
    size, length = item.file.size, item.bytes
    if item.chunks:
        most = min(MAX_CHUNK_BYTES, max(_SMALL_BYTES, _CHUNK_RATIO * size))
        if item.piece_bytes > most:
            raise item.refuse(f"chunks of {item.piece_bytes:,} bytes, more than {most:,}")
        if length > size * (MOST_RATIO if DEFLATE in item.filters else 1):
            raise item.refuse(f"{length:,} bytes, more than a file of {size:,} can hold")
    elif item.offset is not None and item.offset + length > size:
        raise LenetError(
            f"{item.path}: expected {item.where} to lie within the file, "
            f"found that it ends at byte {item.offset + length:,} of {size:,}"
        )


def _require_chunks(item: Stored) -> None:
    """LenetError where a chunk without filters is not as long as any.

    HDF5 reads as many bytes as its index says into the room that h5py made by the shape: fewer
    leave what lay there, more write over what lies behind.
    """
    wrong: list[str] = []
    most, count = item.parts, 0

    def note(chunk: Any) -> bool | None:
        nonlocal count
        count += 1
        if chunk.size != item.piece_bytes:
            wrong.append(f"a chunk of {chunk.size:,} bytes, where all have {item.piece_bytes:,}")
        elif count > most:
            wrong.append(f"more than {most:,} chunks")
        return True if wrong else None

    with later():
        item.id.chunk_iter(note)
    if wrong:
        raise item.refuse(wrong[0])


def require_written(item: Stored) -> None:
    """LenetError where a part of a data set was never written, which is no value of anybody's.

    Nor where chunks lie upon each other, or data in a header are of another length.
    """
    held = int(item.id.get_storage_size())
    if item.chunks is None:
        if item.offset is None and held != item.bytes:
            raise item.refuse("1 of 1 parts not written")
        return
    found, wanted = item.id.get_num_chunks(), item.parts
    if found < wanted:
        raise item.refuse(f"{wanted - found:,} of {wanted:,} parts not written")
    if held > item.file.size:
        raise item.refuse(f"chunks of {held:,} bytes in a file of {item.file.size:,}")


def read_array(
    file: Untrusted,
    name: str,
    expected: str,
    accepts: Callable[[tuple[int, ...]], bool],
    kinds: str,
) -> Array:
    """Return data set `name` whole, in native byte order; arguments and LenetError as in `find`."""
    item = find(file, name, expected, accepts, kinds)
    if item.bytes > MAX_DATASET_BYTES:
        raise item.refuse(f"{item.bytes:,} bytes, more than {MAX_DATASET_BYTES:,}")
    require_written(item)
    require_room(f"{item.path}: {item.where}", item.bytes, file.size if item.filters else None)
    array = read_rows(item, 0, item.shape[0])
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def read_rows(item: Stored, lo: int, hi: int) -> Array:
    """Return rows lo to hi (hi - lo, ...) of a data set; LenetError where it is damaged."""
    import numpy as np

    found: Array = np.empty((hi - lo, *item.shape[1:]), item.dtype)
    with readable(item.path):
        if item.offset is None:
            for corner, to, held in item.cuts(lo, hi):
                found[to] = item.read_piece(corner)[held]
            return found
        file = item.file.bytes()
        try:
            row = prod(item.shape[1:]) * item.dtype.itemsize
            file.read_into(found.reshape(-1).view(np.uint8).data, item.offset + lo * row)
        finally:
            file.close()
        return found


def _refuse(item: Stored, corner: Corner, expected: str, found: str) -> LenetError:
    return LenetError(
        f"{item.path}: expected {item.where} to have a chunk {expected} at image {corner[0]:,}, "
        f"found {found}"
    )


def _raw(item: Stored, corner: Corner) -> tuple[Array, int]:
    """Return a chunk's bytes as they lie in the file, and which of its filters were left out.

    HDF5 is not asked where they lie: it answers by walking all chunks before this one.
    """
    import numpy as np
    from h5py._hl.base import phil

    room = np.empty(min(item.piece_bytes * 17 // 16 + 4096, item.file.size), np.uint8)
    try:
        with phil:  # h5py before 3.16 does not take its lock here, and HDF5 has none
            mask, found = item.id.read_direct_chunk(corner, out=room)
    except ValueError as error:
        expected = f"of at most {len(room):,} bytes in the file"
        raise _refuse(item, corner, expected, "more") from error
    except (RuntimeError, OSError) as error:
        reason = f"one that cannot be read ({first_line(error)})"
        raise _refuse(item, corner, "stored", reason) from error
    item.file.check_size()
    return room[: len(found)], int(mask)


def _inflated(item: Stored, data: Array, length: int, corner: Corner) -> Array:
    import numpy as np

    try:
        found, whole = inflated(data, length + 1)
    except broken() as error:
        raise _refuse(item, corner, "that inflates", f"a damaged one ({error})") from error
    if len(found) != length or not whole:
        said = "more" if len(found) > length else f"{len(found):,}"
        said = "no end after them" if len(found) == length else said
        raise _refuse(item, corner, f"that inflates to {length:,} bytes", said)
    return np.frombuffer(found, np.uint8)


def _checked(item: Stored, data: Array, corner: Corner) -> Array:
    import numpy as np

    body, kept = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    found = fletcher32(body)
    said = kept.view("<u4")[0] if len(kept) == _CHECKSUM_BYTES else "none"
    if said != found:
        raise _refuse(item, corner, f"whose checksum is {found}", str(said))
    return np.ascontiguousarray(body)


def _sized(item: Stored, data: Array, corner: Corner) -> Array:
    if len(data) != item.piece_bytes:
        raise _refuse(item, corner, f"of {item.piece_bytes:,} bytes", f"{len(data):,}")
    return data


def fletcher32(data: Array) -> int:
    """Return HDF5's checksum of bytes (n,): Fletcher's over big-endian words of 16 bits.

    A last odd byte counts as a word's upper half. Sums are modulo 65535, with 65535 for a zero that
    is not nothing but zeros.
    """
    import numpy as np

    words = np.zeros(-(-len(data) // 2), ">u2")
    words.view(np.uint8)[: len(data)] = data
    first, second = 0, 0
    step = 1 << 14
    falling = np.arange(step, 0, -1, dtype=np.uint64)
    for lo in range(0, len(words), step):
        part = words[lo : lo + step].astype(np.uint64)
        second += len(part) * first + int(part @ falling[step - len(part) :])
        first += int(part.sum())
    return (_folded(second) << 16) | _folded(first)


def _folded(total: int) -> int:
    return total % 65535 or (65535 if total else 0)
