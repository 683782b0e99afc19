"""What every form of weights is read into, and the bounds that hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError, first_line
from lenetgpu.files import checksums

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MOST_BYTES = 8 << 20
"""Of a file: five times what the four tensors are in float64."""
MOST_HEADER = 1 << 20
"""Bytes of a safetensors file's header."""
ZIP = b"PK\3\4"
"""How an archive begins."""
EXPECTED = "weights in HDF5, safetensors, PyTorch, ONNX or .npz form"


@dataclass(frozen=True)
class Model:
    """Weights as a file has them: any float type, by our names, in our layouts.

    `sums` are what its checksums say, all compared; `facts` its other metadata, as text; `unread`
    names those of it that an HDF5 file could not hold.
    """

    tensors: dict[str, Array]
    sums: checksums.Sums
    facts: dict[str, str]
    unread: tuple[str, ...] = ()


def damaged(path: Path, form: str, why: object) -> LenetError:
    """What is said of a file that is not as its form has it."""
    reason = first_line(why)
    return LenetError(f"{path}: expected a readable {form} file, found a damaged one ({reason})")


def from_bfloat16(halves: Array) -> Array:
    """float32 of the upper halves of it, uint16."""
    import numpy as np

    return (halves.astype(np.uint32) << 16).view(np.float32)
