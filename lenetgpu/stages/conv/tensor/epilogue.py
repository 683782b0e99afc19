"""Epilogue of a product: the reduction of split-K parts, and a float64 recheck of outputs.

The recheck covers images that split fp16 may represent too coarsely.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.conv.tensor.packed import ABLE, Layout
from lenetgpu.stages.conv.tensor.split_fp16 import HEAD

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_THREADS = 256
_MOST_BLOCKS = 264
# Split fp16 values below 2^15 have an error of at most 2^-25. In a sum of K products these
# errors add up to at most K * 2^(15 - 24); outputs 2^20 times as large are accurate to 1e-6.
# Scales of sampled images leave HEAD powers of two unused: 2^17 times as large, accurate to 8e-6.
_THRESHOLD = 15 - 24 + 20


def threshold(layout: Layout) -> int:
    """Return the least exponent of an image's largest scaled output that needs no recheck."""
    spare = HEAD if layout.sampled else 0
    cancelled = int(layout.winograd)  # one power of two: transform points may cancel
    return _THRESHOLD + int(layout.problem.gemm_k).bit_length() + cancelled - spare


def _kernel(name: str, layout: Layout, **more: int) -> Kernel:
    defines = layout.defines() | more | {"THREADS": _THREADS}
    return Kernel(_SOURCE, name, tuple(defines.items()), ABLE)


def kernel(layout: Layout) -> Kernel:
    """Return the kernel `tensor_recheck`."""
    return _kernel("tensor_recheck", layout)


def reduction(layout: Layout, split: int) -> Kernel:
    """Return the kernel `tensor_reduce` for `split` parts."""
    return _kernel("tensor_reduce", layout, SPLIT=split)


def _blocks(layout: Layout, images: int) -> int:
    problem = layout.problem
    return blocks_for(images * problem.OH * problem.OW * problem.M, _THREADS)


def recheck(
    layout: Layout, x: Any, w: Any, bias: Any, images: Any, y: Any, count: int, worst: int
) -> None:
    """Recheck `count` images of `y` by the records in `images`; recompute outputs where needed.

    `w` are the float32 filters (R, S, C, M), `worst` is their largest output scale exponent,
    `bias` is float32.
    """
    numbers = (np.int32(number) for number in (count, worst, threshold(layout)))
    args = (x, w, images.exponents, images.reached, y, *numbers, bias)
    blocks = min(_MOST_BLOCKS, _blocks(layout, count))
    launch(kernel(layout), (blocks,), (_THREADS,), args, overlap=True)


def reduce(layout: Layout, split: int, images: int, args: tuple[Any, ...]) -> None:
    """Add the parts of `images` images on the current stream.

    `args` are (parts, exponents, out_scales, y, reached, bias).
    """
    *first, bias = args
    args = (*first, np.int32(images), bias)
    launch(reduction(layout, split), (_blocks(layout, images),), (_THREADS,), args, overlap=True)
