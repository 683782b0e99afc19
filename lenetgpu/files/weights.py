"""Weights of the network from HDF5, checked for shape and finiteness."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5
from lenetgpu.network import weight_shapes

if TYPE_CHECKING:
    import numpy as np


ATTRIBUTE = "largest_pooled"
LARGEST_POOLED = (0.01, 1e4)  # fp16 holds filters scaled by 255 over it


@dataclass(frozen=True)
class Weights:
    """The four weight tensors, float32, C-contiguous, by dataset name, and where they came from.

    `largest_pooled` is the largest output of pool1 that calibration met, where the file has it.
    """

    tensors: dict[str, np.ndarray[Any, Any]]
    source: str
    largest_pooled: float | None = None

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.tensors[name]


def load_weights(path: Path) -> Weights:
    """Read /conv1 (5,5,1,32), /conv2 (5,5,32,64), /fc1 (1024,128), /fc2 (128,10).

    Any float type and byte order is accepted and becomes float32. Raises LenetError naming the
    file, the dataset, what was expected and what was found.
    """
    import numpy as np

    tensors = {}
    with hdf5.open_hdf5(path) as file:
        for name, shape in weight_shapes().items():
            raw = hdf5.read_array(file, name, f"floats of shape {shape}", shape.__eq__, "f")
            with np.errstate(over="ignore"):
                tensor = np.ascontiguousarray(raw, dtype=np.float32)
            bad = int(np.count_nonzero(~np.isfinite(tensor)))
            if bad:
                raise LenetError(
                    f"{path}: expected dataset /{name} to hold finite float32 numbers, "
                    f"found {bad} that are NaN or infinite"
                )
            tensors[name] = tensor
        largest = hdf5.read_number(file, "conv1", ATTRIBUTE, *LARGEST_POOLED)
    return Weights(tensors, str(path), largest)
