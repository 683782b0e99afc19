"""conv2, ReLU and pool2 in fp32 on CUDA cores: conv1's tiles to features."""

from functools import cache
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.fused.cuda_cores.tuning import GROUP, Tuning, filter_transform

_THREADS = 256


@cache
def kernel(size: Tuning) -> Kernel:
    """Return the kernel for a tuning."""
    sizes = {"THREADS": _THREADS, "BK": size.conv2_bk, "STAGES": size.conv2_stages}
    sizes |= {"BUFFERS": size.conv2_buffers, "SHARED_BYTES": size.conv2_bytes}
    return size.kernel(__file__, "plain_conv2", **sizes)


def pack(conv2: Array) -> Array:
    """Transform (5, 5, 32, 64) filters / 4 (pool1's mean) to (8, 8, 32, 64) float32."""
    transform, exact = filter_transform(), np.asarray(conv2, np.float64) / 4
    # axes: transform point, transform point, channel, map
    values = np.einsum("ir,js,rscm->jicm", transform, transform, exact)
    return np.ascontiguousarray(values, np.float32)


def run(tiles: Any, filters: Any, y: Any, count: int, size: Tuning) -> None:
    """Launch the kernel on conv1's `tiles` of `count` images into features `y` (count, 1024)."""
    blocks = min(blocks_for(count, GROUP), multiprocessors())
    args = (tiles, filters, y, np.int32(count))
    launch(kernel(size), (blocks,), (_THREADS,), args, shared=size.conv2_bytes)
