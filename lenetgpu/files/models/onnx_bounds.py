"""How much an ONNX model's bytes may become in memory, looked at before protobuf parses them.

An empty message takes two bytes of a file and some hundred of memory. Messages that may hold many
others are gone through field by field; of all else the bytes are counted.
"""

from __future__ import annotations

from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files.models.loaded import damaged

MOST_FIELDS = 20_000
MOST_BESIDE = 1 << 19
"""Bytes of descriptions: types of values, metadata, whatever newer versions have."""
_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
_SIZES = {_LONG: 8, _SHORT: 4}
_NODE, _TENSOR, _ATTRIBUTE, _GRAPH = "node", "tensor", "attribute", "graph"
_WITHIN: dict[str, dict[int, str]] = {
    "model": {7: _GRAPH},
    _GRAPH: {1: _NODE, 5: _TENSOR},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH},
    _TENSOR: {},
}
"""Messages gone through, by the numbers of the fields that hold them."""
_NUMBERS = {_TENSOR: (4, 5, 7, 9, 10, 11), _ATTRIBUTE: (7, 8)}
"""Fields of numbers, which need no more memory than a few times their bytes."""


def require_bounded(path: Path, data: bytes) -> None:
    """LenetError where a model has more parts than this network's can have."""
    inside = [("model", 0, len(data))]
    fields = beside = 0
    while inside:
        message, at, end = inside.pop()
        while at < end:
            key, at = _varint(path, data, at, end)
            number, kind = key >> 3, key & 7
            if kind == _VARINT:
                _, at = _varint(path, data, at, end)
            elif kind == _BYTES:
                length, at = _varint(path, data, at, end)
                if number in _WITHIN[message]:
                    inside.append((_WITHIN[message][number], at, at + length))
                elif number not in _NUMBERS.get(message, ()):
                    beside += length
                at += length
            elif kind in _SIZES:
                at += _SIZES[kind]
            else:
                raise damaged(path, "ONNX", f"a field of kind {kind} at byte {at:,}")
            fields += 1
            if at > end or fields > MOST_FIELDS or beside > MOST_BESIDE:
                break
        if at > end:
            raise damaged(path, "ONNX", f"a {message} that ends at byte {at:,} of {end:,}")
        if fields > MOST_FIELDS or beside > MOST_BESIDE:
            raise LenetError(
                f"{path}: expected a model of this network's size, at most {MOST_FIELDS:,} fields "
                f"and {MOST_BESIDE:,} bytes beside its tensors, found more"
            )


def _varint(path: Path, data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    found = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return found, at
    raise damaged(path, "ONNX", f"a number without an end at byte {at:,}")
