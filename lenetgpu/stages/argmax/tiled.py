"""Argmax by tiles of images x scores: in registers on a CPU, in shared memory on a GPU."""

from functools import cache
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.cpu.threads import parallel_ranges
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Argmax
from lenetgpu.stages.registry import argmax_variant, of_shape

_IMAGES = 128
_TILE = 32
_LEAST = 4096  # images per thread below which another thread does not pay off


@lazy_njit
def _four(x, y, lo, hi):  # type: ignore[no-untyped-def]
    """Compute labels lo to hi four images at a time, and the remainder one at a time."""
    n = lo
    while n < hi:
        wide = 4 if n + 4 <= hi else 1
        second, third, fourth = wide // 4, wide // 2, wide * 3 // 4
        a = b = c = d = 0
        for k in range(1, x.shape[1]):
            a = k if x[n, k] > x[n, a] else a
            b = k if x[n + second, k] > x[n + second, b] else b
            c = k if x[n + third, k] > x[n + third, c] else c
            d = k if x[n + fourth, k] > x[n + fourth, d] else d
        y[n], y[n + second], y[n + third], y[n + fourth] = a, b, c, d
        n += wide


@argmax_variant(family="tiled", paper="report 3.3.1 on a CPU")
def four(x: Any, y: Any, problem: Argmax) -> None:
    """Four images at a time, running maxima in registers, on all cores."""
    parallel_ranges(len(x), lambda lo, hi: _four(x, y, lo, hi), least=_LEAST)


@cache
def _kernel(problem: Argmax) -> Kernel:
    tile = {"IMAGES": _IMAGES, "TILE": min(_TILE, problem.K), "THREADS": _IMAGES}
    return Kernel.beside(__file__, "argmax_tile", K=problem.K, **tile)


@argmax_variant(
    family="tiled",
    kernels=of_shape(_kernel),
    paper="report 3.3.1, with the loads of its 2.1.3",
)
def shared(x: Any, y: Any, problem: Argmax) -> None:
    """Tiles of images x scores, loaded coalesced into shared memory; one thread per image."""
    grid = (blocks_for(len(x), _IMAGES),)
    launch(_kernel(problem), grid, (_IMAGES,), (x, y, np.int32(len(x))))
