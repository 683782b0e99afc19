r"""SHA-256 checksums of HDF5 files, stored in HDF5 attributes: written and compared here.

A dataset's attribute `lenetgpu_sha256` is the SHA-256 of a line with its type and shape ("<f4
5x5x1x32\n"), followed by its elements, little-endian, in C order. The root group's attribute covers
names, types, shapes and attributes of all datasets that have a checksum, and its own attributes.
Images, which are read by parts, have a second dataset (`/x_sha256`) with such a checksum of each
block of rows, one block a chunk. Every chunked dataset also has HDF5's own Fletcher checksum.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import unexpected
from lenetgpu.files import hdf5
from lenetgpu.files.reading import spans
from lenetgpu.files.sums import ATTRIBUTE, OF_BLOCKS, Sum, Sums, compare, described, sum_of

_MOST = 64  # datasets that a file with checksums may have
_MOST_FACTS = 1 << 20  # bytes of all attributes together
_BYTES = 32
_AT_ONCE = 8 << 20


class Blocks:
    """Checksums of a dataset's blocks of rows, comparable in any order and from any thread."""

    def __init__(self, item: hdf5.Stored, rows: int, table: Array) -> None:
        self._what = f"{item.path}: expected {item.where}"
        self._count, self.rows, self._table = item.shape[0], rows, table

    def require(self, first: int, block: Array) -> None:
        """Raise LenetError if the rows from `first` on differ from those written."""
        rows = block[: self._count - first]
        expected = self._table[first // self.rows].tobytes().hex()
        what = f"{self._what}, rows {first:,} to {first + len(rows) - 1:,},"
        compare(what, expected, sum_of(rows))


class Rows:
    """Writer of a new dataset, `rows` at a time; `by_blocks` also writes a dataset of checksums."""

    def __init__(
        self,
        file: Any,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        rows: int,
        by_blocks: bool = False,
        **options: Any,
    ) -> None:
        chunks = (max(1, min(rows, shape[0])), *shape[1:])
        self._file, self._name, self._by_blocks, self.rows = file, name, by_blocks, chunks[0]
        self._item = file.create_dataset(
            name, shape, dtype, chunks=chunks, fletcher32=True, track_times=False, **options
        )
        self._sum, self._of_blocks, self._done = Sum(self._item.dtype, shape), b"", 0

    def add(self, part: Array) -> None:
        """Write the next `rows` rows; the last part may be shorter, and completes the dataset."""
        self._item[self._done : self._done + len(part)] = part
        self._sum.add(part)
        if self._by_blocks:
            self._of_blocks += bytes.fromhex(sum_of(part.astype(self._item.dtype, copy=False)))
        self._done += len(part)
        if self._done == len(self._item):
            self._item.attrs[ATTRIBUTE] = np.bytes_(self._sum.hex())
            if self._by_blocks:
                table = np.frombuffer(self._of_blocks, np.uint8).reshape(-1, _BYTES)
                write(self._file, self._name + OF_BLOCKS, table)


def write(file: Any, name: str, array: Array, **options: Any) -> None:
    """Write a new dataset of one chunk, with its checksum; `options` are h5py's."""
    Rows(file, name, array.shape, array.dtype, len(array), **options).add(array)


def describe(owner: Any, attributes: Mapping[str, Any]) -> None:
    """Write attributes that can be checksummed (text in fixed length); skip stored checksums."""
    for name, value in attributes.items():
        kind = None
        if isinstance(value, str):
            value = value.encode()
            kind = hdf5.h5py.string_dtype("utf-8", max(1, len(value)))
        if name != ATTRIBUTE:
            owner.attrs.create(name, np.array(value, kind), dtype=kind)


def sum_up(file: Any) -> None:
    """Write the checksum over names, types, shapes and attributes, after everything else."""
    checksum = _sum_of_facts(file, {name: file[name] for name in file}, "a new file")
    file.attrs[ATTRIBUTE] = np.bytes_(checksum)


def _sum_of_facts(file: Any, items: Mapping[str, Any], path: object) -> str:
    facts, size = [], 0
    for where, holder in {"": file, **items}.items():
        for name in hdf5.attribute_names(holder):
            if where or name != ATTRIBUTE:
                dtype, raw = hdf5.attribute(holder, name, path)
                facts.append((where, name, f"{described(dtype, raw.shape)} {raw.tobytes().hex()}"))
                size += raw.nbytes
            if size > _MOST_FACTS:
                expected = f"attributes of at most {_MOST_FACTS:,} bytes beside checksums"
                raise unexpected(path, expected, "more")
    facts += [(name, "", described(item.dtype, item.shape)) for name, item in items.items()]
    return hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()


def stated(file: hdf5.Untrusted) -> Sums:
    """Return the checksums stated in an open file, of which no dataset is read.

    Raises LenetError if names, types, shapes or attributes changed, or a checksum was dropped.
    """
    path, names = str(file.path), file.names(_MOST + 1)
    has_root = _has_checksum(file, ".")
    summed = [name for name in names if _has_checksum(file, name)]
    if not has_root and not summed:
        return Sums(path, {}, tuple(names), has_root=False)
    if len(names) > _MOST:
        found = "more: the file is damaged or was changed"
        raise unexpected(path, f"at most {_MOST} datasets in a file with checksums", found)
    items = {name: _numbers(file, name) for name in summed}
    if has_root:
        expected, found = hdf5.text_of(file, ATTRIBUTE, path), _sum_of_facts(file, items, path)
        compare(f"{path}: expected names and attributes", expected, found)
    sums = {name: hdf5.text_of(item, ATTRIBUTE, path) for name, item in items.items()}
    return Sums(path, sums, tuple(name for name in names if name not in sums), has_root)


def blocks(item: hdf5.Stored, sums: Sums) -> Blocks | None:
    """Return a dataset's block checksums; without them, compare it whole and return None."""
    if item.name not in sums:
        return None
    name = item.name + OF_BLOCKS
    if name not in sums:
        _require_whole(item, sums, None)
        return None
    rows = item.chunks[0] if item.chunks and item.chunks[1:] == item.shape[1:] else 0
    shape = (-(-item.shape[0] // max(1, rows)), _BYTES)
    if not rows:
        raise item.refuse(f"chunks {item.chunks}, beside a checksum, where none holds whole rows")
    expected = f"bytes of shape {shape}, the sums of /{item.name}"
    table = hdf5.read_array(item.file, name, expected, shape.__eq__, "u")
    sums.require(name, table)
    return Blocks(item, rows, table)


def verify(path: Path) -> Sums:
    """Compare an HDF5 file with its checksums and return these; raise LenetError if damaged."""
    with hdf5.open_hdf5(path) as file:
        sums = stated(file)
        for name in sums.stated:
            item = _numbers(file, name)
            parts = blocks(item, sums) if name + OF_BLOCKS in sums else None
            _require_whole(item, sums, parts)
    return sums


def _require_whole(item: hdf5.Stored, sums: Sums, parts: Blocks | None) -> None:
    hdf5.require_written(item)
    checksum = Sum(item.dtype, item.shape)
    row = max(1, item.bytes // item.shape[0])
    for lo, hi in spans(range(item.shape[0]), item.whole_chunks(_AT_ONCE // row)):
        rows = hdf5.read_rows(item, lo, hi)
        checksum.add(rows)
        if parts is not None:
            for at in range(0, len(rows), parts.rows):
                parts.require(lo + at, rows[at : at + parts.rows])
    sums.compare(item.name, checksum.hex())


def _numbers(file: hdf5.Untrusted, name: str) -> hdf5.Stored:
    return hdf5.find(file, name, "a dataset of numbers", lambda n: bool(n) and 0 not in n, "fiu")


def _has_checksum(file: hdf5.Untrusted, name: str) -> bool:
    """Return True if the root group (".") or the target of a hard link has a checksum."""
    link = name.encode("utf-8", "surrogateescape")
    hard = name == "." or file.id.links.get_info(link).type == hdf5.h5py.h5l.TYPE_HARD
    return bool(hard and hdf5.h5py.h5a.exists(file.id, ATTRIBUTE.encode(), obj_name=link))
