"""Checks of HDF5's B-tree and heap headers, which the HDF5 library trusts before it validates them.

Addresses and lengths must be eight bytes wide, HDF5's default.

A version 2 B-tree header may declare nodes of up to 4 GiB, and HDF5 allocates and clears one as
soon as it reads the header. Some heaps of links or attributes crash it with a signal, and filters
on them make it search for plugins. A heap of names with a cyclic free list makes it loop forever.
So all headers are checked before HDF5 opens the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from lenetgpu.arrays import np
from lenetgpu.cpu.threads import core_count
from lenetgpu.errors import unexpected
from lenetgpu.files.regular import MAGIC, OpenFile

_TREE = struct.Struct("<4sBBIHH")
_HEAP = struct.Struct("<4sBHHB100xHQQHHQH")
_NAMES = struct.Struct("<4sB3xQQQ")
_FREE = struct.Struct("<QQ")
_LAST_FREE, _MOST_FREE = 1, 4_096
_WIDTHS = (2, 4, 8, 16, 32)
_VIRTUAL = b"\x04\x03"
_TYPES = 12
_DEEPEST = 64
_MOST_HEAP_BYTES = 1 << 24
_PART, _FEW = 1 << 19, 8
_WHOLE, _ENDS = 4 << 30, 32 << 20
_THREADS = 16


def require_trees(path: Path, file: BinaryIO) -> None:
    """Raise LenetError if a B-tree or heap header in the file exceeds what the file can hold.

    Every byte is scanned, in several threads for large files: HDF5 may take any position for a
    header, also within data. Of a file above 4 GiB only the first and last 32 MiB are scanned.
    """
    held = OpenFile(path, file)
    look = partial(_first_wrong, held, _begin(held))
    parts = list(range(0, held.size, _PART))
    if held.size > _WHOLE:
        few = _ENDS // _PART
        parts = parts[:few] + parts[-few - 1 :]
    if len(parts) < _FEW:
        found = next(filter(None, map(look, parts)), "")
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_THREADS, core_count())) as pool:
            found = next(filter(None, pool.map(look, parts)), "")
    if found:
        raise unexpected(path, f"B-trees and heaps that {held.size:,} bytes can hold", f"{found}")


def _first_wrong(file: OpenFile, base: int, start: int) -> str:
    """Return the first error of headers in the part from byte `start` on; "" if there is none."""
    part = np.empty(min(_PART + _HEAP.size - 1, file.size - start), np.uint8)
    file.read_into(part.data, start)
    for letter in (b"H", _VIRTUAL[:1]):
        there = np.flatnonzero(part[:-3] == letter[0])
        for name, (form, wrong) in _HEADERS.items() if letter == b"H" else ():
            for at in _starts(part, there, name, letter):
                if at + form.size <= len(part):
                    found = wrong(file, base, *form.unpack_from(part.data, at)[1:])
                    if found:
                        return found
    return _wrong_layout(file, base, part, _starts(part, there, _VIRTUAL, letter))


def _starts(part: Any, there: Any, name: bytes, letter: bytes) -> Any:
    """Return the positions where `name` begins; `there` are those of `letter`, ascending.

    Names that end within the last two bytes belong to the next part, which overlaps this one.
    """
    first = name.index(letter)
    starts = there[there >= first] - first
    for offset, byte in enumerate(name):
        starts = starts[part[starts + offset] == byte]
    return starts


def _at(file: OpenFile, offset: int, length: int) -> bytes:
    found = bytearray(length)
    file.read_into(memoryview(found), offset)
    return bytes(found)


def _begin(file: OpenFile) -> int:
    """Return the position of HDF5's signature, the base of addresses; the file's size if none.

    Raises LenetError if addresses or lengths are not eight bytes wide.
    """
    at = 0
    while at < file.size:
        head = _at(file, at, min(64, file.size - at))
        if head.startswith(MAGIC):
            widths = head[9:11] if head[8:9] >= b"\x02" else head[13:15]
            if all(width in _WIDTHS for width in widths) and widths != b"\x08\x08":
                found = " and ".join(map(str, widths))
                raise unexpected(file.path, "HDF5 addresses and lengths of 8 bytes", f"{found}")
            offset = {b"\0": head[48:56], b"\1": head[52:60]}.get(head[8:9], b"")
            if 0 < int.from_bytes(offset, "little") < file.size:
                raise unexpected(file.path, "an HDF5 file of one piece", "one of another driver")
            return at
        at = 2 * at or 512
    return file.size


def _wrong_tree(
    file: OpenFile, base: int, version: int, kind: int, node: int, _: int, depth: int
) -> str:
    """Describe an impossible value in a B-tree's header; "" if there is none."""
    if version == 0 and kind < _TYPES and (node > file.size or depth > _DEEPEST):
        return f"B-tree nodes of {node:,} bytes in {depth:,} levels"
    return ""


def _wrong_heap(file: OpenFile, base: int, version: int, *fields: int) -> str:
    """Describe an impossible value in a fractal heap's header; "" if there is none."""
    _, filters, _, width, first, most, bits, _, _, rows = fields
    powers = all(n.bit_count() == 1 for n in (width, first, most))
    sized = powers and first <= most <= _MOST_HEAP_BYTES
    fine = sized and bits <= 64 and rows <= 64 and first.bit_length() <= bits
    if version == 0 and not (fine and filters == 0):
        said = f"{width:,} blocks of {first:,} to {most:,} bytes in {rows:,} rows"
        return f"a heap of {said}{' with filters' if filters else ''}"
    return ""


def _wrong_names(
    file: OpenFile, base: int, version: int, length: int, free: int, offset: int
) -> str:
    """Describe an impossible value in the heap of a group's names; "" if there is none."""
    if version == 0 and base + offset + length <= file.size:
        known: set[int] = set()
        while free != _LAST_FREE and free + _FREE.size <= length:
            if free in known or len(known) == _MOST_FREE:
                return f"a free list without an end within {len(known) + 1:,}"
            known.add(free)
            free, _ = _FREE.unpack(_at(file, base + offset + free, _FREE.size))
    return ""


def _wrong_layout(file: OpenFile, base: int, part: Any, starts: Any) -> str:
    """Describe a virtual dataset, whose list HDF5 follows on opening; "" if there is none."""
    first, last = len(_VIRTUAL), len(_VIRTUAL) + 8
    addresses = part[starts[starts <= len(part) - last, None] + range(first, last)]
    for offset in set(addresses.view("<u8").reshape(-1).tolist()):
        if base + offset + 4 <= file.size and _at(file, base + offset, 4) == b"GCOL":
            return "data stored in other files"
    return ""


_HEADERS: dict[bytes, tuple[struct.Struct, Callable[..., str]]] = {
    b"BTHD": (_TREE, _wrong_tree),
    b"FRHP": (_HEAP, _wrong_heap),
    b"HEAP": (_NAMES, _wrong_names),
}
