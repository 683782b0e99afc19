"""Datasets of an untrusted HDF5 file read into arrays: whole, or rows of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from lenetgpu.files.hdf5.chunks import Chunks
from lenetgpu.files.hdf5.opened import Untrusted, readable
from lenetgpu.files.hdf5.stored import MAX_DATASET_BYTES, Stored, find, require_written
from lenetgpu.files.reading import require_room

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def read_array(
    file: Untrusted,
    name: str,
    expected: str,
    accepts: Callable[[tuple[int, ...]], bool],
    kinds: str,
) -> Array:
    """Return dataset `name` whole, in native byte order; arguments and LenetError as in `find`."""
    item = find(file, name, expected, accepts, kinds)
    if item.bytes > MAX_DATASET_BYTES:
        raise item.refuse(f"{item.bytes:,} bytes, more than {MAX_DATASET_BYTES:,}")
    require_written(item)
    require_room(f"{item.path}: {item.where}", item.bytes, file.size if item.filters else None)
    array = read_rows(item, 0, item.shape[0])
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def read_rows(item: Stored, lo: int, hi: int) -> Array:
    """Rows lo to hi (hi - lo, ...) of a dataset, as `dtype`; LenetError where it is damaged."""
    with readable(item.path):
        if item.chunks:
            return _of_chunks(item, lo, hi)
        if item.offset is None:
            return _of_header(item)[lo:hi]
        return _of_one_piece(item, item.offset, lo, hi)


def _of_one_piece(item: Stored, offset: int, lo: int, hi: int) -> Array:
    import numpy as np

    row = prod(item.shape[1:]) * item.width
    raw = np.empty((hi - lo) * row, np.uint8)
    file = item.file.bytes()
    try:
        file.read_into(raw.data, offset + lo * row)
    finally:
        file.close()
    return item.native(raw).reshape(hi - lo, *item.shape[1:])


def _of_header(item: Stored) -> Array:
    """What lies in the object's header, at most 64 KiB: the only data that HDF5 reads."""
    import h5py
    import numpy as np

    require_written(item)
    raw = np.zeros(item.bytes, np.uint8)
    item.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, item.kind)
    return item.native(raw).reshape(item.shape)


def _of_chunks(item: Stored, lo: int, hi: int) -> Array:
    import numpy as np

    assert item.chunks
    chunks = Chunks(item, f"{item.path}: expected {item.where}")
    found: Array = np.empty((hi - lo, *item.shape[1:]), item.dtype)
    first = lo // item.chunks[0] * item.chunks[0]
    ranges = [range(first, hi, item.chunks[0])]
    ranges += [range(0, n, c) for n, c in zip(item.shape[1:], item.chunks[1:], strict=True)]
    for corner in product(*ranges):
        begin, end = max(corner[0], lo), min(corner[0] + item.chunks[0], hi)
        to = (slice(begin - lo, end - lo), *(slice(c, c + n) for c, n in
              zip(corner[1:], item.chunks[1:], strict=True)))  # fmt: skip
        target = found[to]
        held = (slice(begin - corner[0], end - corner[0]), *map(slice, target.shape[1:]))
        target[...] = chunks.read(corner)[held]
    return found
