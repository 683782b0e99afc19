"""Convolution by FFT, which the report's server could not run (section 2.4)."""

from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.cpu.blas import matmul
from lenetgpu.cpu.memory import require_free
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import images_within
from lenetgpu.problems import Conv
from lenetgpu.stages.defines import MAPS, conv_kernel, launch_each
from lenetgpu.stages.registry import conv_variant, of_shape

_CPU_WORKSPACE_BYTES = 32 << 20
_THREADS = 128
_IMAGES_EACH = 4
_MAPS_EACH = 4


def fast_length(n: int) -> int:
    """Return the smallest even number >= `n` whose prime factors are all at most 7."""
    # 210 ** 32 has every such number below 2 ** 32 as a divisor
    return next(length for length in count(max(2, n + n % 2), 2) if 210**32 % length == 0)


def fft_size(problem: Conv) -> tuple[int, int]:
    """Return the transform size: the padded image, so that no valid output wraps around."""
    rows, columns = problem.padded
    return fast_length(rows), fast_length(columns)


@dataclass
class CpuSpectrum:
    """Conjugate filter spectrum, (frequencies, C, M) complex64."""

    filters: Any
    size: tuple[int, int]
    chunk: int


def cpu_spectrum(w: Any, problem: Conv, batch: int) -> CpuSpectrum:
    """Prepare `pocketfft` for filters `w` (R, S, C, M); raise MemoryError if too little is free."""
    size = fft_size(problem)
    far, wide = problem.dilation
    frequencies, pairs = size[0] * (size[1] // 2 + 1), problem.C * problem.M
    require_free(32 * frequencies * pairs)
    spread = np.zeros((*problem.span, problem.C, problem.M))
    spread[::far, ::wide] = w
    spectrum = np.fft.rfft2(spread, s=size, axes=(0, 1)).conj()
    filters = np.ascontiguousarray(spectrum.reshape(-1, problem.C, problem.M), np.complex64)
    per_image = 8 * frequencies * (problem.C + problem.M)
    return CpuSpectrum(filters, size, images_within(batch, per_image, _CPU_WORKSPACE_BYTES))


@conv_variant(
    family="fft",
    options="strides pads dilation",
    prepare=cpu_spectrum,
    paper="report 2.4 on a CPU",
)
def pocketfft(x: Any, w: CpuSpectrum, y: Any, problem: Conv) -> None:
    """Real FFTs of NumPy, a complex matrix product per frequency, inverse FFT."""
    rows, columns = w.size
    (above, left, below, right), (down, across) = problem.around, problem.step
    for lo in range(0, len(x), w.chunk):
        part = x[lo : lo + w.chunk]
        n = len(part)
        if any(problem.around):
            part = np.pad(part, ((0, 0), (above, below), (left, right), (0, 0)))
        spectrum = np.fft.rfft2(part, s=w.size, axes=(1, 2))
        by_frequency = spectrum.reshape(n, -1, problem.C).transpose(1, 0, 2)
        product = matmul(by_frequency.astype(np.complex64, copy=False), w.filters)
        folded = product.transpose(1, 0, 2).reshape(n, rows, columns // 2 + 1, problem.M)
        maps = np.fft.irfft2(folded, s=w.size, axes=(1, 2))
        y[lo : lo + n] = maps[:, : down * problem.OH : down, : across * problem.OW : across]


@dataclass
class GpuSpectrum:
    """Filter spectrum (C, M, frequencies), plans and workspaces for `chunk` images."""

    filters: Any
    padded: Any
    spectrum: Any
    product: Any
    maps: Any
    forward: Any
    inverse: Any
    chunk: int


@cache
def fft_kernels(problem: Conv) -> tuple[Kernel, ...]:
    """Return the kernels around the transforms: pad images, multiply spectra, crop maps."""
    rows, columns = fft_size(problem)
    sizes = {"FFT_H": rows, "FFT_W": columns, "THREADS": _THREADS}
    each = {"IMAGES_EACH": _IMAGES_EACH, "MAPS_EACH": _MAPS_EACH}
    own = {"pad_image": {}, "spectrum_product": each, "crop_image": {}}
    return tuple(conv_kernel(__file__, name, problem, **sizes, **own[name]) for name in own)


def fft_plan(size: tuple[int, int], batch: int, inverse: bool) -> Any:
    """Return cuFFT's unscaled plan for `batch` real maps of `size` to half spectra, or back."""
    from cupy.cuda import cufft

    rows, columns = size
    real, half = (rows, columns), (rows, columns // 2 + 1)
    into, out = (half, real) if inverse else (real, half)
    kind = cufft.CUFFT_C2R if inverse else cufft.CUFFT_R2C
    lines = (into, 1, into[0] * into[1]), (out, 1, out[0] * out[1])
    return cufft.PlanNd(size, *lines[0], *lines[1], kind, batch, "C", 1, out[1])


def gpu_spectrum(w: Any, problem: Conv, batch: int) -> GpuSpectrum:
    """Prepare `cufft` for filters `w` (R, S, C, M) and up to `batch` images."""
    size = fft_size(problem)
    rows, columns = size
    half = columns // 2 + 1
    chunk = images_within(batch, 8 * rows * (half + columns // 2) * (problem.C + problem.M))
    by_map = cupy.asarray(w.transpose(2, 3, 0, 1), cupy.float64)
    inputs, outputs = (chunk, problem.C, rows), (chunk, problem.M, rows)
    return GpuSpectrum(
        cupy.ascontiguousarray(cupy.fft.rfft2(by_map, s=size), cupy.complex64),
        padded=cupy.zeros((*inputs, columns), cupy.float32),
        spectrum=cupy.empty((*inputs, half), cupy.complex64),
        product=cupy.zeros((*outputs, half), cupy.complex64),
        maps=cupy.empty((*outputs, columns), cupy.float32),
        forward=fft_plan(size, chunk * problem.C, inverse=False),
        inverse=fft_plan(size, chunk * problem.M, inverse=True),
        chunk=chunk,
    )


@conv_variant(
    family="fft",
    reads=MAPS[::-1],
    writes=MAPS[::-1],
    prepare=gpu_spectrum,
    kernels=of_shape(fft_kernels),
    paper="report 2.4",
)
def cufft(x: Any, w: GpuSpectrum, y: Any, problem: Conv) -> None:
    """cuFFT of the images, a complex product per frequency, inverse cuFFT."""
    pad, product, crop = fft_kernels(problem)
    for lo in range(0, len(x), w.chunk):
        part, out = x[lo : lo + w.chunk], y[lo : lo + w.chunk]
        n = len(part)
        launch_each(pad, n * w.padded[0].size, part, w.padded)
        w.forward.fft(w.padded, w.spectrum, -1)
        blocks = blocks_for(problem.M, _MAPS_EACH) * blocks_for(n, _IMAGES_EACH)
        grid = (blocks_for(w.filters.shape[2] * w.filters.shape[3], _THREADS) * blocks,)
        launch(product, grid, (_THREADS,), (w.spectrum, w.filters, w.product, np.int32(n)))
        w.inverse.fft(w.product, w.maps, 1)
        launch_each(crop, out.size, w.maps, out)
