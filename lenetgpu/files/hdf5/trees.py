"""Headers of B-trees and heaps that HDF5 believes before it looks whether they can be true.

Addresses and lengths are of eight bytes, as HDF5 writes them unless told otherwise.

A B-tree's header (of its second version) gives a node up to 4 GiB, and HDF5 makes one, filled with
zeros, when it meets the header; some heaps of links or attributes end it by a signal, and filters
on them make it look for plugins. A heap of names whose list of free places leads back into itself
holds it for ever. So all headers are looked at first.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from lenetgpu.errors import LenetError

_TREE = struct.Struct("<4sBBIHH")
_HEAP = struct.Struct("<4sBHHB100xHQQHHQH")
_NAMES = struct.Struct("<4sB3xQQQ")
_FREE = struct.Struct("<QQ")
_LAST_FREE, _MOST_FREE = 1, 4_096
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_WIDTHS = (2, 4, 8, 16, 32)
_VIRTUAL = b"\x04\x03"
_TYPES = 12
_DEEPEST = 64
_MOST_HEAP_BYTES = 1 << 24
_ENDS = 32 << 20
_STEP = 1 << 20


def require_trees(path: Path, file: BinaryIO) -> None:
    """LenetError where a header in the file is not of a B-tree or heap that the file can hold.

    Of a file of more than 64 MiB only both ends are looked at, 32 MiB each.
    """
    size = os.fstat(file.fileno()).st_size
    base = _begin(path, file, size)
    spans = [(0, size)] if size <= 2 * _ENDS else [(0, _ENDS), (size - _ENDS, size)]
    for lo, hi in spans:
        for at in range(lo, hi, _STEP):
            file.seek(at)
            data = file.read(_STEP + _HEAP.size - 1)
            for found in (
                _wrong_tree(data, size),
                _wrong_heap(data),
                _wrong_names(data, file, base, size),
                _wrong_layout(data, file, base, size),
            ):
                if found:
                    raise LenetError(
                        f"{path}: expected B-trees and heaps that {size:,} bytes can hold, "
                        f"found {found}"
                    )


def _begin(path: Path, file: BinaryIO, size: int) -> int:
    """Where HDF5 finds its signature, from which addresses count; `size` where it finds none.

    LenetError where addresses or lengths are not of eight bytes.
    """
    at = 0
    while at < size:
        file.seek(at)
        head = file.read(64)
        if head.startswith(_SIGNATURE):
            widths = head[9:11] if head[8:9] >= b"\x02" else head[13:15]
            known = all(width in _WIDTHS for width in widths)
            if known and widths != b"\x08\x08":
                found = " and ".join(str(width) for width in widths)
                raise LenetError(
                    f"{path}: expected HDF5 addresses and lengths of 8 bytes, found {found}"
                )
            place = {b"\0": head[48:56], b"\1": head[52:60]}.get(head[8:9], b"")
            if 0 < int.from_bytes(place, "little") < size:
                raise LenetError(
                    f"{path}: expected an HDF5 file of one piece, found one of another driver"
                )
            return at
        at = 2 * at or 512
    return size


def _wrong_tree(data: bytes, size: int) -> str:
    """What a B-tree is said to have that it cannot; "" where there is no such thing."""
    at = data.find(b"BTHD")
    while 0 <= at <= len(data) - _TREE.size:
        _, version, kind, node, _, depth = _TREE.unpack_from(data, at)
        if version == 0 and kind < _TYPES and (node > size or depth > _DEEPEST):
            return f"B-tree nodes of {node:,} bytes in {depth:,} levels"
        at = data.find(b"BTHD", at + 1)
    return ""


def _wrong_heap(data: bytes) -> str:
    """As `_wrong_tree`, of a fractal heap."""
    at = data.find(b"FRHP")
    while 0 <= at <= len(data) - _HEAP.size:
        _, version, _, filters, _, width, first, most, bits, _, _, rows = _HEAP.unpack_from(
            data, at
        )
        sized = all(_power(n) for n in (width, first, most)) and first <= most <= _MOST_HEAP_BYTES
        fine = sized and bits <= 64 and rows <= 64 and first.bit_length() <= bits
        if version == 0 and not (fine and filters == 0):
            said = f"{width:,} blocks of {first:,} to {most:,} bytes in {rows:,} rows"
            return f"a heap of {said}{' with filters' if filters else ''}"
        at = data.find(b"FRHP", at + 1)
    return ""


def _wrong_names(data: bytes, file: BinaryIO, base: int, size: int) -> str:
    """As `_wrong_tree`, of the heap that holds a group's names."""
    at = data.find(b"HEAP")
    while 0 <= at <= len(data) - _NAMES.size:
        _, version, length, free, place = _NAMES.unpack_from(data, at)
        if version == 0 and base + place + length <= size:
            known: set[int] = set()
            while free != _LAST_FREE and free + _FREE.size <= length:
                if free in known or len(known) == _MOST_FREE:
                    return f"a list of free places without an end within {len(known) + 1:,}"
                known.add(free)
                file.seek(base + place + free)
                free, _ = _FREE.unpack(file.read(_FREE.size))
        at = data.find(b"HEAP", at + 1)
    return ""


def _wrong_layout(data: bytes, file: BinaryIO, base: int, size: int) -> str:
    """As `_wrong_tree`, of a data set made of others: HDF5 follows its list as it is opened."""
    at = data.find(_VIRTUAL)
    while 0 <= at <= len(data) - len(_VIRTUAL) - 8:
        place = base + int.from_bytes(data[at + 2 : at + 10], "little")
        if place < size:
            file.seek(place)
            if file.read(4) == b"GCOL":
                return "data stored in other files"
        at = data.find(_VIRTUAL, at + 1)
    return ""


def _power(number: int) -> bool:
    """Whether it is a power of two."""
    return number > 0 and number & (number - 1) == 0
