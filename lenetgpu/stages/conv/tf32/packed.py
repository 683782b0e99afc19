"""Filters as TF32 high and low, what is left of them, each filter scaled by a power of two."""

from __future__ import annotations

from dataclasses import dataclass

from lenetgpu.arrays import Array, np
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.problems import Conv

CHUNK = 32
"""Products of the depth that are added before they meet fp32 sums."""
CELL = 4  # floats of 16 bytes
PARTS = 2
_KEPT = 13  # bits of a float's significand that TF32 has not
_NORMAL = 126  # 2**-126 to 2**126 are normal floats


@dataclass(frozen=True)
class Packed:
    """What a kernel reads of filters for blocks of `width` filters.

    `filters` (blocks, chunks, PARTS, CHUNK / CELL, width, CELL) float32, high ones, then low ones;
    `factors` (filters,) float32 undo a filter's scale, 0 where it is all zeros.
    """

    filters: Array
    factors: Array


def rounded(x: Array) -> Array:
    """float32 to the nearest of TF32's 11 bits, ties away from zero, as cvt.rna has it."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        near = (bits + np.uint32(1 << (_KEPT - 1))) & np.uint32(-1 << _KEPT & 0xFFFFFFFF)
    return np.where(np.isfinite(x), near.view(np.float32), x).astype(np.float32)


def chunks(problem: Conv) -> int:
    """Parts of CHUNK products that hold an output's depth."""
    return blocks_for(problem.depth, CHUNK)


def _ordered(w: Array, problem: Conv) -> Array:
    """(R, S, C, M) as (depth, M): taps of channels for maps, channels of taps for pixels."""
    if problem.reads == "NCHW":
        w = w.transpose(2, 0, 1, 3)
    return w.reshape(problem.depth, problem.M)


def pack(w: Array, problem: Conv, width: int) -> Packed:
    """Filters (R, S, C, M) float32 for blocks of `width` of them, zeros behind the last.

    NaN and infinity count for no scale; what they meet is NaN.
    """
    exact = _ordered(w.astype(np.float64), problem)
    sizes = np.where(np.isfinite(exact), np.abs(exact), 0).max(0)
    exponents = np.where(sizes > 0, np.clip(np.frexp(sizes)[1], -_NORMAL, _NORMAL), 0)
    padded = width * blocks_for(problem.M, width)
    scaled = np.zeros((CHUNK * chunks(problem), padded))
    scaled[: problem.depth, : problem.M] = np.ldexp(exact, -exponents)
    with np.errstate(invalid="ignore"):
        high = rounded(scaled.astype(np.float32))
        low = rounded((scaled - high).astype(np.float32))
    cells = np.stack([high, low]).reshape(PARTS, -1, CHUNK // CELL, CELL, padded // width, width)
    factors = np.zeros(padded, np.float32)
    factors[: problem.M] = np.where((exact != 0).any(0), np.ldexp(1.0, exponents), 0)
    ordered = cells.transpose(4, 1, 0, 2, 5, 3)
    return Packed(np.ascontiguousarray(ordered), factors)
