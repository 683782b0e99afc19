"""Checks of B-tree and heap headers before the HDF5 library, which trusts them, opens a file.

HDF5 allocates and clears the nodes that a version 2 B-tree header declares, up to 4 GiB. Some heaps
of links or attributes crash it, filters on them make it search for plugins, and a cyclic free list
of names makes it loop forever. Addresses and lengths must be eight bytes wide, HDF5's default.
"""

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
_PART = 1 << 19  # bytes scanned at a time
_MOST_SCANNED, _ENDS = 4 << 30, 32 << 20  # bytes of a file, and of its two ends otherwise
_THREADS = 16


def require_trees(path: Path, file: BinaryIO) -> None:
    """Raise LenetError if a B-tree or heap header in the file exceeds what the file can hold.

    Every byte is scanned, in several threads for large files: HDF5 may take any position for a
    header, also within data. Of a file above 4 GiB only the first and last 32 MiB are scanned.
    """
    from concurrent.futures import ThreadPoolExecutor

    scanned = OpenFile(path, file)
    scan = partial(_first_error, scanned, _base_address(scanned))
    starts = list(range(0, scanned.size, _PART))
    if scanned.size > _MOST_SCANNED:
        few = _ENDS // _PART
        starts = starts[:few] + starts[-few - 1 :]
    with ThreadPoolExecutor(min(_THREADS, core_count())) as pool:
        found = next(filter(None, pool.map(scan, starts)), "")
    if found:
        raise unexpected(path, f"B-trees and heaps that {scanned.size:,} bytes can hold", found)


def _first_error(file: OpenFile, base: int, start: int) -> str:
    """Return the first error of headers in the part from byte `start` on; "" if there is none."""
    part = np.empty(min(_PART + _HEAP.size - 1, file.size - start), np.uint8)
    file.read_into(part.data, start)
    for letter in (b"H", _VIRTUAL[:1]):
        letters = np.flatnonzero(part[:-3] == letter[0])
        for name, (form, error_in) in _HEADERS.items() if letter == b"H" else ():
            for at in _starts(part, letters, name, letter):
                if at + form.size <= len(part):
                    error = error_in(file, base, *form.unpack_from(part.data, at)[1:])
                    if error:
                        return error
    return _layout_error(file, base, part, _starts(part, letters, _VIRTUAL, letter))


def _starts(part: Any, letters: Any, name: bytes, letter: bytes) -> Any:
    """Return the positions where `name` begins, from the ascending positions of `letter`."""
    first = name.index(letter)
    starts = letters[letters >= first] - first
    for offset, byte in enumerate(name):
        starts = starts[part[starts + offset] == byte]
    return starts


def _at(file: OpenFile, offset: int, length: int) -> bytes:
    data = bytearray(length)
    file.read_into(memoryview(data), offset)
    return bytes(data)


def _base_address(file: OpenFile) -> int:
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
                raise unexpected(file.path, "HDF5 addresses and lengths of 8 bytes", found)
            offset = {b"\0": head[48:56], b"\1": head[52:60]}.get(head[8:9], b"")
            if 0 < int.from_bytes(offset, "little") < file.size:
                raise unexpected(file.path, "an HDF5 file of one piece", "one of another driver")
            return at
        at = 2 * at or 512
    return file.size


# The next four return what is impossible in a header or layout; "" if it is possible.
def _tree_error(file: OpenFile, _: int, version: int, kind: int, node: int, *more: int) -> str:
    depth = more[1]
    if version == 0 and kind < _TYPES and (node > file.size or depth > _DEEPEST):
        return f"B-tree nodes of {node:,} bytes in {depth:,} levels"
    return ""


def _heap_error(file: OpenFile, base: int, version: int, *fields: int) -> str:
    _, filters, _, width, first, most, bits, _, _, rows = fields
    powers = all(n.bit_count() == 1 for n in (width, first, most))
    sized = powers and first <= most <= _MOST_HEAP_BYTES
    fine = sized and bits <= 64 and rows <= 64 and first.bit_length() <= bits
    if version == 0 and not (fine and filters == 0):
        blocks = f"{width:,} blocks of {first:,} to {most:,} bytes in {rows:,} rows"
        return f"a heap of {blocks}{' with filters' if filters else ''}"
    return ""


def _names_error(file: OpenFile, base: int, version: int, length: int, free: int, at: int) -> str:
    if version == 0 and base + at + length <= file.size:
        known: set[int] = set()
        while free != _LAST_FREE and free + _FREE.size <= length:
            if free in known or len(known) == _MOST_FREE:
                return f"a free list without an end within {len(known) + 1:,}"
            known.add(free)
            free, _ = _FREE.unpack(_at(file, base + at + free, _FREE.size))
    return ""


def _layout_error(file: OpenFile, base: int, part: Any, starts: Any) -> str:
    first, last = len(_VIRTUAL), len(_VIRTUAL) + 8
    addresses = part[starts[starts <= len(part) - last, None] + range(first, last)]
    for offset in set(addresses.view("<u8").reshape(-1).tolist()):
        if base + offset + 4 <= file.size and _at(file, base + offset, 4) == b"GCOL":
            return "data stored in other files"
    return ""


_HEADERS: dict[bytes, tuple[struct.Struct, Callable[..., str]]] = {
    b"BTHD": (_TREE, _tree_error),
    b"FRHP": (_HEAP, _heap_error),
    b"HEAP": (_NAMES, _names_error),
}
