"""Block-level fusion: a convolution, then its ReLU and mean (report, section 3.4.1)."""

from functools import cache
from typing import Any

from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import ConvPool
from lenetgpu.stages.conv.unrolled import TILE, maps_each, product_grid, tile_reuse
from lenetgpu.stages.defines import conv_defines
from lenetgpu.stages.registry import of_shape, variant
from lenetgpu.stages.sectors import conv_moves


@cache
def _kernel(problem: ConvPool) -> Kernel:
    layouts = {"READS": problem.reads, "WRITES": problem.writes}
    defines = conv_defines(problem.conv) | layouts | {"MAPS_EACH": maps_each(problem.conv)}
    return Kernel.beside(__file__, "conv_relu_mean", **defines)


@variant(
    kind="conv_pool",
    family="block",
    reads=("NCHW", "NHWC"),
    writes=("NCHW", "NHWC"),
    kernels=of_shape(_kernel),
    explain=lambda p, batch, machine: conv_moves(p) + tile_reuse(p.conv),
    paper="report 3.4.1, which left it unbuilt",
)
def unrolled(x: Any, w: Any, y: Any, problem: ConvPool) -> None:
    """The tiled unrolled product, ReLU and mean in one launch; the map never leaves the block."""
    launch(_kernel(problem), product_grid(x, problem.conv), (TILE, TILE), (x, w, y))
