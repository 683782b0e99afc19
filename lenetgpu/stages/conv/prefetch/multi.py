"""Multi-channel convolution by stride-fixed segments: the Pascal paper's section 3.2."""

from functools import cache
from math import ceil
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch.plan import MultiTile, explain_multi, flat, multi_tile
from lenetgpu.stages.conv.prefetch.single_strict import prefetch
from lenetgpu.stages.defines import conv_kernel
from lenetgpu.stages.registry import of_shape

_MOST_WINDOW = 28
_REGISTERS_FOR = 512  # threads per multiprocessor: 128 registers each


def _tile(problem: Conv) -> MultiTile:
    tile = multi_tile(problem, machines.current())
    assert tile is not None, "refused by _supports"
    return tile


@cache
def _kernel(problem: Conv, tile: MultiTile) -> Kernel:
    problem = flat(problem)
    sizes = {name.upper(): value for name, value in vars(tile).items()}
    sizes["TILE_ROWS"] = sizes.pop("ROWS")
    sizes |= {
        "UNIT_ROWS": tile.unit_rows(problem),
        "BLOCKS": max(1, _REGISTERS_FOR // tile.threads),
        "THREADS": tile.threads,
        "PITCH": tile.pitch(problem),
        "SHARED_BYTES": tile.shared(problem),
    }
    return conv_kernel(__file__, "conv_stride_fixed", problem, **sizes)


def _supports(problem: Conv) -> str | None:
    window = 3 * problem.stride + problem.S
    if window > _MOST_WINDOW:
        return f"supports filter columns + 3 x stride up to {_MOST_WINDOW}, found {window}"
    if multi_tile(problem, machines.current()) is None:
        return f"supports filters whose lines fit shared memory, found {problem.R} rows"
    return None


def pack(w: Any, problem: Conv, tile: MultiTile) -> Any:
    """Return w (R, S, C, M) as (filter block, split, element, filter in the block), zero-padded."""
    # elements by (channel, row, column): a block's segments of a round are contiguous
    by_filter = np.asarray(w, np.float32).transpose(3, 2, 0, 1)
    by_filter = by_filter.reshape(problem.M, problem.C, problem.R * problem.S)
    spare = (0, -problem.M % tile.filters), (0, -problem.C % tile.splits), (0, 0)
    blocks, elements = ceil(problem.M / tile.filters), tile.rounds(problem) * tile.elements
    split = np.pad(by_filter, spare).reshape(blocks, tile.filters, tile.splits, -1)
    rounds = np.pad(split, ((0, 0), (0, 0), (0, 0), (0, elements - split.shape[-1])))
    return np.ascontiguousarray(rounds.transpose(0, 2, 3, 1))


def launch_tile(x: Any, w: Any, y: Any, problem: Conv, tile: MultiTile) -> None:
    """Launch the kernel of `tile` on x (n, C, H, W), packed filters and y (n, M, OH, OW)."""
    grid = (len(x) * tile.blocks(flat(problem)),)
    shared = tile.shared(flat(problem))
    launch(_kernel(problem, tile), grid, (tile.threads,), (x, w, y), shared=shared)


@prefetch(
    prepare=lambda w, problem, batch: cupy.asarray(pack(w, problem, _tile(problem))),
    kernels=of_shape(lambda problem: _kernel(problem, _tile(problem))),
    supports=_supports,
    explain=explain_multi,
    default=True,
    paper="after Pascal 3.2",
)
def stride_fixed(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """Packed filters, 2D tiles from a cost model, channels divided among threads."""
    launch_tile(x, w, y, problem, _tile(problem))
