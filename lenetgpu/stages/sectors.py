"""Efficiency of global accesses, counted from the addresses of all warps of a block.

NVVP's definition (the course report's figures 4 to 6): bytes requested by a warp, each address
once, over the bytes of the 32-byte sectors that contain them. This is counted, not measured: cache
hits cost the same here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.problems import Conv, ConvPool
from lenetgpu.stages.registry import Rows

WARP = 32
_SECTOR, _FLOAT = 32, 4
_SECTOR_FLOATS = _SECTOR // _FLOAT


def _moved_per_needed(stride: int, lanes: int) -> float:
    """Return the bytes of the sectors of `lanes` floats, `stride` floats apart, over their own."""
    span = (lanes - 1) * stride * _FLOAT + _FLOAT
    sectors = min(lanes, -(-span // _SECTOR))
    return sectors * _SECTOR / (lanes * _FLOAT)


def conv_moves(problem: Conv | ConvPool) -> Rows:
    """Return loads and stores of a convolution whose warps run along a map's rows.

    With a pool, a warp stores 8 neighbouring outputs.
    """
    conv, stored = (problem.conv, 8) if isinstance(problem, ConvPool) else (problem, WARP)
    loads = _moved_per_needed(conv.stride * (conv.C if problem.reads == "NHWC" else 1), WARP)
    stores = _moved_per_needed(conv.M if problem.writes == "NHWC" else 1, stored)
    return [("moved/needed", f"{loads:.1f} in, {stores:.1f} out")]


def reuse(uses: float) -> Rows:
    """Return the row for uses of an input value per load from global memory."""
    return [("reuse", f"{uses:.0f}")]


def idle(outputs: int, threads: int) -> Rows:
    """Return the row for the share of `threads` that have none of the `outputs`."""
    return [("idle threads", f"{max(0.0, 1 - outputs / threads):.0%}")]


@dataclass(frozen=True)
class Counted:
    """Floats that warps request, and 32-byte sectors that contain them."""

    floats: int
    sectors: int

    @property
    def efficiency(self) -> float:
        """Bytes requested over bytes moved, 0 to 1."""
        return self.floats / (_SECTOR_FLOATS * self.sectors) if self.sectors else 1.0

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(self.floats + other.floats, self.sectors + other.sectors)


NONE = Counted(0, 0)


def _distinct(values: Any) -> int:
    """Count distinct values >= 0 of each row, and return the sum over rows."""
    ordered = np.sort(values, axis=1)
    return int(((np.diff(ordered, axis=1, prepend=-1) != 0) & (ordered >= 0)).sum())


def counted(indices: Any) -> Counted:
    """Count a warp's float indices (..., 32), a row per instruction; -1 means an idle lane."""
    rows = np.asarray(indices).reshape(-1, WARP)
    return Counted(_distinct(rows), _distinct(np.where(rows < 0, -1, rows // _SECTOR_FLOATS)))


def lanes(width: int, height: int) -> tuple[Any, Any]:
    """Return threadIdx.x and .y, each (warps, 32), of a width x height block; -1 past its end."""
    thread = np.arange(-(-width * height // WARP) * WARP).reshape(-1, WARP)
    exists = thread < width * height
    return np.where(exists, thread % width, -1), np.where(exists, thread // width, -1)


@dataclass(frozen=True)
class Offsets:
    """Offsets of elements (y, x, c) of the first image of (H, W, C) `shape` in `layout`."""

    layout: str
    shape: tuple[int, int, int]

    def at(self, y: Any, x: Any, c: Any) -> Any:
        """Return the offset in floats, for integers or arrays of integers."""
        height, width, channels = self.shape
        if self.layout == "NHWC":
            return (y * width + x) * channels + c
        if self.layout == "NCHW":
            return (c * height + y) * width + x
        row = y // 2 * 4 + y % 2 * 2 + x % 2  # a 2x2 window is a 4x1 column
        return (c * 2 * height + row) * (width // 2) + x // 2


def gather(where: Offsets, y: Any, x: Any, c: Any) -> Any:
    """Return `where.at(y, x, c)`, or -1 if any coordinate is out of range."""
    rows, columns, channels = where.shape
    inside = (y >= 0) & (y < rows) & (x >= 0) & (x < columns) & (c >= 0) & (c < channels)
    return np.where(inside, where.at(y, x, c), -1)


def some(items: Sequence[Any], most: int = 64) -> Sequence[Any]:
    """Return all items, or `most` evenly spaced ones: the sample for a large shape."""
    return items if len(items) <= most else [items[i * len(items) // most] for i in range(most)]


def efficiency_rows(loads: Counted, stores: Counted) -> Rows:
    """Return the two efficiencies as rows of a variant's `explain`."""
    shares = f"{loads.efficiency:.1%} of loads, {stores.efficiency:.1%} of stores"
    return [("counted efficiency", shares)]


def explained(counts: Callable[[Any], tuple[Counted, Counted]]) -> Callable[[Any, int, Any], Rows]:
    """Return a `Variant.explain` from a function that counts a problem's loads and stores."""
    return lambda problem, batch, machine: efficiency_rows(*counts(problem))
