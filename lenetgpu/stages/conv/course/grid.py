"""The report's grids of direct convolutions, and the blocks that a multiprocessor holds of them."""

from __future__ import annotations

_DEEPEST = 65_535  # of a grid's second and third extent
_HELD_TWICE = 28 * 28  # threads of conv1's block; registers for two larger ones would spill


def maps_grid(images: int, maps: int, parts: int = 1) -> tuple[int, int, int]:
    """[images,maps] as figures 4 and 5 have it, images fastest; parts of a map lie behind."""
    return images, maps, parts


def grid_refusal(maps: int, parts: int = 1) -> str | None:
    """A sentence where such a grid has no room for the maps (or groups of them), or the parts."""
    if maps > _DEEPEST:
        return f"supports grids of up to {_DEEPEST} blocks across the maps, needs {maps}"
    if parts > _DEEPEST:
        return f"supports grids of up to {_DEEPEST} blocks a map, needs {parts}"
    return None


def residents(threads: int) -> int:
    """Blocks of `threads` that a multiprocessor's registers shall hold at least.

    The same for `shared_constant` and `whole_warps`: else their step would be one of registers.
    """
    return 2 if threads <= _HELD_TWICE else 1
