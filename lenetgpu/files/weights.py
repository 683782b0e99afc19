"""Weights of the network from a file of any form, checked for shape and finiteness."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.models import forms
from lenetgpu.files.models.forms import EXPECTED, Model
from lenetgpu.files.regular import MAGIC, start_of
from lenetgpu.files.scaling import balance, reach
from lenetgpu.files.sums import ATTRIBUTE
from lenetgpu.network import weight_shapes

LARGEST_SCORE = 2.0**127  # bound on scores that float32 holds, with room for a sum's rounding


@dataclass(frozen=True, eq=False)
class Weights:
    """The four weight tensors, float32, C-contiguous, by dataset name, and their source."""

    tensors: dict[str, Array]
    source: str
    exponent: int = 0  # the network's scores are 2**exponent times those that the tensors give

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]

    @cached_property
    def balanced(self) -> "Weights":
        """The same network with tensors in the range of every kernel (`files/scaling.py`)."""
        tensors, exponent = balance(self.tensors)
        return Weights(tensors, self.source, self.exponent + exponent)

    @cached_property
    def reach(self) -> dict[str, float]:
        """The largest value, by stage, that any image in 0..1 can produce (`scaling.reach`)."""
        return reach(self.tensors)

    @property
    def bounded(self) -> bool:
        """True if float32 holds the scores of every image in 0..1, whatever the rounding."""
        return bool(np.ldexp(self.reach["fc2"], self.exponent) <= LARGEST_SCORE)

    @cached_property
    def digest(self) -> str:
        """A hash of the tensors, as hex."""
        digest = hashlib.sha256(str(self.exponent).encode())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
        return digest.hexdigest()


def load_weights(path: Path) -> Weights:
    """Read conv1 (5,5,1,32), conv2 (5,5,32,64), fc1 (1024,128), fc2 (128,10) from any form.

    The first bytes decide the form: HDF5, or one of `files/models/`. Any float type becomes
    float32; checksums are compared. Raises LenetError naming the file and the dataset.
    """
    if _form(path) != forms.HDF5:
        found = forms.read(path).tensors
        return Weights({n: _float32(path, n, found[n]) for n in weight_shapes()}, str(path))
    from lenetgpu.files import checksums, hdf5

    tensors = {}
    with hdf5.open_hdf5(path) as file:
        sums = checksums.stated(file)
        for name, shape in weight_shapes().items():
            raw = hdf5.read_array(file, name, f"floats of shape {shape}", shape.__eq__, "f")
            sums.require(name, raw)
            tensors[name] = _float32(path, f"dataset /{name}", raw)
    return Weights(tensors, str(path))


def about(path: Path) -> Model:
    """Read a whole file; return its checksums, provenance and, except from HDF5, tensors."""
    if _form(path) != forms.HDF5:
        return forms.read(path)
    from lenetgpu.files import checksums, hdf5

    sums, attributes = checksums.verify(path), hdf5.attributes(path)
    facts = {n: text for n, text in attributes.items() if text is not None and n != ATTRIBUTE}
    return Model({}, sums, facts, tuple(name for name, text in attributes.items() if text is None))


def _form(path: Path) -> str:
    start = start_of(path, EXPECTED, forms.START)
    form = forms.HDF5 if start.startswith(MAGIC) else forms.form_of(start)
    if form is None:
        found = f"{path.stat().st_size:,} bytes in no known format" if start else "an empty file"
        raise LenetError(f"{path}: expected {EXPECTED}, found {found}")
    return form


def _float32(path: Path, what: str, raw: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        tensor = np.ascontiguousarray(raw, dtype=np.float32)
    bad = int(np.count_nonzero(~np.isfinite(tensor)))
    if bad:
        found = f"{bad} that are NaN or infinite"
        raise unexpected(path, f"{what} to hold finite float32 numbers", found)
    return tensor
