"""Forms of weights, detected by a file's first bytes: dispatch of readers and writers, and limits.

Checksums and provenance are text entries of safetensors, ONNX and a zip's comment.
`lenetgpu.sha256.NAME` is a stored tensor's SHA-256, as in `files/checksums.py`; `lenetgpu.sha256`
covers all other entries. Any other entry is provenance and is preserved.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lenetgpu.arrays import Array
from lenetgpu.errors import LenetError, first_line, require_extra, unexpected
from lenetgpu.files.regular import read_whole
from lenetgpu.files.sums import ATTRIBUTE, Sums, compare, sum_of

# limits of provenance: bytes of an HDF5 attribute, and attributes of an object
MAX_TEXT_BYTES, MAX_ATTRIBUTES = 64_000, 256
MOST_BYTES = 8 << 20  # bytes of a file, at most: five times the four tensors in float64
MOST_HEADER = 1 << 20  # bytes of a safetensors header, at most
ZIP = b"PK\3\4"  # first bytes of a zip archive
EXPECTED = "weights in HDF5, safetensors, PyTorch, ONNX or .npz format"
HDF5, SAFETENSORS, TORCH, ONNX, NPZ = "HDF5", "safetensors", "PyTorch", "ONNX", ".npz"
ENDINGS = {
    ".h5": HDF5, ".hdf5": HDF5, ".safetensors": SAFETENSORS, ".pt": TORCH, ".pth": TORCH,
    ".onnx": ONNX, ".npz": NPZ,
}  # fmt: skip
START = 512  # bytes of a file that determine its form
_PICKLE = b"\x80"
_HEADER = 8  # offset in bytes of a safetensors header, after its length
_NAME_AT, _NAME_LENGTH = 30, 26
# first byte of an ONNX model, and the keys of its other fields
_IR_VERSION, _AFTER = 0x08, b"\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2\xca"
WHOLE = "lenetgpu.sha256"
_OF = f"{WHOLE}."
_MOST_NAME = 200


@dataclass(frozen=True)
class Model:
    """Weights as stored in a file: any float type, by our names, in our layouts."""

    tensors: dict[str, Array]
    sums: Sums  # already compared
    facts: dict[str, str]  # other metadata
    unread: tuple[str, ...] = ()  # names of metadata that `facts` leaves out
    form: str = HDF5


def damaged(path: Path, form: str, why: object) -> LenetError:
    """Return the error for a file that breaks the rules of its form."""
    reason = first_line(why)
    return LenetError(f"{path}: expected a readable {form} file, found a damaged one ({reason})")


def form_of(start: bytes) -> str | None:
    """Return the form of a file with these first bytes; None for HDF5 and others."""
    # before the others: a safetensors header of 640 bytes has the first bytes of a pickle
    braced = start[_HEADER : _HEADER + 1] == b"{"
    if braced and int.from_bytes(start[:_HEADER], "little") <= MOST_HEADER:
        return SAFETENSORS
    if start.startswith(ZIP):
        length = int.from_bytes(start[_NAME_LENGTH : _NAME_LENGTH + 2], "little")
        return NPZ if start[_NAME_AT : _NAME_AT + length].endswith(b".npy") else TORCH
    if start[:1] == _PICKLE and start[1:2] in b"\2\3\4\5":
        return TORCH
    if braced:
        return SAFETENSORS
    if len(start) > 2 and start[0] == _IR_VERSION and start[1] < 128 and start[2] in _AFTER:
        return ONNX
    return None


def _codec(form: str) -> tuple[Callable[..., Model], Callable[..., bytes]]:
    from lenetgpu.files.models import archives, onnx_weights, safetensors

    return {
        SAFETENSORS: (safetensors.read, safetensors.written),
        ONNX: (onnx_weights.read, onnx_weights.written),
        NPZ: (archives.read_npz, archives.write_npz),
        TORCH: (archives.read_state_dict, archives.write_state_dict),
    }[form]


def read(path: Path) -> Model:
    """Read the weights of a file of any form but HDF5; its first bytes decide the form.

    Raises LenetError, also if a form requires a package that is not installed.
    """
    data = read_whole(path, EXPECTED, MOST_BYTES, "this network's weights in")
    form = form_of(data[:START])
    if form is None:
        raise unexpected(path, EXPECTED, "another file in its place")
    return replace(_codec(form)[0](path, data), form=form)


def require_target(path: Path) -> str:
    """Return the form of a target by its ending; raise LenetError if it cannot be written."""
    form = ENDINGS.get(path.suffix.lower())
    if form is None:
        raise unexpected(path, f"a name ending in {', '.join(ENDINGS)}", path.suffix or "no ending")
    if form in (ONNX, TORCH):
        require_extra(str(path), *(("onnx", "models") if form == ONNX else ("torch", "train")))
    return form


def written(
    path: Path, form: str, tensors: Mapping[str, Array], facts: Mapping[str, object]
) -> bytes:
    """Return a file of float32 tensors in our layouts, in any form but HDF5, with provenance."""
    return _codec(form)[1](path, tensors, facts)


def stated(tensors: Mapping[str, Array], facts: Mapping[str, object]) -> dict[str, str]:
    """Return the entries for a file: provenance, and checksums of the tensors as stored."""
    entries = {name: str(fact) for name, fact in facts.items() if not _is_checksum(name)}
    entries |= {_OF + name: sum_of(tensor) for name, tensor in tensors.items()}
    entries[WHOLE] = _sum_of_entries(entries)
    return dict(sorted(entries.items()))


def compared(path: Path, tensors: Mapping[str, Array], entries: Mapping[str, str]) -> Sums:
    """Return a file's checksums; raise LenetError if its tensors or entries changed."""
    sums = {name.removeprefix(_OF): text for name, text in entries.items() if name.startswith(_OF)}
    checksums = Sums(str(path), sums, where="tensor ", noun="tensor")
    if WHOLE not in entries and not sums:
        return checksums
    if sorted(sums) != sorted(tensors):
        expected = f"a checksum of each tensor ({', '.join(sorted(tensors))})"
        found = ", ".join(sorted(sums)) or "none"
        raise unexpected(path, expected, f"{found}: the file is damaged or was changed")
    compare(f"{path}: expected its metadata", entries.get(WHOLE, "none"), _sum_of_entries(entries))
    for name, tensor in tensors.items():
        checksums.require(name, tensor)
    return checksums


def facts_of(
    entries: Mapping[str, str], but: Iterable[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the provenance in metadata, and the names of entries that HDF5 cannot hold."""
    facts = {n: text for n, text in entries.items() if not (_is_checksum(n) or n in but)}
    storable = [item for item in facts.items() if _fits_attribute(*item)]
    stored = dict(storable[: MAX_ATTRIBUTES // 2])
    return stored, tuple(name for name in facts if name not in stored)


def _is_checksum(name: str) -> bool:
    return name == ATTRIBUTE or name.startswith(WHOLE)


def _sum_of_entries(entries: Mapping[str, str]) -> str:
    others = sorted(item for item in entries.items() if item[0] != WHOLE)
    return hashlib.sha256(json.dumps(others).encode()).hexdigest()


def _fits_attribute(name: str, text: str) -> bool:
    try:
        length, size = len(name.encode()), len(text.encode())
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return 0 < length <= _MOST_NAME and size <= MAX_TEXT_BYTES and "\0" not in name + text
