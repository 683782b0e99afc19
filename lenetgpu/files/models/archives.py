"""Weights in zip archives: NumPy's .npz, and PyTorch's state_dict.

An archive is unpacked in memory, each file once and with a size that is known before inflating.
PyTorch archives are repacked from these files and read by torch.load with weights_only; no other
code unpickles them.
"""

import io
import json
import re
import warnings
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError, require_extra, unexpected
from lenetgpu.files.idx import npy_header
from lenetgpu.files.models import forms, layouts
from lenetgpu.files.models.forms import MOST_BYTES, NPZ, TORCH, ZIP, Model, damaged
from lenetgpu.files.models.mappings import tensors_of
from lenetgpu.files.sums import Sums

_ENTRY = b"PK\1\2"
# Signature of a zip's last record, and the record's length before the comment; its last two bytes
# are the comment's length.
_END, _END_BYTES = b"PK\5\6", 22
_MOST_ENTRIES = 256
_ENDING = ".npy"
# members of other archives: what such an archive is, and what to do
_OTHERS = {
    "constants.pkl": "a TorchScript model; save torch.jit.load(FILE).state_dict() by torch.save",
    "archive_format": "an exported program of PyTorch; save model.state_dict() by torch.save",
    "model.weights.h5": "a whole Keras model; save it by model.save_weights('NEW.weights.h5')",
}
# objects of a pickle that weights_only does not load, as PyTorch's message names them
_CODE = re.compile(r"GLOBAL ([\w.]{1,60})")
_MOST_COMMENT = 65_535  # bytes that a zip's comment may have
SAFE = (2, 10)  # first PyTorch release without a known bypass of `weights_only`


def _members(path: Path, data: bytes, form: str) -> tuple[dict[str, bytes], bytes]:
    """Return the archive's files by name, and its comment; raise LenetError if damaged or large."""
    if (entries := data.count(_ENTRY)) > _MOST_ENTRIES:
        raise unexpected(path, f"an archive of at most {_MOST_ENTRIES} files", f"{entries:,}")
    begins = data.rfind(_END) + _END_BYTES
    stated, left = int.from_bytes(data[begins - 2 : begins], "little"), len(data) - begins
    if _END in data and stated != left:
        raise damaged(path, form, f"a comment of {stated:,} bytes, {max(left, 0):,} left for it")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as opened:
            infos, files = opened.infolist(), {}
            if (size := sum(info.file_size for info in infos)) > MOST_BYTES:
                raise unexpected(path, f"at most {MOST_BYTES:,} bytes in the archive", f"{size:,}")
            for info in infos:
                name, method = info.filename, info.compress_type
                if name in files:
                    raise LenetError(f"{path}: expected files with a name each, found {name} twice")
                if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    found = f"{name} by method {method}"
                    raise unexpected(path, "an archive stored or deflated", found)
                with opened.open(info) as file:
                    files[name] = file.read(info.file_size)
                if len(files[name]) != info.file_size:
                    raise damaged(path, form, f"{name} is shorter than it should be")
            return files, opened.comment
    except LenetError:
        raise
    except Exception as error:  # of zipfile, zlib or struct
        raise damaged(path, form, error) from error


def _packed(files: Mapping[str, bytes], comment: bytes = b"") -> bytes:
    """Return an uncompressed archive of these files; equal files give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)  # with zip's earliest date
            info.external_attr = 0o644 << 16  # readable by all
            archive.writestr(info, data)
        archive.comment = comment
    return buffer.getvalue()


def read_npz(path: Path, data: bytes) -> Model:
    """Read the weights from a file's bytes; raise LenetError if damaged or of another network."""
    files, comment = _members(path, data, NPZ)
    matching, stored = layouts.Matching(path), {}
    for file, raw in files.items():
        if not file.endswith(_ENDING):
            raise LenetError(f"{path}: expected arrays (*{_ENDING}), found {file}")
        name = file.removesuffix(_ENDING)
        stored[name] = _array(path, name, raw, matching)
        matching.add(name, stored[name])
    entries = _entries(path, comment)
    sums = forms.compared(path, stored, entries)
    return Model(matching.done(), sums, *forms.facts_of(entries))


