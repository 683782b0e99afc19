"""Single-channel convolution divided as in the Pascal paper's section 3.1."""

from functools import cache
from typing import Any

from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch.plan import SingleTile, explain_single, single_tile
from lenetgpu.stages.conv.prefetch.single_strict import prefetch
from lenetgpu.stages.defines import conv_kernel
from lenetgpu.stages.registry import of_shape

_MOST_ROWS = 16
_REGISTERS_FOR = 512  # threads per multiprocessor: 128 registers each


def _tile(problem: Conv) -> SingleTile:
    tile = single_tile(problem, machines.current())
    assert tile is not None, "refused by _supports"
    return tile


@cache
def _kernel(problem: Conv, tile: SingleTile) -> Kernel:
    sizes = {
        "METHOD": tile.method,
        "PART_ROWS": tile.rows,
        "PART_FILTERS": tile.filters,
        "BLOCKS": max(1, _REGISTERS_FOR // tile.threads) if problem.R * problem.S <= 9 else 1,
        "SHARED_BYTES": tile.shared(problem),
    }
    for name in ("pieces", "row_parts", "filter_parts", "px", "fm", "pc", "threads"):
        sizes[name.upper()] = getattr(tile, name)
    return conv_kernel(__file__, "conv_single", problem, **sizes)


def _supports(problem: Conv) -> str | None:
    if problem.C != 1:
        return f"supports one input channel, found {problem.C}"
    if problem.R > _MOST_ROWS:
        return f"supports filters of at most {_MOST_ROWS} rows, found {problem.R}"
    if single_tile(problem, machines.current()) is None:
        lines = f"{problem.R} lines of {problem.padded[1]} pixels"
        return f"supports maps whose lines fit shared memory, found {lines}"
    return None


def launch_tile(x: Any, w: Any, y: Any, problem: Conv, tile: SingleTile) -> None:
    """Launch the kernel of `tile` on x (n, 1, H, W), w (R, S, 1, M) and y (n, M, OH, OW)."""
    grid, shared = (len(x) * tile.row_parts * tile.filter_parts,), tile.shared(problem)
    launch(_kernel(problem, tile), grid, (tile.threads,), (x, w, y), shared=shared)


@prefetch(
    kernels=of_shape(lambda problem: _kernel(problem, _tile(problem))),
    supports=_supports,
    explain=explain_single,
    paper="after Pascal 3.1",
)
def single(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """One channel; parts of rows x filters, with tile sizes from a cost model."""
    launch_tile(x, w, y, problem, _tile(problem))
