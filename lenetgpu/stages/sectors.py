"""Efficiency of global accesses, counted from the addresses of every warp of a block's work.

NVVP's definition (the course report's figures 4 to 6): bytes that a warp asks for, each address
once, over the bytes of the 32-byte sectors that they lie in. Counted, not measured: what a cache
serves costs the same here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lenetgpu.layouts import physical_shape, to_nhwc
from lenetgpu.stages.registry import Rows

WARP = 32
_SECTOR_FLOATS = 8


@dataclass(frozen=True)
class Counted:
    """Floats that warps ask for, and 32-byte sectors that they lie in."""

    floats: int
    sectors: int

    @property
    def efficiency(self) -> float:
        """Bytes asked for over bytes moved, 0 to 1."""
        return self.floats / (_SECTOR_FLOATS * self.sectors) if self.sectors else 1.0

    def __add__(self, other: Counted) -> Counted:
        return Counted(self.floats + other.floats, self.sectors + other.sectors)


NONE = Counted(0, 0)


def _distinct(values: Any) -> int:
    """Different values >= 0 of each row, added up."""
    import numpy as np

    ordered = np.sort(values, axis=1)
    first = np.ones(ordered.shape, bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return int((first & (ordered >= 0)).sum())


def counted(indices: Any) -> Counted:
    """Of an array (..., 32) of a warp's float indices, a row an instruction; -1: lane idle."""
    import numpy as np

    rows = np.asarray(indices).reshape(-1, WARP)
    return Counted(_distinct(rows), _distinct(np.where(rows < 0, -1, rows // _SECTOR_FLOATS)))


def total(parts: Iterable[Counted]) -> Counted:
    """The sum of `parts`."""
    found = NONE
    for part in parts:
        found += part
    return found


def lanes(width: int, height: int) -> tuple[Any, Any]:
    """(threadIdx.x, threadIdx.y), each (warps, 32), of a width x height block; -1 past its end."""
    import numpy as np

    thread = np.arange(-(-width * height // WARP) * WARP).reshape(-1, WARP)
    there = thread < width * height
    return np.where(there, thread % width, -1), np.where(there, thread // width, -1)


def cells(layout: str, shape: tuple[int, int, int]) -> Any:
    """Where element (y, x, c) of the first image lies in `layout`: an (H, W, C) array of floats."""
    import numpy as np

    physical = physical_shape(layout, 1, shape)
    return to_nhwc(np.arange(shape[0] * shape[1] * shape[2]).reshape(physical), layout, shape)[0]


def gather(where: Any, y: Any, x: Any, c: Any) -> Any:
    """`where[y, x, c]`, -1 where any of the three lies outside."""
    import numpy as np

    y, x, c = np.broadcast_arrays(y, x, c)
    rows, columns, channels = where.shape
    inside = (y >= 0) & (y < rows) & (x >= 0) & (x < columns) & (c >= 0) & (c < channels)
    return np.where(inside, where[np.where(inside, y, 0), np.where(inside, x, 0),
                                  np.where(inside, c, 0)], -1)  # fmt: skip


def efficiency_rows(loads: Counted, stores: Counted) -> Rows:
    """The two efficiencies as a variant's `explain` gives them."""
    found = f"{loads.efficiency:.1%} of loads, {stores.efficiency:.1%} of stores"
    return [("counted efficiency", found)]
