"""Images to fp16 high and low on the GPU, each scaled by its largest input."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import WARP
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor.packed import ABLE, CELL, Layout

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
THREADS = 256
_MOST_SHARES = 128  # so that one image alone has a block for every multiprocessor
_INPUTS_A_THREAD = 16
_SAMPLED_FROM = 60_000  # inputs of an image of which some say how large all are
_ALL_FROM = 1 << 21  # of all images: what another launch costs is read in no time
SAMPLE = 8  # of so many lines one
HEAD = 3  # inputs 2**HEAD times as large as those have room
_RESPLIT_BLOCKS = 256
_WARPS = THREADS // WARP


def worth_sampling(problem: Conv, images: int) -> bool:
    """Whether looking at some inputs of `images` images is faster than at all of them."""
    inputs = problem.H * problem.W * problem.C
    return bool(inputs >= _SAMPLED_FROM and images * inputs >= _ALL_FROM)


def sample(layout: Layout) -> int:
    """Of how many lines of an image one is looked at for its largest input."""
    return SAMPLE if layout.sampled else 1


def _shares(layout: Layout) -> int:
    """Blocks that look for an image's largest input: a power of two."""
    problem = layout.problem
    read = blocks_for(problem.H * problem.W * problem.C, sample(layout))
    wanted = blocks_for(read, THREADS * _INPUTS_A_THREAD)
    return int(min(_MOST_SHARES, 1 << (wanted - 1).bit_length()))


def _blocks(layout: Layout) -> tuple[int, int]:
    """Blocks that split an image, and neighbouring cells that a warp takes of each of its pixels.

    One cell where both sides are planes.
    """
    groups = blocks_for(layout.held, CELL)
    alone = layout.planes and layout.problem.reads == "NCHW"
    across = 1 if alone else next(count for count in (4, 2, 1) if groups % count == 0)
    runs = blocks_for(layout.problem.H * layout.width, WARP // across)
    return blocks_for(runs * (groups // across), _WARPS), across


@cache
def kernels(layout: Layout) -> tuple[Kernel, ...]:
    """`tensor_largest`, `tensor_halves` and, where images are sampled, `tensor_resplit`."""
    blocks, across = _blocks(layout)
    sizes = {"THREADS": THREADS, "SHARES": _shares(layout), "BLOCKS": blocks, "ACROSS": across}
    sizes |= {"SAMPLE": sample(layout), "HEAD": HEAD if layout.sampled else 0}
    defines = tuple((layout.defines() | sizes).items())
    names = ("tensor_largest", "tensor_halves", "tensor_resplit")[: 2 + layout.sampled]
    return tuple(Kernel(_SOURCE, name, defines, ABLE) for name in names)


class Images:
    """Split images on the device, the exponent that each was scaled by, and what became of it.

    `packed` has room for `room` images, `found` a number an image and share, `tops`, `reached` and
    `beyond` one an image.
    """

    def __init__(self, layout: Layout, room: int) -> None:
        made = cupy.zeros if layout.planes else cupy.empty  # between planes' images zeros stay
        self.layout, self.room = layout, room
        self.packed = made(layout.bytes(room), cupy.uint8)
        self.found = cupy.empty(room * _shares(layout), cupy.uint32)
        self.tops = cupy.empty(room, cupy.int32)
        self.reached, self.beyond = (cupy.empty(room, cupy.uint32) for _ in range(2))

    def fill(self, x: Any, lifts: Any, images: int) -> None:
        """Split `images` images of `x` by the channels' `lifts`, on the current stream."""
        largest, halves, *again = kernels(self.layout)
        plane, blocks = np.int32(self.layout.plane(self.room)), images * _blocks(self.layout)[0]

        def launched(kernel: Kernel, blocks: int, *args: Any) -> None:
            launch(kernel, (blocks,), (THREADS,), (x, lifts, *args), overlap=True)

        held = self.tops, self.packed, self.beyond, plane
        launched(largest, images * _shares(self.layout), self.found, self.reached, self.beyond)
        launched(halves, blocks, self.found, *held)
        for resplit in again:
            launched(resplit, min(_RESPLIT_BLOCKS, blocks), *held, np.int32(images))
