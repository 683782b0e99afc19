"""conv1, ReLU and pool1 in fp32 on CUDA cores: images to the input tiles of conv2."""

from functools import cache
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.stages.fused.cuda_cores import tuning
from lenetgpu.stages.fused.cuda_cores.tuning import GROUP, Tuning, filter_transform

_THREADS = 128
_SHARED_BYTES = 4 * (28 * 6 * 8 + 12 * 16 * 32)


@cache
def kernel(dtype: str, size: Tuning) -> Kernel:
    """Return the kernel for uint8 pixels or for float32 pixels in 0..1."""
    sizes = {"PIXEL_BYTES": 1 if dtype == "uint8" else 4, "THREADS": _THREADS}
    sizes |= {"BLOCKS": size.conv1_blocks, "BK": size.conv2_bk, "SHARED_BYTES": _SHARED_BYTES}
    return size.kernel(__file__, "plain_conv1", **sizes)


def pack(conv1: Array) -> dict[str, Array]:
    """Transform (5, 5, 1, 32) filters to (5 row, 8 point, 32 map) for each dtype of images.

    The uint8 filters include the pixels' factor 1/255.
    """
    transform, exact = filter_transform(), np.asarray(conv1, np.float64).reshape(5, 5, tuning.MAPS1)
    return {
        dtype: np.ascontiguousarray(np.einsum("js,rsm->rjm", transform, exact / scale), np.float32)
        for dtype, scale in (("uint8", PIXEL_SCALE), ("float32", 1.0))
    }


def tiles_shape(images: int) -> tuple[int, ...]:
    """Return the float32 output's shape for `images`: 32 KiB an image, in groups of eight."""
    points = tuning.POINTS
    return (blocks_for(images, GROUP), points, points, tuning.MAPS1, tuning.TILES)


def run(x: Any, filters: dict[str, Any], tiles: Any, size: Tuning) -> None:
    """Launch the kernel on images `x` (n, ...) into `tiles` (shape from `tiles_shape`)."""
    dtype = str(x.dtype)
    blocks, args = GROUP * blocks_for(len(x), GROUP), (x, filters[dtype], tiles, np.int32(len(x)))
    launch(kernel(dtype, size), (blocks,), (_THREADS,), args, shared=_SHARED_BYTES)
