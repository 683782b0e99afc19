"""The paper's inner and outer product engines on the tensor cores, at fp32 accuracy."""

from functools import partial
from typing import Any

from lenetgpu.problems import Conv
from lenetgpu.stages.conv.convnet2.ladder import CHANNELS, FEW_IMAGES, Loads, Step, Tile, innermost
from lenetgpu.stages.conv.convnet2.layout import Innermost
from lenetgpu.stages.registry import cuda

_DEEP = 8
_SHALLOW, _DEEP_CHUNK = 16, 32
_MANY_FILTERS = 32


def _engine_tile(problem: Conv, images: int, least_rows: int) -> Tile:
    """Return Table 1's threads, 16 or 32 filters per block, chunks of `least_rows` rows or more."""
    channels = min(problem.C, CHANNELS)
    pixels = next(
        p for p in (2, 4, 8, 16, 32) if p * channels >= least_rows and p * channels % _DEEP == 0
    )
    if images <= FEW_IMAGES:
        return Tile(8, 4, 1, 8 if problem.M > 16 else 4, pixels, channels)
    return Tile(16, 4, 4, 8 if problem.M > _MANY_FILTERS else 4, pixels, channels)


def inner_tile(problem: Conv, images: int) -> Tile:
    """Return a tile with shallow chunks if a warp holds many sums, to limit the registers."""
    shallow = images <= FEW_IMAGES or problem.M > _MANY_FILTERS
    return _engine_tile(problem, images, _SHALLOW if shallow else _DEEP_CHUNK)


def outer_tile(problem: Conv, images: int) -> Tile:
    """Return a tile with deep chunks, which need fewer barriers."""
    return _engine_tile(problem, images, _SHALLOW if images <= FEW_IMAGES else _DEEP_CHUNK)


INNER_PRODUCT = Step(__file__, "conv_inner_product", Loads.HOISTED, inner_tile)
OUTER_PRODUCT = Step(__file__, "conv_outer_product", Loads.HOISTED, outer_tile)
engine = partial(innermost, needs=cuda(80), precision="fp16x3")


@engine(kernels=INNER_PRODUCT.kernels, paper="convnet2 3.2, figs. 16 to 19")
def inner_product(x: Any, w: Innermost, y: Any, problem: Conv) -> None:
    """Sums by an inner product engine: mma.sync along K of a chunk, fp32 as 3 TF32 products."""
    INNER_PRODUCT.run(x, w, y, problem)


@engine(kernels=OUTER_PRODUCT.kernels, paper="convnet2 3.3, figs. 21 to 23")
def outer_product(x: Any, w: Innermost, y: Any, problem: Conv) -> None:
    """Sums by an outer product engine: mma.sync over all pairs, fp32 as 3 TF32 products."""
    OUTER_PRODUCT.run(x, w, y, problem)
