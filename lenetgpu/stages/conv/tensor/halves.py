"""Images to fp16 high and low on the GPU, each scaled by its largest input."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Split:
    """The launches for images of a layout: who finds the largest, who splits, who splits anew."""

    layout: Layout

    @property
    def sample(self) -> int:
        """Of how many lines of an image one is looked at for its largest input."""
        return SAMPLE if self.layout.sampled else 1

    @property
    def shares(self) -> int:
        """Blocks that look for an image's largest input: a power of two."""
        problem = self.layout.problem
        read = blocks_for(problem.H * problem.W * problem.C, self.sample)
        wanted = blocks_for(read, THREADS * _INPUTS_A_THREAD)
        return int(min(_MOST_SHARES, 1 << (wanted - 1).bit_length()))

    @property
    def blocks(self) -> int:
        """Blocks that split an image: a warp takes `across` cells of each of its pixels."""
        runs = blocks_for(self.layout.problem.H * self.layout.width, WARP // self.across)
        return blocks_for(runs * (self._groups // self.across), _WARPS)

    @property
    def _groups(self) -> int:
        return blocks_for(self.layout.held, CELL)

    @property
    def across(self) -> int:
        """Neighbouring cells of a pixel that a warp takes: one where both sides are planes."""
        alone = self.layout.planes and self.layout.problem.reads == "NCHW"
        return 1 if alone else next(count for count in (4, 2, 1) if self._groups % count == 0)

    def kernels(self) -> tuple[Kernel, ...]:
        """`tensor_largest`, `tensor_halves` and, where images are sampled, `tensor_resplit`."""
        sizes = {"THREADS": THREADS, "SHARES": self.shares, "BLOCKS": self.blocks}
        sizes |= {"ACROSS": self.across, "SAMPLE": self.sample}
        sizes["HEAD"] = HEAD if self.sample > 1 else 0
        defines = tuple((self.layout.defines() | sizes).items())
        names = ("tensor_largest", "tensor_halves", "tensor_resplit")[: 2 + (self.sample > 1)]
        return tuple(Kernel(_SOURCE, name, defines, ABLE) for name in names)


@dataclass(frozen=True)
class Images:
    """Split images on the device, the exponent that each was scaled by, and what became of it.

    `packed` has room for `room` images, `found` a number an image and share, `tops`, `reached` and
    `beyond` one an image.
    """

    room: int
    packed: Any
    found: Any
    tops: Any
    reached: Any
    beyond: Any

    @staticmethod
    def empty(split: Split, images: int) -> Images:
        """Room for `images` images."""
        layout = split.layout
        made = cupy.zeros if layout.planes else cupy.empty  # between planes' images zeros stay
        packed = made(layout.bytes(images), cupy.uint8)
        found = cupy.empty(images * split.shares, cupy.uint32)
        tops = cupy.empty(images, cupy.int32)
        reached, beyond = (cupy.empty(images, cupy.uint32) for _ in range(2))
        return Images(images, packed, found, tops, reached, beyond)

    def fill(self, split: Split, x: Any, lifts: Any, images: int) -> None:
        """Split `images` images of `x` by the channels' `lifts`, on the current stream."""
        largest, halves, *again = split.kernels()
        plane, blocks = np.int32(split.layout.plane(self.room)), images * split.blocks

        def launched(kernel: Kernel, blocks: int, *args: Any) -> None:
            launch(kernel, (blocks,), (THREADS,), (x, lifts, *args), overlap=True)

        held = self.tops, self.packed, self.beyond, plane
        launched(largest, images * split.shares, self.found, self.reached, self.beyond)
        launched(halves, blocks, self.found, *held)
        for resplit in again:
            launched(resplit, min(_RESPLIT_BLOCKS, blocks), *held, np.int32(images))
