"""Images to fp16 high and low on the GPU, each scaled by its largest input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import WARP
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.conv.tensor.packed import ABLE, CELL, Layout

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
THREADS = 256
_MOST_SHARES = 128  # so that one image alone has a block for every multiprocessor
_INPUTS_A_THREAD = 16
_WARPS = THREADS // WARP


@dataclass(frozen=True)
class Split:
    """Both launches for images of a layout: who finds the largest, who splits."""

    layout: Layout

    @property
    def shares(self) -> int:
        """Blocks that look for an image's largest input: a power of two."""
        problem = self.layout.problem
        wanted = blocks_for(problem.H * problem.W * problem.C, THREADS * _INPUTS_A_THREAD)
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

    def kernels(self) -> tuple[Kernel, Kernel]:
        """`tensor_largest` and `tensor_halves`."""
        sizes = {"THREADS": THREADS, "SHARES": self.shares, "BLOCKS": self.blocks}
        sizes["ACROSS"] = self.across
        defines = tuple((self.layout.defines() | sizes).items())
        names = ("tensor_largest", "tensor_halves")
        first, second = (Kernel(_SOURCE, name, defines, ABLE) for name in names)
        return first, second


@dataclass(frozen=True)
class Images:
    """Split images on the device, the exponent that each was scaled by, and what became of it.

    `packed` has room for `room` images, `found` a number an image and share, `tops` and `reached`
    one an image.
    """

    room: int
    packed: Any
    found: Any
    tops: Any
    reached: Any

    @staticmethod
    def empty(split: Split, images: int) -> Images:
        """Room for `images` images."""
        import cupy

        layout = split.layout
        made = cupy.zeros if layout.planes else cupy.empty  # between planes' images zeros stay
        return Images(
            images,
            made(layout.bytes(images), cupy.uint8),
            cupy.empty(images * split.shares, cupy.uint32),
            cupy.empty(images, cupy.int32),
            cupy.empty(images, cupy.uint32),
        )

    def fill(self, split: Split, x: Any, lifts: Any, images: int) -> None:
        """Split `images` images of `x` by the channels' `lifts`, on the current stream."""
        import numpy as np

        largest, halves = split.kernels()
        plane = np.int32(split.layout.plane(self.room))
        launch(
            largest,
            (images * split.shares,),
            (THREADS,),
            (x, lifts, self.found, self.reached),
            overlap=True,
        )
        launch(
            halves,
            (images * split.blocks,),
            (THREADS,),
            (x, lifts, self.found, self.tops, self.packed, plane),
            overlap=True,
        )
