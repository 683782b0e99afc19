"""Fully connected layers as valid convolutions: fc1 of pool2's 4x4x64 map, fc2 of a 1x1 map.

Flattened NHWC is already the order of fc1's inputs, so neither x nor w is rearranged.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import stage
from lenetgpu.problems import Conv, Fc
from lenetgpu.stages.conv import fft, unrolled
from lenetgpu.stages.fc.cublas import RELU, rectify
from lenetgpu.stages.registry import fc_variant, of_shape


def as_conv(problem: Fc) -> Conv:
    """Return the equivalent valid convolution: over pool2's map if `problem` reads it, or 1x1."""
    shape = stage("pool2").problem.out_shape
    height, width, channels = shape if prod(shape) == problem.K else (1, 1, problem.K)
    return Conv(height, width, channels, problem.M, height, width)


def _with_relu(problem: Fc, *kernels: Kernel) -> tuple[Kernel, ...]:
    return (*kernels, RELU) if problem.relu else kernels


@fc_variant(
    family="unrolled",
    kernels=of_shape(lambda problem: _with_relu(problem, unrolled.naive_kernel(as_conv(problem)))),
    paper="report 2.2.1 and figs 4-6: a layer is a valid convolution",
)
def naive(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """A convolution with filters as large as the map, one output per thread, then a ReLU kernel."""
    unrolled.naive(x, w, y, as_conv(problem))
    rectify(y, problem)


def _spectrum(make: Callable[[Any, Conv, int], Any], w: Any, problem: Fc, batch: int) -> Any:
    conv = as_conv(problem)
    return make(w.reshape(conv.weight_shape), conv, batch)


@fc_variant(
    family="fft",
    prepare=partial(_spectrum, fft.cpu_spectrum),
    paper="report 2.4 on a CPU: a layer is a valid convolution",
)
def pocketfft(x: Any, w: fft.CpuSpectrum, y: Any, problem: Fc) -> None:
    """A convolution with filters as large as the map, by NumPy's FFTs, then ReLU."""
    conv = as_conv(problem)
    fft.pocketfft(x.reshape(-1, *conv.in_shape), w, y.reshape(-1, *conv.out_shape), conv)
    if problem.relu:
        np.maximum(y, 0, out=y)


@fc_variant(
    family="fft",
    prepare=partial(_spectrum, fft.gpu_spectrum),
    kernels=of_shape(lambda problem: _with_relu(problem, *fft.fft_kernels(as_conv(problem)))),
    paper="report 2.4: a layer is a valid convolution",
)
def cufft(x: Any, w: fft.GpuSpectrum, y: Any, problem: Fc) -> None:
    """A convolution with filters as large as the map, by cuFFT, then a ReLU kernel."""
    fft.cufft(x, w, y, as_conv(problem))
    rectify(y, problem)
