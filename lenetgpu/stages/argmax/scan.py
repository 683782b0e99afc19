"""Argmax by a library on a CPU, and the report's GPU versions (section 3.3)."""

from functools import cache, partial
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Argmax
from lenetgpu.stages.registry import argmax_variant, cuda, of_shape, variant
from lenetgpu.stages.sectors import WARP, Counted, counted, explained


@lazy_njit
def _loops(x, y):  # type: ignore[no-untyped-def]
    for n in range(x.shape[0]):
        best = 0
        for k in range(1, x.shape[1]):
            if x[n, k] > x[n, best]:
                best = k
        y[n] = best


@argmax_variant(family="serial", paper="report 3.3, table 12: the serial code")
def loops(x: Any, y: Any, problem: Argmax) -> None:
    """Two nested loops, over images and their scores, on one CPU thread."""
    _loops(x, y)


_THREAD_IMAGES = 128
_COURSE_IMAGES = 1024
_LIST_THREADS = 256


@argmax_variant(family="numpy")
def argmax(x: Any, y: Any, problem: Argmax) -> None:
    """NumPy's argmax over the rows."""
    y[:] = x.argmax(axis=1)


@cache
def _thread(problem: Argmax, images: int) -> Kernel:
    return Kernel.beside(__file__, "argmax_thread", K=problem.K, IMAGES=images)


def _images(kernel: Kernel) -> int:
    """Return the images per block."""
    return int(dict(kernel.defines)["IMAGES"])


def _scan(kernel: Kernel, block: tuple[int, ...], x: Any, y: Any) -> None:
    launch(kernel, (blocks_for(len(x), _images(kernel)),), block, (x, y, np.int32(len(x))))


scan = partial(variant, kind="argmax", needs=cuda())


@scan(
    family="thread",
    kernels=of_shape(lambda problem: _thread(problem, _THREAD_IMAGES)),
    paper="after report 3.3.1: smaller blocks, on more multiprocessors",
)
def per_image(x: Any, y: Any, problem: Argmax) -> None:
    """One thread scans the scores of one image."""
    _scan(_thread(problem, _THREAD_IMAGES), (_THREAD_IMAGES,), x, y)


def access_counts(problem: Argmax) -> tuple[Counted, Counted]:
    """Loads and stores of a warp: 32 images, K scores each."""
    lane, k = np.arange(WARP)[None, :], np.arange(problem.K)[:, None]
    return counted(lane * problem.K + k), counted(lane)


@scan(
    family="thread",
    kernels=of_shape(lambda problem: _thread(problem, _COURSE_IMAGES)),
    explain=explained(access_counts),
    paper="report 3.3.1, table 12, figs 4 to 6: argMaxParallel",
)
def wide_blocks(x: Any, y: Any, problem: Argmax) -> None:
    """One thread scans the scores of one image, 1,024 threads per block."""
    _scan(_thread(problem, _COURSE_IMAGES), (_COURSE_IMAGES,), x, y)


@cache
def _list(problem: Argmax) -> Kernel:
    images = max(1, _LIST_THREADS // ((problem.K + 1) // 2))
    return Kernel.beside(__file__, "argmax_list", K=problem.K, IMAGES=images)


@scan(
    family="reduction",
    kernels=of_shape(_list),
    default=True,
    supports=lambda problem: None if problem.K <= 512 else "supports at most 512 scores",
    paper="report 3.3.2, which left it unbuilt",
)
def list_(x: Any, y: Any, problem: Argmax) -> None:
    """Half as many threads as scores reduce the list pair by pair in shared memory."""
    kernel = _list(problem)
    _scan(kernel, ((problem.K + 1) // 2, _images(kernel)), x, y)


@cache
def _shuffle(problem: Argmax) -> Kernel:
    lanes = min(32, 1 << (problem.K - 1).bit_length())
    groups = {"LANES": lanes, "IMAGES": _LIST_THREADS // lanes}
    return Kernel.beside(__file__, "argmax_shuffle", K=problem.K, **groups)


@scan(family="reduction", kernels=of_shape(_shuffle), paper="report 3.3.2 without its barriers")
def shuffle(x: Any, y: Any, problem: Argmax) -> None:
    """A group of lanes per image reduces by warp shuffles."""
    _scan(_shuffle(problem), (_LIST_THREADS,), x, y)
