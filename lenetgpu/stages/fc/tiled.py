"""Fully connected layers by tiles: register tiles on a CPU, shared-memory tiles on a GPU."""

from functools import cache
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.jit import addresses, native
from lenetgpu.cpu.threads import parallel_ranges
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Fc
from lenetgpu.stages.registry import fc_variant, of_shape

_TILE = 32
_PART = 1 << 23  # multiply-adds per thread below which another thread does not pay off


def _pack(w: Any, problem: Fc, batch: int) -> Any:
    from lenetgpu.cpu.tile import ROWS_TIMES_MATRIX, Lines, pack_weights

    return Lines(pack_weights(w.reshape(1, problem.K, problem.M)), native(ROWS_TIMES_MATRIX))


@fc_variant(family="tiled", prepare=_pack, paper="report figs 4-6 on a CPU")
def blocked(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """Register tiles of images x outputs, vector fused multiply-adds, on all cores."""
    x = np.ascontiguousarray(x, np.float32)

    def images(lo: int, hi: int) -> None:
        geometry = (1, 0, 0, problem.K, problem.K, hi - lo, problem.M)
        w.run(addresses(x[lo:hi], y[lo:hi]), geometry, 0, 1, problem.relu)

    parallel_ranges(len(x), images, least=-(-_PART // (problem.K * problem.M)))


@cache
def _kernel(problem: Fc) -> Kernel:
    shape = {"K": problem.K, "M": problem.M, "RELU": int(problem.relu), "TILE": _TILE}
    return Kernel.beside(__file__, "fully_forward_tile", **shape)


@fc_variant(
    family="tiled",
    kernels=of_shape(_kernel),
    paper="report figs 4-6: fully_forward_tile",
)
def shared(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """32x32 tiles of both matrices in shared memory, one output per thread."""
    grid = (blocks_for(len(x), _TILE) * blocks_for(problem.M, _TILE),)
    launch(_kernel(problem), grid, (_TILE, _TILE), (x, w, y, np.int32(len(x))))
