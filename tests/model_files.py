"""Weight files and models as other tools write them, to be read or refused."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from lenetgpu.files.models import forms

# endings of forms that are read and written without PyTorch
FORMS = {".safetensors": "safetensors", ".npz": ".npz", ".onnx": "ONNX"}
TORCH_NAMES = ("features.0.weight", "features.3.weight", "classifier.0.weight", "last.weight")


def written(folder: Path, ending: str, tensors: dict[str, Any], facts: Any = None) -> Path:
    """Write a file with our own writer; return its path."""
    path = folder / f"model{ending}"
    path.write_bytes(forms.written(path, FORMS[ending], tensors, facts or {}))
    return path


def planar(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors in PyTorch's layouts, converted element by element as a cross-check."""
    found = {}
    for name in ("conv1", "conv2"):
        rows, columns, inputs, maps = tensors[name].shape
        found[name] = np.empty((maps, inputs, rows, columns), np.float32)
        for m in range(maps):
            for c in range(inputs):
                found[name][m, c] = tensors[name][:, :, c, m]
    found["fc1"] = np.empty((128, 1024), np.float32)
    for h in range(4):
        for w in range(4):
            for c in range(64):
                found["fc1"][:, c * 16 + h * 4 + w] = tensors["fc1"][(h * 4 + w) * 64 + c]
    return found | {"fc2": np.ascontiguousarray(tensors["fc2"].transpose())}


def safetensors(
    tensors: dict[str, Any], change: Callable[[dict[str, Any]], Any] = lambda header: None
) -> bytes:
    """Return a file of arrays of any type; `change` edits its header before it is written."""
    kinds = {"f8": "F64", "f4": "F32", "f2": "F16", "u2": "BF16", "i8": "I64"}
    header: dict[str, Any] = {}
    at = 0
    for name, tensor in tensors.items():
        span = [at, at + tensor.nbytes]
        kind = kinds[tensor.dtype.str[1:]]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": span}
        at += tensor.nbytes
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(t.tobytes() for t in tensors.values())


def npz(tensors: dict[str, Any]) -> bytes:
    """Return a file of np.savez_compressed."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **tensors)
    return buffer.getvalue()


def hdf5(arrays: dict[str, Any]) -> bytes:
    """Return an HDF5 file of datasets; names with slashes make groups."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return buffer.getvalue()


def archive(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as made:
        for name, data in files.items():
            made.writestr(name, data)
    return buffer.getvalue()


def npy(array: Any) -> bytes:
    """Return an array as a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def state_dict(tensors: dict[str, Any]) -> bytes:
    """Return a file of torch.save with tensors as given, without layout conversion."""
    import torch

    buffer = io.BytesIO()
    torch.save({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, buffer)
    return buffer.getvalue()
