"""NumPy's .npz: an array a file of a zip archive, in our layouts or PyTorch's."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.idx import npy_header
from lenetgpu.files.models import archive, layouts, metadata
from lenetgpu.files.models.loaded import Model, damaged

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FORM = ".npz"
ENDING = ".npy"
_MOST_COMMENT = 65_535
"""Bytes that a zip's comment may have."""


def read(path: Path, data: bytes) -> Model:
    """The weights of a file's bytes; LenetError where it is damaged or another network's."""
    files, comment = archive.members(path, data, FORM)
    matching, stored = layouts.Matching(path), {}
    for file, raw in files.items():
        if not file.endswith(ENDING):
            raise LenetError(f"{path}: expected arrays (*{ENDING}) and nothing else, found {file}")
        name = file.removesuffix(ENDING)
        stored[name] = _array(path, name, raw, matching)
        matching.add(name, stored[name])
    entries = _entries(path, comment)
    sums = metadata.compared(path, stored, entries)
    return Model(matching.done(), sums, *metadata.facts_of(entries))


def _array(path: Path, name: str, raw: bytes, matching: layouts.Matching) -> Array:
    import numpy as np

    file = io.BytesIO(raw)
    shape, fortran, stored = npy_header(file, f"{path}: expected {name} to be an array")
    if stored.kind != "f":
        raise LenetError(f"{path}: expected {name} to hold floats, found {stored}")
    matching.place(name, shape)
    left = len(raw) - file.tell()
    if left != prod(shape) * stored.itemsize:
        raise damaged(path, FORM, f"{name} of {layouts.by(shape)} {stored} in {left:,} bytes")
    found = np.frombuffer(raw, stored, offset=file.tell())
    return found.reshape(shape, order="F" if fortran else "C")


def _entries(path: Path, comment: bytes) -> dict[str, str]:
    """What our own archives say in their comment; nothing of another's.

    LenetError where it begins as ours, or names our checksums, and is no JSON.
    """
    try:
        found = json.loads(comment)
    except (ValueError, RecursionError) as error:
        if comment.lstrip().startswith(b"{") or metadata.WHOLE.encode() in comment:
            raise damaged(path, FORM, f"its comment: {error}") from error
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: text for name, text in found.items() if isinstance(text, str)}


def written(tensors: Mapping[str, Array], facts: Mapping[str, object]) -> bytes:
    """A file of float32 arrays in our layouts, with checksums; the same bytes every time."""
    import numpy as np

    files = {}
    for name, tensor in tensors.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, tensor.astype("<f4"), (1, 0), allow_pickle=False)
        files[name + ENDING] = buffer.getvalue()
    comment = json.dumps(metadata.stated(tensors, facts)).encode()
    if len(comment) > _MOST_COMMENT:
        raise LenetError(
            f"expected provenance that a {FORM} file's comment of {_MOST_COMMENT:,} bytes holds, "
            f"found {len(comment):,} bytes; convert to .h5 or .safetensors"
        )
    return archive.packed(files, comment)
