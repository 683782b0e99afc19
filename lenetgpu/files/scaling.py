"""Weights in the range of every kernel: powers of two moved between the tensors, and out of them.

The network has no biases and ReLU keeps factors, so that a channel may be multiplied by a power of
two where the next tensor's rows of it are divided by that. No image in 0..1 then takes an
activation beyond what fp16 holds, whatever the weights, and fp32 computes the same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LEVELS = (10, 12, 14)
"""pool1's, pool2's and fc1's outputs of any image stay below 2**level; fp16 ends below 2**16."""
_SLACK = 16  # times a channel's level that the sum of its absolute products may be
_OUTPUT = range(-10, 14)  # exponents of fc2's largest weight that fp16 needs no factor for


def most_pooled(conv1: Array) -> Array:
    """(32,) float64: the largest mean of four ReLUs of an image in 0..1, by channel.

    `conv1` is (5, 5, 1, 32). A sum of ReLUs is the largest of its windows' subsets' sums, and a
    subset's is largest where the pixels under its positive taps are 1: nothing is estimated.
    """
    import numpy as np

    filters = np.asarray(conv1, np.float64)[:, :, 0]
    rows, columns, maps = filters.shape
    most = np.zeros(maps)
    for subset in range(1, 16):
        taps = np.zeros((rows + 1, columns + 1, maps))
        for window in range(4):
            if subset >> window & 1:
                y, x = divmod(window, 2)
                taps[y : y + rows, x : x + columns] += filters
        most = np.maximum(most, np.maximum(taps, 0).sum((0, 1)) / 4)
    return most


@dataclass(frozen=True)
class _Channels:
    """What brings each channel's size just below a level: factors, and the sizes then."""

    factors: Array
    sizes: Array

    @property
    def undone(self) -> Array:
        """What the next tensor's rows are multiplied by: 0 for a dead channel."""
        import numpy as np

        awake = self.factors > 0
        found: Array = np.where(awake, 1 / np.where(awake, self.factors, 1.0), 0.0)
        return found


def _channels(reach: Array, absolute: Array, level: int) -> _Channels:
    """Of channels' largest outputs, and of the sums of their products' absolute values."""
    import numpy as np

    size = np.where(reach > 0, np.maximum(reach, absolute / _SLACK), 0.0)
    _, exponents = np.frexp(size)
    factors = np.where(size > 0, np.ldexp(1.0, level - exponents), 0.0)
    return _Channels(factors, size * factors)


def _evened(tensor: Array, rows: _Channels, level: int) -> tuple[Array, _Channels]:
    """`tensor` (positions, channels, outputs) between evened rows and outputs, and those."""
    import numpy as np

    meets = rows.undone * rows.sizes
    reach = meets @ np.maximum(tensor, 0).sum(0)
    columns = _channels(reach, 2 * reach - meets @ tensor.sum(0), level)
    return tensor * (rows.undone[:, None] * columns.factors), columns


def balance(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
    """The four float32 tensors with their scales evened out, and k: scores are 2**k times theirs.

    Channels that no image wakes become zeros, with what would be multiplied by them. LenetError
    where a tensor holds NaN or infinity, which no factor mends.
    """
    import numpy as np

    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise LenetError(f"weights: expected finite numbers in {name}, found NaN or infinity")
    conv1, conv2, fc1, fc2 = (
        tensors[name].astype(np.float64) for name in ("conv1", "conv2", "fc1", "fc2")
    )
    maps1 = _channels(most_pooled(conv1), np.abs(conv1).sum((0, 1, 2)), LEVELS[0])
    taps, maps2 = _evened(conv2.reshape(-1, *conv2.shape[2:]), maps1, LEVELS[1])
    rows, hidden = _evened(fc1.reshape(-1, conv2.shape[3], fc1.shape[1]), maps2, LEVELS[2])
    last = fc2 * hidden.undone[:, None]
    top = int(np.frexp(np.abs(last).max())[1])
    out = 0 if top in _OUTPUT else top
    held = {"conv1": conv1 * maps1.factors, "conv2": taps, "fc1": rows, "fc2": np.ldexp(last, -out)}
    return {
        name: np.ascontiguousarray(w.reshape(tensors[name].shape), np.float32)
        for name, w in held.items()
    }, out


def reach(tensors: Mapping[str, Array]) -> dict[str, float]:
    """The largest value, by stage, that any image in 0..1 can leave there; of fc2 the magnitude.

    Of conv1 and conv2 it is that of positive outputs: ReLU makes 0 of the others, of minus infinity
    too. Upper bounds: what channels can have at most is added up. NaN where a tensor holds one.
    """
    import numpy as np

    conv1, conv2, fc1, fc2 = (
        tensors[name].astype(np.float64) for name in ("conv1", "conv2", "fc1", "fc2")
    )
    maps1 = most_pooled(conv1)
    maps2 = maps1 @ np.maximum(conv2, 0).sum((0, 1))
    rows = np.maximum(fc1, 0).reshape(-1, len(maps2), fc1.shape[1]).sum(0)
    hidden = maps2 @ rows
    scores = np.maximum(hidden @ np.maximum(fc2, 0), hidden @ np.maximum(-fc2, 0))
    found = {
        "conv1": np.maximum(conv1, 0).sum((0, 1, 2)),
        "pool1": maps1,
        "conv2": maps2,
        "pool2": maps2,
        "fc1": hidden,
        "fc2": scores,
    }
    return {name: float(values.max()) for name, values in found.items()}
