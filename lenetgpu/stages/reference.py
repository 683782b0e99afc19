"""Reference outputs, in float64, for every kind of stage."""

from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.blas import matmul
from lenetgpu.layouts import widened
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.problems import Argmax, Conv, ConvPool, Fc, Pool, Relayout, Scale


def conv_pool_reference(x: Any, w: Any, problem: ConvPool) -> Any:
    """Compute convolution, ReLU, 2x2 mean in float64: (N, H, W, C) -> (N, OH/2, OW/2, M)."""
    return pool_reference(conv_reference(x, w, problem.conv), problem.pool)


def scale_reference(x: Any, problem: Scale) -> Any:
    """Return pixels over 255 in float64, or floats unchanged: (N, H, W, C)."""
    values = np.asarray(x, np.float64)
    return values / PIXEL_SCALE if problem.dtype == "uint8" else values


def relayout_reference(x: Any, problem: Relayout) -> Any:
    """Return `x` unchanged, because a layout conversion changes no value: (N, H, W, C)."""
    return np.asarray(x, np.float64)


def pool_reference(x: Any, problem: Pool) -> Any:
    """Compute max(x, 0), then 2x2 means, in float64: (N, H, W, C) -> (N, H/2, W/2, C)."""
    x = np.maximum(np.asarray(x, np.float64), 0)
    n = len(x)
    return x.reshape(n, problem.H // 2, 2, problem.W // 2, 2, problem.C).mean(axis=(2, 4))


def fc_reference(x: Any, w: Any, problem: Fc) -> Any:
    """Compute x (N, K) @ w (K, M) in float64, then ReLU if the problem has one: (N, M)."""
    y = matmul(np.asarray(x, np.float64), np.asarray(w, np.float64))
    return np.maximum(y, 0) if problem.relu else y


def argmax_reference(x: Any, problem: Argmax) -> Any:
    """Return the index of the first largest of K scores: (N, K) -> (N,) int32."""
    return np.asarray(x).argmax(axis=1).astype(np.int32)


def conv_reference(x: Any, w: Any, problem: Conv, arrays: Any = None) -> Any:
    """Cross-correlate in float64: x (N, H, W, C), w (R, S, C / groups, M) -> (N, OH, OW, M).

    With a bias, `w` is (filters, bias (M,)). `arrays` is NumPy by default, or CuPy.
    """
    import numpy

    np, product = arrays or numpy, matmul if arrays is None else arrays.matmul
    w, *biases = w if problem.bias else (w,)
    x, w, *biases = (widened(np.asarray(tensor)).astype(np.float64) for tensor in (x, w, *biases))
    above, left, below, right = problem.around
    x = np.pad(x, ((0, 0), (above, below), (left, right), (0, 0)))
    groups, (channels, maps) = problem.groups, problem.each
    y = np.zeros((groups, len(x) * problem.OH * problem.OW, maps))
    sizes = problem.dilation, problem.step, (problem.OH, problem.OW)
    for r in range(problem.R):
        for s in range(problem.S):
            rows, columns = (
                slice(first * far, first * far + by * (fits - 1) + 1, by)
                for first, far, by, fits in zip((r, s), *sizes, strict=True)
            )
            seen = x[:, rows, columns, :].reshape(-1, groups, channels)
            filters = w[r, s].reshape(channels, groups, maps)
            y += product(seen.transpose(1, 0, 2), filters.transpose(1, 0, 2))
    y = y.transpose(1, 0, 2).reshape(len(x), *problem.out_shape)
    for bias in biases:
        y += bias
    return np.maximum(y, 0.0) if problem.relu else y
