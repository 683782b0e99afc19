"""Fully connected layers with the report's launches: its grid, then ReLU in place on its own."""

from functools import cache
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Fc
from lenetgpu.stages.defines import launch_each
from lenetgpu.stages.registry import fc_variant, of_shape
from lenetgpu.stages.sectors import NONE, Counted, counted, explained

_TILE, _COLUMNS = 32, 4


def _columns(problem: Fc) -> int:
    """Return the columns of blocks: 4 as in the report, more if M requires them."""
    return max(_COLUMNS, blocks_for(problem.M, _TILE))


@cache
def _kernels(problem: Fc) -> tuple[Kernel, ...]:
    shape = {"K": problem.K, "M": problem.M, "TILE": _TILE, "COLUMNS": _columns(problem)}
    entries = ("fully_forward", "relu2") if problem.relu else ("fully_forward",)
    return tuple(Kernel.beside(__file__, entry, **shape, THREADS=1024) for entry in entries)


def access_counts(problem: Fc) -> tuple[Counted, Counted]:
    """Count loads and stores of one row of blocks (32 images)."""
    lane, row = np.arange(_TILE)[None, :], np.arange(_TILE)[:, None]
    loads, stores = NONE, NONE
    for column in range(_columns(problem)):
        m = column * _TILE + lane
        inside = m < problem.M
        stores += counted(np.where(inside, row * problem.M + m, -1))
        for k0 in range(0, problem.K, _TILE):
            across, at = k0 + lane, (k0 + row) * problem.M + m
            loads += counted(np.where(across < problem.K, row * problem.K + across, -1))
            loads += counted(np.where(at < problem.K * problem.M, at, -1))
    return loads, stores


@fc_variant(
    family="tiled",
    kernels=of_shape(_kernels),
    explain=explained(access_counts),
    paper="report figs 4 to 6: fully_forward_tile and relu2Parallel",
)
def relu_apart(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """The tiled product in 4 columns of 32x32 blocks, then in-place ReLU by 1,024-thread blocks."""
    product, *relu = _kernels(problem)
    grid = (_columns(problem) * blocks_for(len(x), _TILE),)
    launch(product, grid, (_TILE, _TILE), (x, w, y, np.int32(len(x))))
    for kernel in relu:
        launch_each(kernel, y.size, y)
