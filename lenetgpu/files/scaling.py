"""Weights in the range of every kernel: powers of two moved between the tensors, and out of them.

The network has no biases and ReLU keeps factors, so that a channel may be multiplied by a power of
two where the next tensor's rows of it are divided by that. No image in 0..1 then takes an
activation beyond what fp16 holds, whatever the weights, and fp32 computes the same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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


def _exponents(reach: Array, absolute: Array, level: int) -> tuple[Array, Array]:
    """What brings each channel's size just below 2**level, and the sizes then; 0 of a dead one."""
    import numpy as np

    size = np.where(reach > 0, np.maximum(reach, absolute / _SLACK), 0.0)
    exponents = np.where(size > 0, level - np.ceil(np.log2(np.where(size > 0, size, 1.0))), 0)
    whole: Array = exponents.astype(np.int64)
    return whole, np.ldexp(size, whole)


def balance(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
    """The four float32 tensors with their scales evened out, and k: scores are 2**k times theirs.

    Channels that no image wakes become zeros, with what would be multiplied by them.
    """
    import numpy as np

    conv1, conv2, fc1, fc2 = (
        tensors[name].astype(np.float64) for name in ("conv1", "conv2", "fc1", "fc2")
    )
    e1, size1 = _exponents(most_pooled(conv1), np.abs(conv1).sum((0, 1, 2)), LEVELS[0])
    conv1 = np.ldexp(conv1, e1) * (size1 > 0)
    conv2 = np.ldexp(conv2, -e1[:, None]) * (size1 > 0)[:, None]
    reach, absolute = (
        np.einsum("rscm,c->m", part, size1) for part in (np.maximum(conv2, 0), np.abs(conv2))
    )
    e2, size2 = _exponents(reach, absolute, LEVELS[1])
    conv2 = np.ldexp(conv2, e2) * (size2 > 0)
    rows = np.ldexp(fc1.reshape(-1, len(e2), fc1.shape[1]), -e2[:, None]) * (size2 > 0)[:, None]
    reach, absolute = (
        np.einsum("pmh,m->h", part, size2) for part in (np.maximum(rows, 0), np.abs(rows))
    )
    e3, size3 = _exponents(reach, absolute, LEVELS[2])
    fc1 = np.ldexp(rows, e3).reshape(fc1.shape) * (size3 > 0)
    fc2 = np.ldexp(fc2, -e3[:, None]) * (size3 > 0)[:, None]
    widest = float(np.abs(fc2).max())
    top = int(np.ceil(np.log2(widest))) if widest > 0 else 0
    out = 0 if top in _OUTPUT else top
    held = {"conv1": conv1, "conv2": conv2, "fc1": fc1, "fc2": np.ldexp(fc2, -out)}
    return {name: np.ascontiguousarray(w, np.float32) for name, w in held.items()}, out
