"""Which form a file of weights has, or gets; what reads and writes each is imported when wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.models.loaded import EXPECTED, MOST_BYTES, MOST_HEADER, ZIP, Model
from lenetgpu.files.regular import read_whole

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

HDF5, SAFETENSORS, TORCH, ONNX, NPZ = "HDF5", "safetensors", "PyTorch", "ONNX", ".npz"
ENDINGS = {
    ".h5": HDF5, ".hdf5": HDF5, ".safetensors": SAFETENSORS, ".pt": TORCH, ".pth": TORCH,
    ".onnx": ONNX, ".npz": NPZ,
}  # fmt: skip
START = 512
"""Bytes of a file that say its form."""
_PICKLE = b"\x80"
_HEADER = 8
"""Where a safetensors file's header begins, behind its length."""
_NAME_AT, _NAME_LENGTH = 30, 26
_IR_VERSION, _AFTER = 0x08, b"\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2\xca"
"""How an ONNX model begins, and its other fields."""


def form_of(start: bytes) -> str | None:
    """The form of a file that begins so; None where it is none of the four, perhaps HDF5.

    A header's length comes before what else these bytes might be: 640 begins as a pickle does.
    """
    braced = start[_HEADER : _HEADER + 1] == b"{"
    if braced and int.from_bytes(start[:_HEADER], "little") <= MOST_HEADER:
        return SAFETENSORS
    if start.startswith(ZIP):
        length = int.from_bytes(start[_NAME_LENGTH : _NAME_LENGTH + 2], "little")
        first = start[_NAME_AT : _NAME_AT + length]
        return NPZ if first.endswith(b".npy") else TORCH
    if start[:1] == _PICKLE and start[1:2] in b"\2\3\4\5":
        return TORCH
    if braced:
        return SAFETENSORS
    if len(start) > 2 and start[0] == _IR_VERSION and start[1] < 128 and start[2] in _AFTER:
        return ONNX
    return None


def read(path: Path) -> Model:
    """The weights of a file of any form but HDF5.

    The first bytes decide what it is, not its name. Raises LenetError naming the file, what was
    expected and what was found, also where a form needs a package that is not installed.
    """
    data = read_whole(path, EXPECTED, MOST_BYTES, "this network's weights in")
    form = form_of(data[:START])
    if form == SAFETENSORS:
        from lenetgpu.files.models import safetensors

        return safetensors.read(path, data)
    if form == NPZ:
        from lenetgpu.files.models import npz

        return npz.read(path, data)
    if form == ONNX:
        from lenetgpu.files.models import onnx_file

        return onnx_file.read(path, data)
    if form == TORCH:
        from lenetgpu.files.models import state_dict

        return state_dict.read(path, data)
    raise LenetError(f"{path}: expected {EXPECTED}, found another file in its place")


def require_target(path: Path) -> str:
    """The form of a target by its ending.

    LenetError for an unknown one, and where what writes it is not installed.
    """
    form = ENDINGS.get(path.suffix.lower())
    if form is None:
        raise LenetError(
            f"{path}: expected a name ending in {', '.join(ENDINGS)}, "
            f"found {path.suffix or 'no ending'}"
        )
    if form == ONNX:
        from lenetgpu.files.models import onnx_file

        onnx_file.require_onnx(path)
    if form == TORCH:
        from lenetgpu.files.models import state_dict

        state_dict.require_torch(path)
    return form


def written(
    path: Path, form: str, tensors: Mapping[str, Array], facts: Mapping[str, object]
) -> bytes:
    """What a file of these tensors, float32 in our layouts, holds in any form but HDF5.

    `facts` are its provenance; a state_dict has no place for them.
    """
    if form == SAFETENSORS:
        from lenetgpu.files.models import safetensors

        return safetensors.written(tensors, facts)
    if form == NPZ:
        from lenetgpu.files.models import npz

        return npz.written(tensors, facts)
    if form == ONNX:
        from lenetgpu.files.models import onnx_file

        return onnx_file.written(path, tensors, facts)
    from lenetgpu.files.models import state_dict

    return state_dict.written(path, tensors)
