"""Block-level fusion: a convolution with the ReLU and mean behind it (report, section 3.4.1)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import ConvPool
from lenetgpu.stages.conv.unrolled import TILE, maps_each, product_grid, tile_reuse
from lenetgpu.stages.defines import conv_defines
from lenetgpu.stages.registry import Rows, of_shape, variant
from lenetgpu.stages.sectors import conv_pool_moves

_SOURCE = Path(__file__).with_suffix(".cu").resolve()


@cache
def _kernel(problem: ConvPool) -> Kernel:
    defines = conv_defines(problem.conv) | {
        "READS": problem.reads,
        "WRITES": problem.writes,
        "MAPS_EACH": maps_each(problem.conv),
    }
    return Kernel(_SOURCE, "conv_relu_mean", tuple(defines.items()))


def _explain(problem: ConvPool, batch: int, machine: Machine) -> Rows:
    return conv_pool_moves(problem) + tile_reuse(problem.conv)


@variant(
    kind="conv_pool",
    family="block",
    reads=("NCHW", "NHWC"),
    writes=("NCHW", "NHWC"),
    kernels=of_shape(_kernel),
    explain=_explain,
    paper="report 3.4.1, which left it unbuilt",
)
def unrolled(x: Any, w: Any, y: Any, problem: ConvPool) -> None:
    """The tiled unrolled product, ReLU and mean in one launch; the map never leaves the block."""
    launch(_kernel(problem), product_grid(x, problem.conv), (TILE, TILE), (x, w, y))
