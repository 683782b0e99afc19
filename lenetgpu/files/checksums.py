"""SHA-256 of what an HDF5 file holds, kept in its attributes: written here, compared here.

A data set's attribute `sha256` is over a line with its type and shape ("<f4 5x5x1x32\\n"), then its
elements, little-endian, in C order. The root group's is over the names, types and shapes of all
data sets and every attribute of the file but itself, so that what is renamed, dropped, reshaped or
described otherwise is noticed. Images that are read by parts have a second data set beside them
(`/x_sha256`): such a sum of each block of rows, a chunk each. Every data set in chunks has HDF5's
own Fletcher checksum too. Sums keep out accidents, and nobody who writes new ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5
from lenetgpu.files.hdf5.guard import MAX_TEXT_BYTES

if TYPE_CHECKING:
    import h5py
    import numpy as np

    Array = np.ndarray[Any, Any]

ATTRIBUTE = "sha256"
OF_BLOCKS = "_sha256"
"""What the name of a data set of blocks' sums ends in."""
MOST = 64
"""Data sets that a file with sums may have."""
NONE = "has no checksums: cannot tell damage"
_BYTES, _SHOWN = 32, 12
_MOST_FACTS = 2 << 20
"""Characters of all attributes together, in hex."""
_AT_ONCE = 8 << 20
_NUMBERS = "a data set of numbers"


class Sum:
    """The SHA-256 of an array of this type and shape, given part by part."""

    def __init__(self, dtype: np.dtype[Any], shape: Iterable[int]) -> None:
        self._stored = dtype.newbyteorder("<")
        self._found = hashlib.sha256(f"{described(dtype, shape)}\n".encode())

    def add(self, part: Array) -> None:
        """The next elements, in C order."""
        import numpy as np

        self._found.update(np.ascontiguousarray(part, self._stored).data.cast("B"))

    def hex(self) -> str:
        """64 hexadecimal digits."""
        return self._found.hexdigest()


def described(dtype: np.dtype[Any], shape: Iterable[int]) -> str:
    """Type and shape as a sum has them: "<f4 5x5x1x32"."""
    return f"{dtype.newbyteorder('<').str} {'x'.join(map(str, shape))}"


def sum_of(array: Array) -> str:
    """The SHA-256 of an array, its type and shape, as hex."""
    whole = Sum(array.dtype, array.shape)
    whole.add(array)
    return whole.hex()


@dataclass(frozen=True)
class Sums:
    """What a file says of its data sets: SHA-256 as hex by name; of none, where it has no sums.

    `where` and `noun` are what messages call one.
    """

    path: str
    stated: Mapping[str, str]
    where: str = "dataset /"
    noun: str = "data set"

    def __bool__(self) -> bool:
        return bool(self.stated)

    def require(self, name: str, array: Array) -> None:
        """LenetError where data set `name`, read whole as `array`, is not what was written."""
        if self:
            self.compare(name, sum_of(array))

    def compare(self, name: str, found: str) -> None:
        """LenetError where `found` is not data set `name`'s sum."""
        compare(f"{self.path}: expected {self.where}{name}", self.stated[name], found)

    @property
    def said(self) -> str:
        """What is told of a file all of whose data sets were compared."""
        count = sum(not name.endswith(OF_BLOCKS) for name in self.stated)
        return f"checksums right ({count} {self.noun}{'s' * (count > 1)})" if self else NONE


def compare(what: str, expected: str, found: str) -> None:
    """LenetError where a sum is not as expected; `what` is who should have it, as a beginning."""
    if found != expected:
        raise LenetError(
            f"{what} to have the SHA-256 {expected[:_SHOWN]}, "
            f"found {found[:_SHOWN]}: the file is damaged, or was changed since"
        )


