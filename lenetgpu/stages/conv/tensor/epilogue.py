"""Epilogue of the implicit GEMM: reduction of split-K parts, float64 recheck of outputs."""

from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.conv.tensor.packed import ABLE, Layout
from lenetgpu.stages.conv.tensor.split_fp16 import HEAD

_THREADS = 256
_MOST_BLOCKS = 264
# Least exponent of an image's largest scaled output that needs no recheck, for one product.
# Errors of split fp16 below 2^15 are at most 2^-25, so those of K products sum to K * 2^(15 - 24);
# outputs 2^20 times as large are accurate to 1e-6. Sampled images have 2^HEAD times the error.
_THRESHOLD = 15 - 24 + 20


def _kernel(name: str, layout: Layout, **more: int) -> Kernel:
    return Kernel.beside(__file__, name, ABLE, **layout.defines(), **more, THREADS=_THREADS)


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
    """Recheck `count` images of `y` from their records `images`; recompute inaccurate outputs.

    `w` are float32 filters (R, S, C, M); `worst` is their largest output scale exponent.
    """
    threshold = _THRESHOLD + int(layout.problem.gemm_k).bit_length() - HEAD * layout.sampled
    threshold += layout.winograd  # one power of two: transform points may cancel
    numbers = (np.int32(number) for number in (count, worst, threshold))
    args = (x, w, images.exponents, images.reached, y, *numbers, bias)
    blocks = min(_MOST_BLOCKS, _blocks(layout, count))
    launch(kernel(layout), (blocks,), (_THREADS,), args, overlap=True)


def reduce(layout: Layout, split: int, images: int, args: tuple[Any, ...]) -> None:
    """Add parts of `images` images; `args`: parts, exponents, out_scales, y, reached, bias."""
    *first, bias = args
    args = (*first, np.int32(images), bias)
    launch(reduction(layout, split), (_blocks(layout, images),), (_THREADS,), args, overlap=True)
