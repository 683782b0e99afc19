"""The sums that a file states: which data sets have one, and whether they are right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5
from lenetgpu.files.checksums.facts import sum_of_facts
from lenetgpu.files.checksums.sums import (
    ATTRIBUTE,
    BEFORE,
    BYTES,
    OF_BLOCKS,
    Blocks,
    Sum,
    Sums,
    compare,
)

MOST = 64
"""Data sets that a file with sums may have."""
_AT_ONCE = 8 << 20
_NUMBERS = "a data set of numbers"
_DIGITS = re.compile(r"[0-9a-f]{64}")


def stated(file: hdf5.Untrusted) -> Sums:
    """The sums of an open file, whose names, types, shapes and attributes were compared.

    Nothing of its data has been read. LenetError where the file is not as it was written: what a
    root group's sum knows cannot lose its own. What came beside it has none.
    """
    path, names = str(file.path), file.names(MOST + 1)
    called = _called(file, names)
    if called is None:
        return Sums(path, {}, tuple(names), whole=False)
    if len(names) > MOST:
        raise LenetError(
            f"{path}: expected at most {MOST} data sets beside checksums, found more: the file is "
            "damaged, or was changed since"
        )
    items = _having(file, names, called)
    whole = _sum_said(file, called)
    if whole is not None:
        what = f"{path}: expected names and attributes"
        compare(what, whole, sum_of_facts(file, items, path, called))
    sums = {name: str(_sum_said(item, called)) for name, item in items.items()}
    return Sums(path, sums, tuple(name for name in names if name not in sums), whole is not None)


def is_ours(name: str, value: object) -> bool:
    """Whether an attribute of that name and value is a sum."""
    return name == ATTRIBUTE or (name == BEFORE and _is_digits(value))


def blocks(item: hdf5.Stored, sums: Sums) -> Blocks | None:
    """The sums of the blocks of a data set that is read by parts; None where the file has none.

    Where it has a sum and its blocks have none, all of it is read now and compared.
    """
    if item.name not in sums:
        return None
    name = item.name + OF_BLOCKS
    if name not in sums:
        _require_whole(item, sums, None)
        return None
    rows = item.chunks[0] if item.chunks and item.chunks[1:] == item.shape[1:] else 0
    shape = (-(-item.shape[0] // max(1, rows)), BYTES)
    if not rows:
        raise item.refuse(f"chunks {item.chunks}, beside a checksum, where none holds whole rows")
    expected = f"bytes of shape {shape}, the sums of /{item.name}"
    table = hdf5.read_array(item.file, name, expected, shape.__eq__, "u")
    sums.require(name, table)
    return Blocks(item, rows, table)


def verify(path: Path) -> Sums:
    """Read all of an HDF5 file that has sums and compare it with them, which are returned.

    LenetError where it is damaged. What has no sum is not read.
    """
    with hdf5.open_hdf5(path) as file:
        sums = stated(file)
        for name in sums.stated:
            item = hdf5.find(file, name, _NUMBERS, _is_some, "fiu")
            parts = blocks(item, sums) if name + OF_BLOCKS in sums else None
            _require_whole(item, sums, parts)
    return sums


def _require_whole(item: hdf5.Stored, sums: Sums, parts: Blocks | None) -> None:
    """LenetError where a data set, or a block of it, is not as its sum says."""
    hdf5.require_written(item)
    found = Sum(item.dtype, item.shape)
    for lo, hi in _spans(item):
        rows = hdf5.read_rows(item, lo, hi)
        found.add(rows)
        if parts is not None:
            parts.require_all(lo, rows)
    sums.compare(item.name, found.hex())


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


def _called(file: hdf5.Untrusted, names: list[str]) -> str | None:
    """What the attributes are called that hold the file's sums; None where it has none.

    The name that others use too counts where all of it looks as this package wrote it: a sum's
    digits at the root group and at every data set, or such that the root group's is right.
    """
    if file.holds_attribute(ATTRIBUTE) or any(_has(file, name, ATTRIBUTE) for name in names):
        return ATTRIBUTE
    if len(names) > MOST or not file.holds_attribute(BEFORE):
        return None
    try:
        whole, items = _sum_said(file, BEFORE), _having(file, names, BEFORE)
        sums = [whole, *(_sum_said(item, BEFORE) for item in items.values())]
        if not items or not all(map(_is_digits, sums)):
            return None
        if len(items) == len(names):
            return BEFORE
        right = sum_of_facts(file, items, str(file.path), BEFORE) == whole
    except LenetError:
        return None  # another's, of another type
    return BEFORE if right else None


def _having(file: hdf5.Untrusted, names: list[str], called: str) -> Mapping[str, hdf5.Stored]:
    """The data sets that have a sum, looked at."""
    having = [name for name in names if _has(file, name, called)]
    return {name: hdf5.find(file, name, _NUMBERS, _is_some, "fiu") for name in having}


def _has(file: hdf5.Untrusted, name: str, called: str) -> bool:
    """Whether what a hard link of the root group leads to has a sum; no other link has."""
    import h5py

    link = name.encode("utf-8", "surrogateescape")
    hard = file.id.links.get_info(link).type == h5py.h5l.TYPE_HARD
    return bool(hard and h5py.h5a.exists(file.id, called.encode(), obj_name=link))


def _sum_said(holder: hdf5.Untrusted | hdf5.Stored, called: str) -> str | None:
    found = hdf5.attribute(holder, called)
    return None if found is None else str(found)


def _is_digits(text: object) -> bool:
    return isinstance(text, str) and _DIGITS.fullmatch(text) is not None
