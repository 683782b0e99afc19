"""Datasets of an untrusted HDF5 file, described and judged before anything of them is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.hdf5 import guard
from lenetgpu.files.hdf5.later import later
from lenetgpu.files.hdf5.opened import Untrusted
from lenetgpu.files.inflate import MOST_RATIO

if TYPE_CHECKING:
    import numpy as np

MAX_DATASET_BYTES = 64 << 30
"""What is read whole may have so many."""
MAX_CHUNK_BYTES = 1 << 30
"""What is read of a dataset that is read by parts; a larger chunk is not taken anywhere."""
_SMALL_BYTES = 16 << 20
_CHUNK_RATIO = 64
"""A chunk larger than _SMALL_BYTES has at most so many times the file's bytes."""


@dataclass(frozen=True)
class Stored:
    """A dataset that was looked at: numbers of this very file. Nothing of it has been read.

    `dtype` is what its numbers are read as, `width` the bytes that one takes in the file, `kind`
    HDF5's type of these, and `plain` whether they are the dtype's bytes as they lie. `offset` is
    the first byte's place in the file where all lie in one piece, None in chunks or in a header.
    """

    file: Untrusted
    name: str
    expected: str
    id: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: Any
    plain: bool
    chunks: tuple[int, ...] | None
    filters: guard.Filters
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
    def width(self) -> int:
        """Bytes that a number takes in the file."""
        return int(self.kind.get_size())

    @property
    def bytes(self) -> int:
        """Of all that is declared, as it is before filters."""
        return prod(self.shape) * self.width

    @property
    def chunk_bytes(self) -> int:
        """Of a whole chunk before filters; 0 without chunks."""
        return prod(self.chunks) * self.width if self.chunks else 0

    @property
    def parts(self) -> int:
        """Chunks that hold all of it."""
        chunks = self.chunks or self.shape
        return prod(-(-n // c) for n, c in zip(self.shape, chunks, strict=True))

    def refuse(self, found: str) -> LenetError:
        """What is said where it is not as expected."""
        return self.file.refuse(self.name, self.expected, found)

    def native(self, raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Bytes (n * width,) as they lie in the file as numbers (n,) of `dtype`."""
        import h5py
        import numpy as np

        if self.plain:
            return raw.view(self.dtype)
        count, wide = len(raw) // self.width, max(self.width, self.dtype.itemsize)
        room = np.zeros(count * wide, np.uint8)
        room[: len(raw)] = raw
        h5py.h5t.convert(self.kind, h5py.h5t.py_create(self.dtype), count, room)
        return room[: count * self.dtype.itemsize].view(self.dtype)


def find(
    file: Untrusted,
    name: str,
    expected: str,
    accepts: Callable[[tuple[int, ...]], bool],
    kinds: str,
) -> Stored:
    """Dataset `name` of this very file, of which nothing has been read.

    `accepts` judges the shape and `kinds` holds the NumPy kind letters allowed (as "fiu");
    `expected` says both in words. LenetError where the dataset is missing or is something else,
    or declares more than the file can hold.
    """

    def refuse(found: str) -> LenetError:
        return file.refuse(name, expected, found)

    place = guard.linked(file.id, name, refuse)
    if place is None:
        held = ", ".join(f"/{key}" for key in file.names(8)) or "nothing"
        raise refuse(f"no such dataset (the file holds {held})")
    item = guard.dataset(*place, refuse)
    space, kind = item.get_space(), item.get_type()
    shape = item.shape if space.is_simple() else None
    if shape is None or not accepts(shape):
        raise refuse(f"shape {shape}")
    _require_sound(kind, refuse)
    dtype = kind.dtype
    if dtype.kind not in kinds:
        raise refuse(f"type {dtype}")
    chunks, filters = _chunks(item, kind.get_size(), refuse)
    if chunks:
        _require_ends(shape, space.get_simple_extent_dims(maxdims=True), refuse)
    offset = None if chunks else item.get_offset()
    plain = _plain(kind, dtype)
    found = Stored(file, name, expected, item, shape, dtype, kind, plain, chunks, filters, offset)
    _require_held(found)
    if chunks and not filters:
        _require_chunks(found)
    return found


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
        if chunk.size != item.chunk_bytes:
            wrong.append(f"a chunk of {chunk.size:,} bytes, where all have {item.chunk_bytes:,}")
        elif count > most:
            wrong.append(f"more than {most:,} chunks")
        return True if wrong else None

    with later():
        item.id.chunk_iter(note)
    if wrong:
        raise item.refuse(wrong[0])


def _require_sound(kind: Any, refuse: Callable[[str], LenetError]) -> None:
    """A number's bits lie within its bytes."""
    import h5py

    bits, first = kind.get_precision(), kind.get_offset()
    sound = kind.get_size() <= 16 and bits > 0 and first + bits <= 8 * kind.get_size()
    if sound and kind.get_class() == h5py.h5t.FLOAT:
        sign, exponent, wide, mantissa, long = kind.get_fields()
        ends = sign + 1, exponent + wide, mantissa + long
        sound = max(ends) <= 8 * kind.get_size() and 0 < wide < 32 and long > 0
    if not sound:
        raise refuse(f"numbers of {kind.get_size():,} bytes that are none")


def _plain(kind: Any, dtype: Any) -> bool:
    """Whether the bytes in the file are the dtype's: not a float of odd widths, say."""
    import h5py

    if dtype.itemsize == 1 and dtype.kind in "iu":
        named = ("STD_U8LE", "STD_U8BE") if dtype.kind == "u" else ("STD_I8LE", "STD_I8BE")
        return any(kind.equal(getattr(h5py.h5t, name)) for name in named)
    return bool(kind.equal(h5py.h5t.py_create(dtype)))


def _require_ends(
    shape: tuple[int, ...], most: tuple[int, ...], refuse: Callable[[str], LenetError]
) -> None:
    """That a dataset in chunks may not grow, or without bounds.

    HDF5 takes the length of the index of its chunks from `most`, and reads past an index that is
    shorter.
    """
    import h5py

    if any(end not in (n, None, h5py.h5s.UNLIMITED) for n, end in zip(shape, most, strict=True)):
        raise refuse(f"shape {shape} that may grow to {most}")


def _chunks(
    item: Any, width: int, refuse: Callable[[str], LenetError]
) -> tuple[tuple[int, ...] | None, guard.Filters]:
    import h5py

    plist = item.get_create_plist()
    if plist.get_layout() != h5py.h5d.CHUNKED:
        if plist.get_nfilters():
            raise refuse("filters on data that are not in chunks")
        return None, ()
    return tuple(plist.get_chunk()), guard.filters(plist, width, refuse)


def _require_held(item: Stored) -> None:
    """LenetError where a dataset declares what a file of this size cannot hold."""
    size, length = item.file.size, item.bytes
    if item.chunks:
        most = min(MAX_CHUNK_BYTES, max(_SMALL_BYTES, _CHUNK_RATIO * size))
        if item.chunk_bytes > most:
            raise item.refuse(f"chunks of {item.chunk_bytes:,} bytes, more than {most:,}")
        deflated = guard.DEFLATE in (code for code, _ in item.filters)
        if length > size * (MOST_RATIO if deflated else 1):
            raise item.refuse(f"{length:,} bytes, more than a file of {size:,} can hold")
    elif item.offset is not None and item.offset + length > size:
        raise LenetError(
            f"{item.path}: expected {item.where} to lie within the file, "
            f"found that it ends at byte {item.offset + length:,} of {size:,}"
        )


def require_written(item: Stored) -> None:
    """LenetError where a part of a dataset was never written, which is no value of anybody's.

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
