"""safetensors files: an eight-byte length, a JSON header, then the tensors back to back.

Read and written here without a library: the format is small, and headers are untrusted.
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.models import forms, layouts
from lenetgpu.files.models.forms import MOST_HEADER, SAFETENSORS, Model, damaged

_LENGTH = 8
_METADATA = "__metadata__"
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_FRAMEWORK = {"format": "pt"}  # metadata entry that marks PyTorch's layout


def read(path: Path, data: bytes) -> Model:
    """Read the weights from a file's bytes; raise LenetError if damaged or of another network."""
    header, body = _header(path, data)
    entries = header.pop(_METADATA, {})
    if not isinstance(entries, dict) or not all(isinstance(v, str) for v in entries.values()):
        raise damaged(path, SAFETENSORS, f"{_METADATA} that is not text by name")
    spans = sorted((*_span(path, name, entry), name) for name, entry in header.items())
    at = 0
    for start, end, name in [*spans, (len(body), len(body), "the end")]:
        if start != at or end < start:
            where = f"{name} at bytes {start:,} to {end:,} where {at:,} comes next"
            raise damaged(path, SAFETENSORS, where)
        at = end
    matching, stored = layouts.Matching(path), {}
    for start, end, name in spans:
        matching.require(name, tuple(header[name]["shape"]))
        stored[name] = _tensor(path, name, header[name], body[start:end])
        matching.add(name, stored[name])
    sums = forms.compared(path, stored, entries)
    return Model(matching.done(), sums, *forms.facts_of(entries, _FRAMEWORK))


def _header(path: Path, data: bytes) -> tuple[dict[str, Any], memoryview]:
    length, most = int.from_bytes(data[:_LENGTH], "little"), min(len(data) - _LENGTH, MOST_HEADER)
    if length > most:
        raise unexpected(path, f"a header of at most {max(0, most):,} bytes", f"one of {length:,}")
    try:
        pairs = json.loads(data[_LENGTH : _LENGTH + length].decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise damaged(path, SAFETENSORS, error) from error
    if not isinstance(pairs, dict):
        raise damaged(path, SAFETENSORS, "a header that is no object")
    return pairs, memoryview(data)[_LENGTH + length :]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name that is there twice")
    return entries


def _span(path: Path, name: str, entry: Any) -> tuple[int, int]:
    if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
        raise damaged(path, SAFETENSORS, f"{name} without one dtype, shape and data_offsets each")
    offsets, shape = entry["data_offsets"], entry["shape"]
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or any(type(n) is not int or n < 0 for n in numbers):
            raise damaged(path, SAFETENSORS, f"{name} with no list of numbers from 0 on")
    if len(offsets) != 2:
        raise damaged(path, SAFETENSORS, f"{name} with {len(offsets)} data_offsets")
    return offsets[0], offsets[1]


def _tensor(path: Path, name: str, entry: dict[str, Any], raw: memoryview) -> Array:
    kind, shape = entry["dtype"], tuple(entry["shape"])
    if not isinstance(kind, str) or kind not in _TYPES:
        raise LenetError(f"{path}: expected {name} to be of type {', '.join(_TYPES)}, found {kind}")
    stored = np.dtype(_TYPES[kind])
    if len(raw) != prod(shape) * stored.itemsize:
        where = f"{name} of {layouts.by(shape)} {kind} in {len(raw):,} bytes"
        raise damaged(path, SAFETENSORS, where)
    array = np.frombuffer(raw, stored).reshape(shape)
    # BF16: the upper halves of float32
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else array


def written(path: Path, tensors: Mapping[str, Array], facts: Mapping[str, object]) -> bytes:
    """Return a file of float32 tensors in PyTorch's layout, with checksums."""
    stored = layouts.to_torch(tensors)
    header: dict[str, Any] = {_METADATA: forms.stated(stored, {**facts, **_FRAMEWORK})}
    at = 0
    for name, tensor in stored.items():
        span = [at, at + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": span}
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    bodies = [tensor.astype("<f4").tobytes() for tensor in stored.values()]
    return b"".join([len(text).to_bytes(_LENGTH, "little"), text, *bodies])
