"""safetensors: eight bytes of length, a header of JSON, then the tensors one behind the other.

Written and read here, without a library: the form is small, and headers come from anybody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.models import layouts, metadata
from lenetgpu.files.models.loaded import MOST_HEADER, Model, damaged, from_bfloat16

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FORM = "safetensors"
_LENGTH = 8
_METADATA = "__metadata__"
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_FRAMEWORK = {"format": "pt"}
"""What the entry of that name says in files that PyTorch's users exchange."""


def read(path: Path, data: bytes) -> Model:
    """The weights of a file's bytes; LenetError where it is damaged or another network's."""
    header = _header(path, data)
    entries = _metadata(path, header.pop(_METADATA, {}))
    spans = sorted((_span(path, name, entry), name) for name, entry in header.items())
    body = memoryview(data)[_LENGTH + int.from_bytes(data[:_LENGTH], "little") :]
    _require_tiled(path, spans, len(body))
    matching, stored = layouts.Matching(path), {}
    for (start, end), name in spans:
        matching.place(name, tuple(header[name]["shape"]))
        stored[name] = _tensor(path, name, header[name], body[start:end])
        matching.add(name, stored[name])
    sums = metadata.compared(path, stored, entries)
    return Model(matching.done(), sums, *metadata.facts_of(entries, _FRAMEWORK))


def _header(path: Path, data: bytes) -> dict[str, Any]:
    length, held = int.from_bytes(data[:_LENGTH], "little"), len(data) - _LENGTH
    if length > min(held, MOST_HEADER):
        raise LenetError(
            f"{path}: expected a header of at most {max(0, min(held, MOST_HEADER)):,} bytes, "
            f"found one of {length:,}"
        )
    try:
        found = json.loads(data[_LENGTH : _LENGTH + length].decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise damaged(path, FORM, error) from error
    if not isinstance(found, dict):
        raise damaged(path, FORM, "a header that is no object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name that is there twice")
    return found


def _metadata(path: Path, found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise damaged(path, FORM, f"{_METADATA} that is not text by name")
    return found


def _span(path: Path, name: str, entry: Any) -> tuple[int, int]:
    """Where a tensor's bytes begin and end; LenetError where its entry is not as it must be."""
    if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
        raise damaged(path, FORM, f"{name} without one dtype, shape and data_offsets each")
    for key in ("shape", "data_offsets"):
        if not isinstance(entry[key], list) or not all(
            type(number) is int and number >= 0 for number in entry[key]
        ):
            raise damaged(path, FORM, f"{name} with {key} that are no list of numbers from 0 on")
    if len(entry["data_offsets"]) != 2:
        raise damaged(path, FORM, f"{name} with {len(entry['data_offsets'])} data_offsets")
    start, end = entry["data_offsets"]
    return start, end


def _require_tiled(path: Path, spans: list[tuple[tuple[int, int], str]], size: int) -> None:
    """LenetError unless the tensors follow on each other, from the first byte to the last."""
    at = 0
    for (start, end), name in spans:
        if start != at or end < start:
            raise damaged(
                path, FORM, f"{name} at bytes {start:,} to {end:,} where {at:,} comes next"
            )
        at = end
    if at != size:
        raise damaged(path, FORM, f"{size:,} bytes of tensors, of which {at:,} are described")


def _tensor(path: Path, name: str, entry: dict[str, Any], raw: memoryview) -> Array:
    import numpy as np

    kind, shape = entry["dtype"], tuple(entry["shape"])
    if not isinstance(kind, str) or kind not in _TYPES:
        raise LenetError(f"{path}: expected {name} to be of type {', '.join(_TYPES)}, found {kind}")
    stored = np.dtype(_TYPES[kind])
    if len(raw) != prod(shape) * stored.itemsize:
        raise damaged(path, FORM, f"{name} of {layouts.by(shape)} {kind} in {len(raw):,} bytes")
    found = np.frombuffer(raw, stored).reshape(shape)
    return from_bfloat16(found) if kind == "BF16" else found


def written(tensors: Mapping[str, Array], facts: Mapping[str, object]) -> bytes:
    """A file of float32 tensors in PyTorch's layout, with checksums; the same bytes every time."""
    stored = layouts.to_torch(tensors)
    header: dict[str, Any] = {_METADATA: metadata.stated(stored, {**facts, **_FRAMEWORK})}
    at = 0
    for name, tensor in stored.items():
        span = [at, at + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": span}
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    bodies = [tensor.astype("<f4").tobytes() for tensor in stored.values()]
    return b"".join([len(text).to_bytes(_LENGTH, "little"), text, *bodies])
