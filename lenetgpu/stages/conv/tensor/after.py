"""What follows a product: parts of a split depth added, and a second look in float64.

The look is for images that fp16 high and low may not have held.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.conv.tensor.halves import HEAD
from lenetgpu.stages.conv.tensor.packed import ABLE, Layout

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_THREADS = 256
_MOST_BLOCKS = 264
# Below 2^15 fp16 high and low are off by 2^-25 at most. Operands of a sum of `depth` products are
# off by depth * 2^(15 - 24) then, if all are the same way; outputs 2^20 times that are right to
# 1e-6. Where images are sampled their scale has HEAD powers to spare: 2^17 times, right to 8e-6.
_ROOM = 15 - 24 + 20


def room(layout: Layout) -> int:
    """The exponent of the least largest output, of scaled operands, that needs no second look."""
    spare = HEAD if layout.sampled else 0
    cancelled = int(layout.pairs)  # a power: points of pairs may cancel
    return _ROOM + int(layout.problem.depth).bit_length() + cancelled - spare


def _kernel(name: str, layout: Layout, **more: int) -> Kernel:
    defines = layout.defines() | more | {"THREADS": _THREADS}
    return Kernel(_SOURCE, name, tuple(defines.items()), ABLE)


def kernel(layout: Layout) -> Kernel:
    """`tensor_again`."""
    return _kernel("tensor_again", layout)


def meeting(layout: Layout, split: int) -> Kernel:
    """`tensor_meet`, of `split` parts."""
    return _kernel("tensor_meet", layout, SPLIT=split)


def _blocks(layout: Layout, images: int) -> int:
    problem = layout.problem
    return blocks_for(images * problem.OH * problem.OW * problem.M, _THREADS)


def again(
    layout: Layout, x: Any, w: Any, bias: Any, images: Any, y: Any, count: int, worst: int
) -> None:
    """Look at `count` images of `y`, by what `images` says of each; queue what must be done.

    `w` are the float32 filters (R, S, C, M), `worst` their largest drop, `bias` float32 as well.
    """
    numbers = (np.int32(number) for number in (count, worst, room(layout)))
    args = (x, w, images.tops, images.reached, y, *numbers, bias)
    blocks = min(_MOST_BLOCKS, _blocks(layout, count))
    launch(kernel(layout), (blocks,), (_THREADS,), args, overlap=True)


def meet(layout: Layout, split: int, images: int, args: tuple[Any, ...]) -> None:
    """Add the parts of `images` images, on the current stream.

    `args` are (parts, tops, drops, y, reached, bias).
    """
    *first, bias = args
    args = (*first, np.int32(images), bias)
    launch(meeting(layout, split), (_blocks(layout, images),), (_THREADS,), args, overlap=True)
