"""Direct convolution as on the Tegra X1 slides: 5x8 outputs per thread, a block per whole map."""

from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import FLOAT_BYTES, Conv
from lenetgpu.stages.conv.texture import BLOCK_MAPS, Prepared, by_parts, fill_kernel, texture
from lenetgpu.stages.conv.texture import refusal as texture_refusal
from lenetgpu.stages.defines import conv_kernel
from lenetgpu.stages.registry import Rows, of_shape

TILE = (5, 8)
_MOST_TILES = 16  # per block: 512 threads of 128 registers each
_SHARED_BYTES = 48 * 1024


def math_per_byte(problem: Conv) -> float:
    """Return #1: multiply-adds per byte of padded inputs, coefficients and outputs, moved once."""
    coefficients, pixels = problem.M * problem.gemm_k, problem.OH * problem.OW
    inputs = problem.C * prod(problem.padded)
    return coefficients * pixels / (FLOAT_BYTES * (inputs + coefficients + problem.M * pixels))


@dataclass(frozen=True)
class Blocks:
    """Division of a problem: BLOCK_MAPS maps of one image per block, a tile of a map per thread."""

    problem: Conv

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """Tiles per block, down and across, up to the map's; (0, 0) if none fits shared memory."""
        down = blocks_for(self.problem.OH, TILE[0])
        across = blocks_for(self.problem.OW, TILE[1])
        for x in range(min(across, _MOST_TILES), 0, -1):
            for y in range(min(down, _MOST_TILES // x), 0, -1):
                if 2 * FLOAT_BYTES * self.footprint(y, x) <= _SHARED_BYTES:
                    return y, x
        return 0, 0

    def footprint(self, y: int, x: int) -> int:
        """Return the input pixels of a channel under `y` by `x` tiles."""
        p = self.problem
        return ((y * TILE[0] - 1) * p.stride + p.R) * ((x * TILE[1] - 1) * p.stride + p.S)

    @property
    def threads(self) -> int:
        """Threads per block: one warp per tile."""
        return BLOCK_MAPS * self.tiles[0] * self.tiles[1]

    @property
    def regions(self) -> int:
        """Regions of the map that a block processes in turn: one on the slides."""
        down = blocks_for(self.problem.OH, TILE[0] * self.tiles[0])
        return down * blocks_for(self.problem.OW, TILE[1] * self.tiles[1])

    def grid(self, n: int) -> int:
        """Return the number of blocks for `n` images: K / 32 each."""
        return n * blocks_for(self.problem.M, BLOCK_MAPS)

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel compiled for the problem."""
        (y, x), (high, wide) = self.tiles, TILE
        sizes = {"TILE_H": high, "TILE_W": wide, "BLOCK_Y": y, "BLOCK_X": x}
        sizes |= {"BLOCK_MAPS": BLOCK_MAPS, "THREADS": self.threads}
        return conv_kernel(__file__, "conv_slides", self.problem, **sizes)


_blocks = cache(Blocks)


def _supports(problem: Conv) -> str | None:
    if Blocks(problem).tiles == (0, 0):
        filters = f"{problem.R}x{problem.S}, stride {problem.stride}"
        return f"supports filters whose footprint fits shared memory twice, found {filters}"
    return texture_refusal(problem)


def explain(problem: Conv, batch: int, machine: Machine) -> Rows:
    """Return (label, value) rows: the slides' analysis of the layer, its blocks and their loads."""
    blocks = Blocks(problem)
    grid, (y, x) = blocks.grid(batch), blocks.tiles
    loaded = grid * blocks.regions * problem.C * blocks.footprint(y, x)
    once = batch * problem.C * problem.H * problem.W
    per_coefficient = problem.C * prod(problem.padded) / (problem.M * problem.gemm_k)
    coefficients = BLOCK_MAPS * blocks_for(problem.M, BLOCK_MAPS) * problem.gemm_k * batch
    blocked = f"{grid:,} of {blocks.threads} threads for {machine.multiprocessors} multiprocessors"
    each = y * x * blocks.regions
    return [
        ("FFMA/byte (#1)", f"{math_per_byte(problem):.1f}, the padding counted as input"),
        ("input/coefficient (#3)", f"{per_coefficient:.3f}"),
        ("tile", f"{TILE[0]}x{TILE[1]} outputs of one map a thread"),
        ("blocks", f"{blocked}: {y}x{x} tiles, the map in {blocks.regions}"),
        ("input loads", f"{loaded:,}, {loaded / once:.1f} of each pixel: K/32 and the margins"),
        ("coefficient loads", f"{coefficients * each:,}, {each} of each, by the cache"),
    ]


@texture(
    kernels=of_shape(lambda problem: (fill_kernel(problem), Blocks(problem).kernel)),
    supports=_supports,
    explain=explain,
    paper="Tegra X1, per-thread pseudo code",
)
def slides(x: Any, w: Prepared, y: Any, problem: Conv) -> None:
    """The slides' kernel: 5x8 outputs per thread, 32 maps per block, coefficients one by one."""
    blocks = _blocks(problem)

    def convolve(n: int, out: Any) -> None:
        args = (w.input.texture, w.coefficients, out)
        launch(blocks.kernel, (blocks.grid(n),), (blocks.threads,), args)

    by_parts(x, w, y, problem, convolve)
