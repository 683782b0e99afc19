"""Headers of B-trees and heaps that HDF5 believes before it looks whether they can be true.

A B-tree's header (of its second version) gives a node up to 4 GiB, and HDF5 makes one, filled with
zeros, when it meets the header; some heaps of links or attributes end it by a signal, and filters
on them make it look for plugins. So all headers are looked at first.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from lenetgpu.errors import LenetError

_TREE = struct.Struct("<4sBBIHH")
_HEAP = struct.Struct("<4sBHHB100xHQQHHQH")
_TYPES = 12
_DEEPEST = 64
_MOST_HEAP_BYTES = 1 << 24
_ENDS = 8 << 20
_STEP = 1 << 20


def require_trees(path: Path, file: BinaryIO) -> None:
    """LenetError where a header in the file is not of a B-tree or heap that the file can hold.

    Of a file of more than 16 MiB only both ends are looked at, 8 MiB each.
    """
    size = os.fstat(file.fileno()).st_size
    spans = [(0, size)] if size <= 2 * _ENDS else [(0, _ENDS), (size - _ENDS, size)]
    for lo, hi in spans:
        for at in range(lo, hi, _STEP):
            file.seek(at)
            data = file.read(_STEP + _HEAP.size - 1)
            for found in (_wrong_tree(data, size), _wrong_heap(data)):
                if found:
                    raise LenetError(
                        f"{path}: expected B-trees and heaps that {size:,} bytes can hold, "
                        f"found {found}"
                    )


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


def _power(number: int) -> bool:
    """Whether it is a power of two."""
    return number > 0 and number & (number - 1) == 0