class Blocks:
    """Sums of a data set's blocks of rows, to compare them in any order, by any thread."""

    def __init__(self, item: hdf5.Stored, rows: int, table: Array) -> None:
        self._what = f"{item.path}: expected {item.where}"
        self._count, self._rows, self._table = item.shape[0], rows, table

    def require(self, first: int, block: Array) -> None:
        """LenetError where rows `first` on are not as written; `block` may go past the last."""
        rows = block[: self._count - first]
        expected = self._table[first // self._rows].tobytes().hex()
        what = f"{self._what}, rows {first:,} to {first + len(rows) - 1:,},"
        compare(what, expected, sum_of(rows))

    def require_all(self, first: int, rows: Array) -> None:
        """`require` of every block in `rows`, which begin with one."""
        for at in range(0, len(rows), self._rows):
            self.require(first + at, rows[at : at + self._rows])


def stated(file: hdf5.Untrusted) -> Sums:
    """The sums of an open file, whose names, types, shapes and attributes were compared.

    Nothing of its data has been read. LenetError where some data sets have a sum and others none,
    or the file is not as it was written.
    """
    whole, path = _stated(file), str(file.path)
    names = file.names(MOST + 1)
    having = [name for name in names if _has_sum(file, name)]
    if whole is None and not having:
        return Sums(path, {})
    if whole is None or len(names) > MOST or having != names:
        bare = ["the root group"] * (whole is None)
        bare += [f"/{name}" for name in names if name not in having]
        raise LenetError(
            f"{path}: expected attribute {ATTRIBUTE} of the root group and of its data sets, "
            f"{MOST} at most, found none of {', '.join(bare[:8])}: the file is damaged, or was "
            "changed since"
        )
    items = {name: hdf5.find(file, name, _NUMBERS, _is_some, "fiu") for name in names}
    compare(f"{path}: expected names and attributes", whole, _sum_of_facts(file, items, path))
    return Sums(path, {name: str(_stated(item)) for name, item in items.items()})


def blocks(item: hdf5.Stored, sums: Sums) -> Blocks | None:
    """The sums of the blocks of a data set that is read by parts; None where the file has none."""
    if not sums:
        return None
    rows = item.chunks[0] if item.chunks and item.chunks[1:] == item.shape[1:] else 0
    shape = (-(-item.shape[0] // max(1, rows)), _BYTES)
    if not rows:
        raise item.refuse(f"chunks {item.chunks}, beside a checksum, where none holds whole rows")
    name, expected = item.name + OF_BLOCKS, f"bytes of shape {shape}, the sums of /{item.name}"
    table = hdf5.read_array(item.file, name, expected, shape.__eq__, "u")
    sums.require(name, table)
    return Blocks(item, rows, table)


def verify(path: Path) -> Sums:
    """Read all of an HDF5 file and compare it with its sums, which are returned.

    LenetError where it is damaged. Of a file without sums nothing is read.
    """
    with hdf5.open_hdf5(path) as file:
        sums = stated(file)
        for name in sums.stated:
            item = hdf5.find(file, name, _NUMBERS, _is_some, "fiu")
            hdf5.require_written(item)
            parts = blocks(item, sums) if name + OF_BLOCKS in sums.stated else None
            found = Sum(item.dtype, item.shape)
            for lo, hi in _spans(item):
                rows = hdf5.read_rows(item, lo, hi)
                found.add(rows)
                if parts is not None:
                    parts.require_all(lo, rows)
            sums.compare(name, found.hex())
    return sums


def _spans(item: hdf5.Stored) -> Iterator[tuple[int, int]]:
    """Rows in parts of some megabytes, in whole chunks."""
    rows = item.chunks[0] if item.chunks else 1
    row = max(1, item.bytes // max(1, item.shape[0]))
    step = max(1, _AT_ONCE // (rows * row)) * rows
    for lo in range(0, item.shape[0], step):
        yield lo, min(lo + step, item.shape[0])


def _is_some(shape: tuple[int, ...]) -> bool:
    """Whether there is a number in it, in rows."""
    return bool(shape) and 0 not in shape


def _has_sum(file: hdf5.Untrusted, name: str) -> bool:
    """Whether what a hard link of the root group leads to has a sum; no other link has."""
    import h5py

    link = name.encode()
    hard = file.id.links.get_info(link).type == h5py.h5l.TYPE_HARD
    return bool(hard and h5py.h5a.exists(file.id, ATTRIBUTE.encode(), obj_name=link))


def _stated(holder: hdf5.Untrusted | hdf5.Stored) -> str | None:
    found = hdf5.attribute(holder, ATTRIBUTE)
    return None if found is None else str(found)


def _facts(holder: Any, where: str, most: int, path: str) -> list[tuple[str, str, str]]:
    """(object, attribute, value) of all attributes but the root group's sum.

    LenetError where their values are longer than `most` together.
    """
    found: list[tuple[str, str, str]] = []
    for name in hdf5.attribute_names(holder):
        if where or name != ATTRIBUTE:
            found.append((where, name, _value(holder.id, name, path)))
            most -= len(found[-1][2])
        if most < 0:
            raise LenetError(
                f"{path}: expected attributes of at most {_MOST_FACTS // 2:,} bytes beside "
                "checksums, found more"
            )
    return found


def _value(holder: Any, name: str, path: str) -> str:
    """An attribute's type, shape and bytes as they lie in the file."""
    import h5py
    import numpy as np

    opened = h5py.h5a.open(holder, name.encode())
    kind, space = opened.get_type(), opened.get_space()
    code, items = kind.get_class(), space.get_simple_extent_npoints()
    plain = code in (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM)
    fixed = code == h5py.h5t.STRING and not kind.is_variable_str()
    if not (plain or fixed) or not 0 < items * kind.get_size() <= MAX_TEXT_BYTES:
        raise LenetError(
            f"{path}: expected attribute {name} to be numbers or text of fixed length beside a "
            f"checksum, found another type, or more than {MAX_TEXT_BYTES:,} bytes: the file was "
            "changed since it got its checksums"
        )
    raw = np.zeros(space.get_simple_extent_dims(), f"V{kind.get_size()}")
    opened.read(raw, mtype=kind)
    return f"{described(kind.dtype, raw.shape)} {raw.tobytes().hex()}"


def _sum_of_facts(file: Any, items: Mapping[str, Any], path: str) -> str:
    """Of an open file and its data sets, being read or being written."""
    facts = _facts(file, "", _MOST_FACTS, path)
    for name, item in items.items():
        left = _MOST_FACTS - sum(len(value) for _, _, value in facts)
        facts.append((name, "", described(item.dtype, item.shape)))
        facts += _facts(item, name, left, path)
    return hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()


class Rows:
    """A new data set of `file`, written from its first row to its last, `rows` at a time.

    With `by_blocks` the sums of its blocks come beside it. `options` are h5py's of a data set.
    """

    def __init__(
        self,
        file: h5py.File,
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
        """The next `rows` rows, or the last ones, which may be fewer; the last part ends it."""
        import numpy as np

        self._item[self._done : self._done + len(part)] = part
        self._sum.add(part)
        if self._by_blocks:
            self._of_blocks += bytes.fromhex(sum_of(part.astype(self._item.dtype, copy=False)))
        self._done += len(part)
        if self._done == len(self._item):
            state(self._item, self._sum.hex())
            if self._by_blocks:
                table = np.frombuffer(self._of_blocks, np.uint8).reshape(-1, _BYTES)
                write(self._file, self._name + OF_BLOCKS, table)


def write(file: h5py.File, name: str, array: Array, **options: Any) -> None:
    """A new data set of one chunk, with its sum; `options` are h5py's of a data set."""
    Rows(file, name, array.shape, array.dtype, len(array), **options).add(array)


def state(owner: h5py.File | h5py.Dataset, digits: str) -> None:
    """Write a sum, 64 hexadecimal digits, into an attribute of what it is of."""
    import numpy as np

    owner.attrs[ATTRIBUTE] = np.bytes_(digits)


def describe(owner: h5py.File | h5py.Dataset, found: Mapping[str, Any]) -> None:
    """Write attributes such that they can be summed, text in a fixed length; sums are left out."""
    for name, value in found.items():
        if name == ATTRIBUTE:
            continue
        if isinstance(value, (str, bytes)):
            hdf5.set_text(owner, name, value if isinstance(value, str) else value.decode())
        else:
            owner.attrs[name] = value


def seal(file: h5py.File) -> None:
    """The sum over names, types, shapes and attributes, when everything is written."""
    state(file, _sum_of_facts(file, {name: file[name] for name in file}, "a new file"))
