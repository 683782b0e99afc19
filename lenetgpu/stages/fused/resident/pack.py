"""Weights as the resident kernel's threads read them, scaled so that no sum leaves fp32's range."""

from __future__ import annotations

from lenetgpu.arrays import Array, np
from lenetgpu.files.weights import Weights

_MEANS = 1 / 16  # the kernel adds where the network takes means, twice of four


def _near_one(tensor: Array) -> tuple[Array, int]:
    """`tensor` over the power of two above its largest absolute value, and that power."""
    wide = np.asarray(tensor, np.float64)
    power = int(np.frexp(np.abs(wide).max())[1])
    return np.ldexp(wide, -power), power


def pack(weights: Weights) -> tuple[Array, tuple[float, int]]:
    """One flat float32 array, and (f, p): scores are what the kernel finds times f * 2**p.

    conv1 [map 32][25 taps, 3 zeros]; conv2 [map/4][tap][map in] of four maps; fc1 [row][map/16]
    [map 8][unit/16, unit/4 4, column 4, map/8 2] of four hidden units; fc2 [class][lane] of four.
    Each tensor is scaled by a power of two to at most 1: exact, but for what is 2**-126 of its
    largest weight and less.
    """
    (conv1, a), (conv2, b), (fc1, c), (fc2, d) = (
        _near_one(weights[name]) for name in ("conv1", "conv2", "fc1", "fc2")
    )
    row, column, map16, map8, eight, warp = 4, 4, 4, 2, 8, 8
    features = fc1.reshape(row, column, map16, map8, eight, warp, 4, 4)
    parts = (
        np.pad(conv1.reshape(25, 32).T, ((0, 0), (0, 3))),
        conv2.reshape(25, 32, 16, 4).transpose(2, 0, 1, 3),
        features.transpose(0, 2, 4, 5, 6, 1, 3, 7),
        fc2.T,
    )
    flat = np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)
    return flat, (_MEANS, a + b + c + d)
