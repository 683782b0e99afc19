"""Argmax with unrolled comparisons: all pairs of an image's scores are compared at once.

On a CPU the differences of all pairs are one BLAS product, x (n, K) @ pairs (K, K(K-1)/2), like the
unrolled convolution in the report's section 2.2.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.blas import matmul
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import images_within
from lenetgpu.problems import FLOAT_BYTES, Argmax
from lenetgpu.stages.defines import launch_each
from lenetgpu.stages.registry import argmax_variant, of_shape

_CPU_WORKSPACE_BYTES = 8 << 20


def _prepare(w: None, problem: Argmax, batch: int) -> SimpleNamespace:
    """Return the constant matrices of both products, and workspace for `chunk` images.

    `pairs` (K, P) holds 1 and -1 in the rows of a pair's two scores; `tally` (P, K) is its
    transpose. The largest score i wins its K - 1 - i pairs as first member.
    """
    k = problem.K
    first, second = np.triu_indices(k, 1)
    columns = np.arange(len(first))
    pairs = np.zeros((k, len(first)), np.float32)
    pairs[first, columns], pairs[second, columns] = 1, -1
    per_image = FLOAT_BYTES * (len(first) + k)
    chunk = images_within(batch, per_image, _CPU_WORKSPACE_BYTES)
    numbers = np.arange(k, dtype=np.float32)
    return SimpleNamespace(
        pairs=pairs,
        tally=np.ascontiguousarray(pairs.T),
        most=k - 1 - numbers,
        differences=np.empty((chunk, len(first)), np.float32),
        counts=np.empty((chunk, k), np.float32),
        chunk=chunk,
    )


@argmax_variant(
    family="unrolled",
    also="cublas.blas",
    prepare=_prepare,
    paper="report 3.3 in the manner of its 2.2, on a CPU",
)
def blas(x: Any, w: SimpleNamespace, y: Any, problem: Argmax) -> None:
    """Differences of all pairs of scores by one BLAS product, numbers of wins by another."""
    most = np.finfo(np.float32).max
    for lo in range(0, len(x), w.chunk):
        part = np.clip(x[lo : lo + w.chunk], -most, most)  # infinity times 0 would be NaN
        wins, counts = w.differences[: len(part)], w.counts[: len(part)]
        with np.errstate(over="ignore"):
            matmul(part, w.pairs, wins)
        np.greater_equal(wins, 0, out=wins)
        matmul(wins, w.tally, counts)
        y[lo : lo + len(part)] = (counts == w.most).argmax(axis=1)


@cache
def _kernel(problem: Argmax) -> Kernel:
    return Kernel.beside(__file__, "argmax_pairs", K=problem.K, THREADS=256)


@argmax_variant(
    family="unrolled",
    kernels=of_shape(_kernel),
    paper="report 3.3 in the manner of its 2.2.1",
)
def pairs(x: Any, y: Any, problem: Argmax) -> None:
    """One thread per score compares it with the image's others; the maximum's thread writes."""
    launch_each(_kernel(problem), x.size, x, y)