def write_npz(path: Path, tensors: Mapping[str, Array], facts: Mapping[str, object]) -> bytes:
    """Return a file of float32 arrays in our layouts, with checksums in its comment."""
    files = {}
    for name, tensor in tensors.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, tensor.astype("<f4"), (1, 0), allow_pickle=False)
        files[name + _ENDING] = buffer.getvalue()
    comment = json.dumps(forms.stated(tensors, facts)).encode()
    if len(comment) > _MOST_COMMENT:
        expected = f"provenance that a {NPZ} file's comment of {_MOST_COMMENT:,} bytes holds"
        raise unexpected(path, expected, f"{len(comment):,}; convert to .h5 or .safetensors")
    return _packed(files, comment)


def _array(path: Path, name: str, raw: bytes, matching: layouts.Matching) -> Array:
    file = io.BytesIO(raw)
    shape, fortran, stored = npy_header(file, f"{path}: expected {name} to be an array")
    if stored.kind != "f":
        raise LenetError(f"{path}: expected {name} to hold floats, found {stored}")
    matching.require(name, shape)
    left = len(raw) - file.tell()
    if left != prod(shape) * stored.itemsize:
        raise damaged(path, NPZ, f"{name} of {layouts.by(shape)} {stored} in {left:,} bytes")
    array = np.frombuffer(raw, stored, offset=file.tell())
    return array.reshape(shape, order="F" if fortran else "C")


def _entries(path: Path, comment: bytes) -> dict[str, str]:
    try:
        metadata = json.loads(comment)
    except (ValueError, RecursionError) as error:
        if comment.lstrip().startswith(b"{") or forms.WHOLE.encode() in comment:
            raise damaged(path, NPZ, f"its comment: {error}") from error
        return {}
    pairs = metadata.items() if isinstance(metadata, dict) else ()
    return {name: text for name, text in pairs if isinstance(text, str)}


def read_state_dict(path: Path, data: bytes) -> Model:
    """Read a state_dict, or a checkpoint with one; raise LenetError for any other object."""
    if not data.startswith(ZIP):
        advice = "save the weights again by torch.save (PyTorch 1.6 or later) or numpy.savez"
        found = f"a bare pickle, which is not read; {advice}"
        raise unexpected(path, "a state_dict in PyTorch's zip archive", found)
    files = _members(path, data, TORCH)[0]
    members = {name.rpartition("/")[2] for name in files}
    if other := next((found for name, found in _OTHERS.items() if name in members), None):
        raise unexpected(path, "weights", other)
    if "data.pkl" not in members:  # so that PyTorch is not imported
        raise unexpected(path, "an archive of *.npy or */data.pkl", next(iter(files), "nothing"))
    torch = _torch(path)
    tensors = tensors_of(path, _state(path, torch, _packed(files)))
    return Model(tensors, Sums(str(path), {}), {})


def write_state_dict(
    path: Path, tensors: Mapping[str, Array], facts: Mapping[str, object]
) -> bytes:
    """Return a file of torch.save with float32 tensors in PyTorch's layout."""
    import torch

    buffer = io.BytesIO()
    stored = layouts.to_torch(tensors)
    torch.save({name: torch.tensor(tensor) for name, tensor in stored.items()}, buffer)
    return buffer.getvalue()


def _torch(path: Path) -> Any:
    require_extra(f"{path}: for a state_dict", "torch", "train")
    import torch

    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < SAFE:
        first = f"PyTorch {'.'.join(map(str, SAFE))} or later"
        expected = f"{first}, whose weights_only runs nothing of a file"
        raise unexpected(path, expected, torch.__version__)
    return torch


def _state(path: Path, torch: Any, data: bytes) -> Mapping[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # torch documents no exception type
            if (code := _CODE.search(str(error))) is not None:
                found = f"a whole model or other Python objects ({code[1]})"
                advice = "save model.state_dict() by torch.save"
                raise unexpected(path, "a state_dict", f"{found}; {advice}") from error
            raise damaged(path, TORCH, type(error).__name__) from error
    if not isinstance(found, Mapping):
        raise unexpected(path, "a state_dict, tensors by name", f"{type(found).__name__}")
    return found
