"""Weights of the network from HDF5, checked for shape and finiteness."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files import checksums, hdf5
from lenetgpu.files.scaling import balance, reach
from lenetgpu.network import weight_shapes

if TYPE_CHECKING:
    import numpy as np

LARGEST_SCORE = 2.0**127
"""Scores that are bounded by this are float32 numbers, with room for a sum's rounding."""


@dataclass(frozen=True, eq=False)
class Weights:
    """The four weight tensors, float32, C-contiguous, by dataset name, and where they came from.

    The network's scores are 2**`exponent` times those that the tensors give.
    """

    tensors: dict[str, np.ndarray[Any, Any]]
    source: str
    exponent: int = 0

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.tensors[name]

    @cached_property
    def balanced(self) -> Weights:
        """The same network with tensors in the range of every kernel (`files/scaling.py`).

        What a plan is made of; a Pipeline takes them by itself.
        """
        tensors, exponent = balance(self.tensors)
        return Weights(tensors, self.source, self.exponent + exponent)

    @cached_property
    def reach(self) -> dict[str, float]:
        """By stage, the largest value that any image in 0..1 can leave there (`scaling.reach`)."""
        return reach(self.tensors)

    @property
    def bounded(self) -> bool:
        """Whether float32 holds the scores of every image in 0..1, rounded as they may be."""
        import numpy as np

        return bool(np.ldexp(self.reach["fc2"], self.exponent) <= LARGEST_SCORE)

    @cached_property
    def digest(self) -> str:
        """A hash of the tensors, as hex."""
        found = hashlib.sha256(str(self.exponent).encode())
        for name, tensor in sorted(self.tensors.items()):
            found.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
            found.update(tensor.tobytes())
        return found.hexdigest()


def load_weights(path: Path) -> Weights:
    """Read /conv1 (5,5,1,32), /conv2 (5,5,32,64), /fc1 (1024,128), /fc2 (128,10).

    Any float type and byte order is accepted and becomes float32. Checksums are compared where the
    file has some. Raises LenetError naming the file, the dataset, what was expected and what was
    found.
    """
    import numpy as np

    tensors = {}
    with hdf5.open_hdf5(path) as file:
        sums = checksums.stated(file)
        for name, shape in weight_shapes().items():
            raw = hdf5.read_array(file, name, f"floats of shape {shape}", shape.__eq__, "f")
            sums.require(name, raw)
            with np.errstate(over="ignore"):
                tensor = np.ascontiguousarray(raw, dtype=np.float32)
            bad = int(np.count_nonzero(~np.isfinite(tensor)))
            if bad:
                raise LenetError(
                    f"{path}: expected dataset /{name} to hold finite float32 numbers, "
                    f"found {bad} that are NaN or infinite"
                )
            tensors[name] = tensor
    return Weights(tensors, str(path))
