"""The parts of a split depth, added to outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.conv.tensor.packed import Layout

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_THREADS = 256


def kernel(layout: Layout, split: int) -> Kernel:
    """`tensor_meet`, of `split` parts."""
    defines = layout.defines() | {"SPLIT": split, "THREADS": _THREADS}
    return Kernel(_SOURCE, "tensor_meet", tuple(defines.items()))


def meet(layout: Layout, split: int, images: int, args: tuple[Any, ...]) -> None:
    """Add the parts of `images` images, on the current stream: (parts, tops, drops, y, reached)."""
    import numpy as np

    problem = layout.problem
    blocks = blocks_for(images * problem.OH * problem.OW * problem.M, _THREADS)
    args = (*args, np.int32(images))
    launch(kernel(layout, split), (blocks,), (_THREADS,), args, overlap=True)
