"""Images to pool2's features in fp32 on CUDA cores: Winograd convolutions, no tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, PIXEL_SCALE, Features
from lenetgpu.stages.registry import cuda, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_POINTS = tuple(Fraction(point, 2) for point in (0, 2, -2, 4, -4, 1, -1))
_GROUP = 8
_TILES = 32
_MAPS1, _MAPS2 = 32, 64
_CONV1_SHARED = 4 * (28 * 6 * 8 + 12 * 16 * 32)
_CONV2_THREADS = 256


@dataclass(frozen=True)
class Tuning:
    """Block sizes (threads), blocks an SM, and what a block copies.

    `depth` channels or features at once into one of `stages`; `buffers` for conv2's exchange.
    """

    conv1_threads: int
    conv1_blocks: int
    conv2_depth: int
    conv2_stages: int
    conv2_buffers: int
    classify_threads: int
    classify_split: int
    classify_images: int
    classify_depth: int
    classify_stages: int
    classify_blocks: int
    only: tuple[str, ...] = ()


# by the shared memory of a block: 62 KiB; 86 KiB; 197 KiB
SMALL = Tuning(128, 2, 4, 2, 1, 128, 1, 32, 32, 2, 1, only=("sm_75",))
MIDDLE = Tuning(128, 3, 8, 2, 1, 128, 1, 32, 32, 2, 1, only=("sm_80", "sm_86", "sm_89", "sm_120"))
LARGE = Tuning(128, 5, 8, 5, 2, 128, 1, 40, 64, 2, 2, only=("sm_90a", "sm_100"))
TUNINGS = (SMALL, MIDDLE, LARGE)


def filter_transform() -> Any:
    """G of F(4,5), (8, 5) float64: the values of a 5-tap filter at the eight points."""
    import numpy as np

    rows = []
    for i, point in enumerate(_POINTS):
        scale = Fraction(1)
        for j, other in enumerate(_POINTS):
            if i != j:
                scale *= point - other
        rows.append([float(Fraction(point) ** tap / scale) for tap in range(5)])
    rows.append([0.0, 0.0, 0.0, 0.0, 1.0])
    return np.array(rows)


@dataclass(frozen=True)
class Packed:
    """Transformed filters on the device, and room for conv1's transformed output.

    `conv1` (5, 8, 32) [row][point][map] by the images' dtype, with the pixels' 1/255 folded in for
    uint8; `conv2` (8, 8, 32, 64) [point x][point y][channel][map] with pool1's 1/4.
    """

    conv1: dict[str, Any]
    conv2: Any
    tiles: Any


def _prepare(w: Any, problem: Features, batch: int) -> Packed:
    import cupy
    import numpy as np

    g = filter_transform()
    first = np.asarray(w[0], np.float64).reshape(5, 5, _MAPS1)
    second = np.asarray(w[1], np.float64) / 4

    def device(array: Any) -> Any:
        return cupy.asarray(np.ascontiguousarray(array, np.float32))

    return Packed(
        {
            dtype: device(np.einsum("js,rsm->rjm", g, first / scale))
            for dtype, scale in (("uint8", PIXEL_SCALE), ("float32", 1.0))
        },
        device(np.einsum("ir,js,rscm->jicm", g, g, second)),
        cupy.empty(workspace_shape(batch), cupy.float32),
    )


def workspace_shape(images: int) -> tuple[int, ...]:
    """Shape of conv1's float32 output for `images`: 32 KiB an image, in groups of eight."""
    return (blocks_for(images, _GROUP), 8, 8, _MAPS1, _TILES)


def _conv2_shared(tuning: Tuning) -> int:
    depth = tuning.conv2_depth
    ring = tuning.conv2_stages * 8 * ((depth + 1) * _TILES + depth * _MAPS2)
    return 4 * (ring + tuning.conv2_buffers * 8 * _TILES * (_MAPS2 // 2 + 4))


@cache
def conv1_kernel(dtype: str, tuning: Tuning) -> Kernel:
    """conv1 and pool1, transformed."""
    return Kernel(
        _SOURCE,
        "plain_conv1",
        (
            ("PIXEL_BYTES", 1 if dtype == "uint8" else 4),
            ("THREADS", tuning.conv1_threads),
            ("BLOCKS", tuning.conv1_blocks),
            ("DEPTH", tuning.conv2_depth),
            ("SHARED_BYTES", _CONV1_SHARED),
        ),
        tuning.only,
    )


@cache
def conv2_kernel(tuning: Tuning) -> Kernel:
    """conv2 and pool2."""
    return Kernel(
        _SOURCE,
        "plain_conv2",
        (
            ("THREADS", _CONV2_THREADS),
            ("DEPTH", tuning.conv2_depth),
            ("STAGES", tuning.conv2_stages),
            ("BUFFERS", tuning.conv2_buffers),
            ("SHARED_BYTES", _conv2_shared(tuning)),
        ),
        tuning.only,
    )


@cache
def _tuning(device: int) -> Tuning:
    import cupy

    room = cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"]
    return next((size for size in (LARGE, MIDDLE) if _conv2_shared(size) <= room), SMALL)


def tuning() -> Tuning:
    """The tile sizes for the current device: the largest that fit its shared memory."""
    import cupy

    return _tuning(cupy.cuda.runtime.getDevice())


def _kernels(problem: Features) -> tuple[Kernel, ...]:
    return tuple(
        kernel
        for size in TUNINGS
        for kernel in (
            conv1_kernel("uint8", size),
            conv1_kernel("float32", size),
            conv2_kernel(size),
        )
    )


@variant(
    kind=FEATURES,
    family="plain",
    reads="NHWC",
    writes="F32",
    needs=cuda(75),
    prepare=_prepare,
    kernels=_kernels,
    raw_images=True,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 by Winograd F(4,5) along x, conv2 by F(4x4,5x5), ReLU and mean, on CUDA cores."""
    import numpy as np

    size, count, dtype = tuning(), np.int32(len(x)), str(x.dtype)
    groups = blocks_for(len(x), _GROUP)
    launch(
        conv1_kernel(dtype, size),
        (groups * _GROUP,),
        (size.conv1_threads,),
        (x, w.conv1[dtype], w.tiles, count),
        shared=_CONV1_SHARED,
    )
    launch(
        conv2_kernel(size),
        (min(groups, multiprocessors()),),
        (_CONV2_THREADS,),
        (w.tiles, w.conv2, y, count),
        shared=_conv2_shared(size),
    )
