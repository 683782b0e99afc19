"""Weights of the network from a file of any form, checked for shape and finiteness."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import unexpected
from lenetgpu.files.kinds import foreign
from lenetgpu.files.models import forms
from lenetgpu.files.models.forms import EXPECTED, Model
from lenetgpu.files.models.layouts import Matching
from lenetgpu.files.models.mappings import tensors_of
from lenetgpu.files.regular import MAGIC, start_of
from lenetgpu.files.scaling import balance, reach
from lenetgpu.files.sums import ATTRIBUTE
from lenetgpu.network import weight_shapes

_TRAINING = ("optimizer", "optimizer_weights")  # groups of a Keras file beside the weights
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

    The first bytes decide the form: HDF5 (also Keras's), or one of `files/models/`. Tensors are
    recognised by shape, in our layout or PyTorch's. Any float type becomes float32; checksums are
    compared. Raises LenetError naming the file and the tensor, also for any tensor too many.
    """
    if _form(path) != forms.HDF5:
        return _weights(path, forms.read(path).tensors)
    from lenetgpu.files import checksums, hdf5

    matching = Matching(path)
    with hdf5.open_hdf5(path) as file:
        sums = checksums.stated(file)
        for name in file.datasets(but=_TRAINING):
            raw = hdf5.read_array(file, name, "floats", partial(matching.require, name), "f")
            sums.require(name, raw)
            matching.add(name, raw)
    return _weights(path, matching.done())


def weights_of(tensors: Mapping[str, Any]) -> Weights:
    """Return copies of tensors or arrays by name, as `load_weights` reads them from a file."""
    return _weights("weights", tensors_of("weights", tensors))


def _weights(source: object, found: Mapping[str, Array]) -> Weights:
    return Weights({n: _float32(source, n, found[n]) for n in weight_shapes()}, str(source))


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
        raise unexpected(path, EXPECTED, foreign(start, path.stat().st_size))
    return form


def _float32(path: object, what: str, raw: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        tensor = np.array(raw, np.float32, order="C")
    bad = int(np.count_nonzero(~np.isfinite(tensor)))
    if bad:
        found = f"{bad} that are NaN or infinite"
        raise unexpected(path, f"{what} to hold finite float32 numbers", found)
    return tensor
