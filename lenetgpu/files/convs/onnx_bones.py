"""An ONNX model without its weights: what of its bytes says which nodes there are.

Files may be larger than memory, and are nobody's friend: a field that is not asked for is stepped
over unread, of a tensor only the first bytes are kept, and what is kept is counted before protobuf
sees it. An empty message takes two bytes of a file and some hundred of memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from lenetgpu.errors import LenetError
from lenetgpu.files.models.loaded import damaged

MOST_FIELDS = 400_000
MOST_KEPT = 16 << 20
"""Bytes of names, attributes and small constants."""
MOST_OPEN = 1 << 18
"""Bytes of messages that are kept without a look at what they hold: types, versions."""
SMALL = 1 << 12
"""Bytes of a tensor's numbers that are kept: shapes, not weights."""
_DEEPEST = 12
_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
_SIZES = {_LONG: 8, _SHORT: 4}
_MODEL, _GRAPH, _NODE, _TENSOR, _ATTRIBUTE = "model", "graph", "node", "tensor", "attribute"
_VALUE, _FUNCTION, _PLAIN, _OPEN = "value", "function", "", "open"
_KEPT: dict[str, dict[int, str]] = {
    _MODEL: {7: _GRAPH, 8: _OPEN, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR, 11: _VALUE, 12: _VALUE},
    _NODE: {1: _PLAIN, 2: _PLAIN, 3: _PLAIN, 4: _PLAIN, 5: _ATTRIBUTE, 7: _PLAIN},
    _ATTRIBUTE: {
        1: _PLAIN, 2: _PLAIN, 3: _PLAIN, 4: _PLAIN, 5: _TENSOR, 6: _GRAPH, 7: _PLAIN, 8: _PLAIN,
        11: _GRAPH, 20: _PLAIN,
    },
    _TENSOR: dict.fromkeys((1, 2, 4, 5, 7, 8, 9, 10, 14), _PLAIN),
    _VALUE: {1: _PLAIN, 2: _OPEN},
    _FUNCTION: {1: _PLAIN, 7: _NODE, 10: _PLAIN},
}  # fmt: skip
"""Fields that are kept, by message, and the messages that they hold."""
_NUMBERS = (4, 5, 7, 9, 10)
"""A tensor's fields of numbers."""


class Bones:
    """A file's fields that are kept, gone through once from its beginning."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._size = path, file, size
        self._left = {"fields": MOST_FIELDS, "kept": MOST_KEPT, "open": MOST_OPEN}

    def read(self) -> bytes:
        """The model with what is kept; LenetError where it is damaged or of too many parts."""
        return self._message(_MODEL, self._size, 0)

    def _message(self, message: str, end: int, depth: int) -> bytes:
        """The message from where the file is to `end`."""
        if depth > _DEEPEST:
            raise self._damaged("graphs within graphs without end")
        made = bytearray()
        while (start := self._file.tell()) < end:
            self._count("fields", 1)
            key = self._varint(end)
            number, kind = key >> 3, key & 7
            if kind == _VARINT:
                self._varint(end)
                length, body = 0, self._file.tell()
            elif kind == _BYTES:
                length = self._varint(end)
                body = self._file.tell()
            elif kind in _SIZES:
                length, body = _SIZES[kind], self._file.tell()
            else:
                raise self._damaged(f"a field of kind {kind} at byte {start:,}")
            if body + length > end:
                raise self._damaged(f"a {message} that ends at byte {body + length:,} of {end:,}")
            within = _KEPT[message].get(number)
            if within is None or (message == _TENSOR and number in _NUMBERS and length > SMALL):
                self._file.seek(body + length)
            elif kind == _BYTES and within == _OPEN:
                self._count("open", length)
                made += self._copied(start, body + length)
            elif kind == _BYTES and within:
                inner = self._message(within, body + length, depth + 1)
                made += _encoded(key) + _encoded(len(inner)) + inner
            else:
                made += self._copied(start, body + length)
        return bytes(made)

    def _copied(self, start: int, end: int) -> bytes:
        self._count("kept", end - start)
        self._file.seek(start)
        found = self._file.read(end - start)
        if len(found) < end - start:
            raise self._damaged(f"an end at byte {start + len(found):,}")
        return found

    def _varint(self, end: int) -> int:
        """A number of seven bits a byte."""
        found = shift = 0
        while shift < 70 and self._file.tell() < end:
            byte = self._file.read(1)
            if not byte:
                break
            found |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                return found
        raise self._damaged(f"a number without an end at byte {self._file.tell():,}")

    def _damaged(self, why: str) -> LenetError:
        return damaged(self._path, "ONNX", why)

    def _count(self, what: str, more: int) -> None:
        """LenetError where that is more than a model may have."""
        self._left[what] -= more
        if self._left[what] < 0:
            raise LenetError(
                f"{self._path}: expected a model of at most {MOST_FIELDS:,} fields, "
                f"{MOST_KEPT:,} bytes beside its weights and {MOST_OPEN:,} of types, found more"
            )


def _encoded(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*made, number))
