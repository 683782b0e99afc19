"""Conversion of images to split fp16 on the GPU, each scaled by its largest input."""

from functools import cache
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import WARP
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor.packed import ABLE, VEC, Layout

THREADS = 256
_MOST_SHARES = 128  # enough for a single image to occupy most multiprocessors
_INPUTS_A_THREAD = 16
_SAMPLED_FROM = 60_000  # inputs per image; larger images are sampled
_ALL_FROM = 1 << 21  # inputs of all images; for fewer, sampling's extra launch costs more
SAMPLE = 8  # one line of so many is read
HEAD = 3  # the scale has room for inputs 2**HEAD times as large as the sampled ones
_RESPLIT_BLOCKS = 256
_WARPS = THREADS // WARP


def worth_sampling(problem: Conv, images: int) -> bool:
    """Return True if reading some inputs of `images` images is faster than reading all of them."""
    inputs = problem.H * problem.W * problem.C
    return bool(inputs >= _SAMPLED_FROM and images * inputs >= _ALL_FROM)


def sample(layout: Layout) -> int:
    """Return n if one of n lines of an image is read to find its largest input."""
    return SAMPLE if layout.sampled else 1


def _shares(layout: Layout) -> int:
    """Return the number of blocks per image that find its largest input: a power of two."""
    problem = layout.problem
    read = blocks_for(problem.H * problem.W * problem.C, sample(layout))
    blocks = blocks_for(read, THREADS * _INPUTS_A_THREAD)
    return int(min(_MOST_SHARES, 1 << (blocks - 1).bit_length()))


def _blocks(layout: Layout) -> tuple[int, int]:
    """Return the blocks per image, and a pixel's neighbouring 16-byte vectors per warp."""
    groups = blocks_for(layout.held, VEC)
    alone = layout.planes and layout.problem.reads == "NCHW"
    across = 1 if alone else next(count for count in (4, 2, 1) if groups % count == 0)
    runs = blocks_for(layout.problem.H * layout.width, WARP // across)
    return blocks_for(runs * (groups // across), _WARPS), across


@cache
def kernels(layout: Layout) -> tuple[Kernel, ...]:
    """Return `tensor_largest`, `tensor_split` and, if images are sampled, `tensor_resplit`."""
    blocks, across = _blocks(layout)
    sizes = {"THREADS": THREADS, "SHARES": _shares(layout), "BLOCKS": blocks, "ACROSS": across}
    sizes |= {"SAMPLE": sample(layout), "HEAD": HEAD if layout.sampled else 0}
    names = ("tensor_largest", "tensor_split", "tensor_resplit")[: 2 + layout.sampled]
    return tuple(Kernel.beside(__file__, n, ABLE, **layout.defines(), **sizes) for n in names)


class Images:
    """Split images on the device, the scale exponent of each image, and records for the recheck."""

    def __init__(self, layout: Layout, capacity: int) -> None:
        allocate = cupy.zeros if layout.planes else cupy.empty  # zeros between images stay
        self.layout, self.capacity = layout, capacity
        self.packed = allocate(layout.bytes(capacity), cupy.uint8)
        self.largest = cupy.empty(capacity * _shares(layout), cupy.uint32)
        self.exponents = cupy.empty(capacity, cupy.int32)
        self.reached, self.beyond = (cupy.empty(capacity, cupy.uint32) for _ in range(2))

    def fill(self, x: Any, in_scales: Any, images: int) -> None:
        """Split `images` images of `x` by the channels' `in_scales`, on the current stream."""
        find_largest, split, *resplits = kernels(self.layout)
        plane, blocks = np.int32(self.layout.plane(self.capacity)), images * _blocks(self.layout)[0]
        shares, outputs = self.largest, (self.exponents, self.packed, self.beyond, plane)

        def start(kernel: Kernel, blocks: int, *args: Any) -> None:
            launch(kernel, (blocks,), (THREADS,), (x, in_scales, *args), overlap=True)

        start(find_largest, images * _shares(self.layout), shares, self.reached, self.beyond)
        start(split, blocks, shares, *outputs)
        for resplit in resplits:
            start(resplit, min(_RESPLIT_BLOCKS, blocks), *outputs, np.int32(images))
