"""cuda-convnet2's convolution and the paper's software ladder, which improves it step by step."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv import nchw
from lenetgpu.stages.conv.convnet2 import layout
from lenetgpu.stages.conv.convnet2.layout import TRANSPOSE, Innermost
from lenetgpu.stages.defines import conv_kernel

FEW_IMAGES = 8
CHANNELS = 8
_OUTSIDE = -(2**30)


@dataclass(frozen=True)
class Tile:
    """The paper's parameters (section 2.2) and the number of channels per chunk."""

    threads_x: int
    threads_y: int
    images_per_thread: int
    filters_per_thread: int
    cached_pixels: int
    cached_channels: int

    @property
    def block(self) -> tuple[int, int]:
        """Threads per block."""
        return self.threads_x, self.threads_y

    @property
    def images(self) -> int:
        """Images per block."""
        return self.threads_x * self.images_per_thread

    @property
    def filters(self) -> int:
        """Filters per block."""
        return self.threads_y * self.filters_per_thread

    def defines(self) -> dict[str, int]:
        """Return the tile as `-D` definitions."""
        return {name.upper(): value for name, value in vars(self).items()}

    def blocks(self, problem: Conv, images: int) -> int:
        """Return the number of blocks for `images` images: equation (5), rounded up."""
        pixels = problem.OH * problem.OW
        return blocks_for(images, self.images) * pixels * blocks_for(problem.M, self.filters)


def ladder_tile(problem: Conv, images: int) -> Tile:
    """Return Table 1's parameters; for few images, a block computes one and a warp of filters."""
    channels = min(problem.C, CHANNELS)
    if images <= FEW_IMAGES:
        return Tile(1, 32, 1, 2 if problem.M > 32 else 1, 4, channels)
    each = 8 if problem.M > 32 else next(e for e in (1, 2, 4) if 4 * e >= problem.M or e == 4)
    return Tile(16, 4, 4, each, 4, channels)


class Loads(IntEnum):
    """Ways to load a chunk (loads.cuh); each adds one step of section 4 to the previous one."""

    PLAIN = 0
    REDUCED = 1
    HOISTED = 2
    LOOKED_UP = 3


@dataclass(frozen=True)
class Step:
    """One kernel on data with images innermost: its source, load strategy and tile selection."""

    module: str
    entry: str
    loads: Loads
    tile: Callable[[Conv, int], Tile]
    noted: str = "CLOCK"  # recorded by a build with a clock: blocks' spans, or PARTS (parts.cuh)

    def kernel(self, problem: Conv, images: int, clock: bool = False) -> Kernel:
        """Return the kernel for `images` images; with `clock` it records what `noted` selects."""
        return _kernel(self, problem, self.tile(problem, images), clock)

    def kernels(self, problem: Conv, batch: int) -> tuple[Kernel, ...]:
        """Return the kernels for one image and for `batch` images, and the layout conversion."""
        sizes = dict.fromkeys((1, min(batch, FEW_IMAGES + 1)))
        return (*dict.fromkeys(self.kernel(problem, images) for images in sizes), TRANSPOSE)

    def convolve(
        self, images: Any, state: Innermost, outputs: Any, n: int, problem: Conv, spans: Any = None
    ) -> None:
        """Launch on `n` images; int64 `spans` are (blocks, 3), of PARTS (blocks, warps, 6)."""
        tile, clock = self.tile(problem, n), () if spans is None else (spans,)
        args = (images, state.filters, outputs, np.int32(n), state.table, *clock)
        launch(self.kernel(problem, n, bool(clock)), (tile.blocks(problem, n),), tile.block, args)

    def run(self, x: Any, w: Innermost, y: Any, problem: Conv) -> None:
        """Run the whole variant: layout conversion, convolution, layout conversion."""

        def convolve(images: Any, outputs: Any, n: int) -> None:
            self.convolve(images, w, outputs, n, problem)

        layout.run_innermost(convolve, x, w, y, problem)


@cache
def _kernel(step: Step, problem: Conv, tile: Tile, clock: bool) -> Kernel:
    extra = {"LOADS": int(step.loads)} | ({step.noted: 1} if clock else {})
    return conv_kernel(step.module, step.entry, problem, **tile.defines(), **extra)


ROLLED = Step(__file__, "conv_rolled", Loads.PLAIN, ladder_tile)
UNROLLED = Step(__file__, "conv_unrolled", Loads.PLAIN, ladder_tile)
STRENGTH_REDUCED = Step(__file__, "conv_strength_reduced", Loads.REDUCED, ladder_tile)
HOISTED_CHECKS = Step(__file__, "conv_hoisted_checks", Loads.HOISTED, ladder_tile)
INDEX_TABLE = Step(__file__, "conv_index_table", Loads.LOOKED_UP, ladder_tile)


def _prepare_table(w: Any, problem: Conv, batch: int) -> Innermost:
    """Add tables of row (OH, R*S) and column (OW, R*S) offsets, far below zero in the padding."""
    elements = np.arange(problem.R * problem.S)

    def offsets(outputs: int, index: Any, size: int, pitch: int) -> Any:
        at = np.arange(outputs)[:, None] * problem.stride - problem.pad + index
        return np.where((at >= 0) & (at < size), at * pitch, _OUTSIDE).reshape(-1)

    rows = offsets(problem.OH, elements // problem.S, problem.H, problem.W)
    columns = offsets(problem.OW, elements % problem.S, problem.W, 1)
    table = cupy.asarray(np.concatenate([rows, columns]).astype(np.int32))
    return layout.prepare_innermost(w, problem, batch, table)


innermost = partial(
    nchw, family="convnet2", prepare=layout.prepare_innermost, supports=layout.indexable
)


_VARIANTS: tuple[tuple[str, Step, str, str, dict[str, Any]], ...] = (
    ("rolled", ROLLED, "convnet2 2.2, 3.1.1, fig. 11",
     "cuda-convnet2 with rolled loops, so that sums lie in local memory: the baseline.",
     {"local_memory": True}),
    ("unrolled", UNROLLED, "convnet2 3.1.2, fig. 12",
     "cuda-convnet2 with the loops over images and filters unrolled: sums in registers.", {}),
    ("strength_reduced", STRENGTH_REDUCED, "convnet2 4.1, fig. 27",
     "The unrolled kernel with indices advanced by additions while loading.", {}),
    ("hoisted_checks", HOISTED_CHECKS, "convnet2 4.2, fig. 30",
     "Strength-reduced, with bounds checked before the loading loops instead of inside.",
     {"default": True}),
    ("index_table", INDEX_TABLE, "convnet2 4.3, fig. 33",
     "The index converter as a look-up: one index a pixel, negative outside the image.",
     {"prepare": _prepare_table}),
)  # fmt: skip
for _name, _step, _paper, _summary, _more in _VARIANTS:
    _fields: dict[str, Any] = {"name": _name, "paper": _paper, "summary": _summary, **_more}
    innermost(kernels=_step.kernels, **_fields)(_step.run)
