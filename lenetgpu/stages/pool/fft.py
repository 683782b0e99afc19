"""Pools as a box filter by FFT: the method of the report's section 2.4 for its section 3.2."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import images_within
from lenetgpu.problems import Conv, Pool
from lenetgpu.stages.conv.fft import fft_kernels, fft_plan, fft_size
from lenetgpu.stages.defines import launch_each, map_defines
from lenetgpu.stages.registry import of_shape, pool_variant

_CPU_WORKSPACE_BYTES = 32 << 20
_MAPS = ("NCHW", "NHWC")


def _box(problem: Pool) -> Conv:
    """Return the mean as a convolution: each channel with its own 2x2 box filter of stride 2."""
    box = Conv(*problem.in_shape, problem.C, 2, 2, stride=2)
    return replace(box, reads=problem.reads, writes=problem.writes)


def _spectrum(size: tuple[int, int]) -> Any:
    """Return the conjugate spectrum of the box filter, (rows, columns/2 + 1) complex64."""
    return np.fft.rfft2(np.full((2, 2), 0.25), s=size).conj().astype(np.complex64)


def _prepare_cpu(w: None, problem: Pool, batch: int) -> tuple[Any, tuple[int, int], int]:
    size = fft_size(_box(problem))
    per_image = 8 * size[0] * size[1] * problem.C
    return _spectrum(size)[..., None], size, images_within(batch, per_image, _CPU_WORKSPACE_BYTES)


@pool_variant(
    family="fft",
    prepare=_prepare_cpu,
    paper="report 2.4 and 3.2 on a CPU: a mean is a box filter",
)
def pocketfft(x: Any, w: tuple[Any, tuple[int, int], int], y: Any, problem: Pool) -> None:
    """ReLU, real FFTs of NumPy, times a box's spectrum, inverse FFT, every second output."""
    spectrum, size, chunk = w
    for lo in range(0, len(x), chunk):
        rectified = np.maximum(x[lo : lo + chunk], 0)
        product = np.fft.rfft2(rectified, s=size, axes=(1, 2)) * spectrum
        maps = np.fft.irfft2(product, s=size, axes=(1, 2))
        y[lo : lo + chunk] = maps[:, : problem.H : 2, : problem.W : 2]


@cache
def _kernels(problem: Pool) -> tuple[Kernel, ...]:
    rows, columns = fft_size(_box(problem))
    defines = map_defines(problem) | {"FFT_H": rows, "FFT_W": columns, "THREADS": 128}
    _, _, crop = fft_kernels(_box(problem))
    pad = Kernel.beside(__file__, "pad_rectified", **defines)
    return pad, Kernel.beside(__file__, "box_spectrum", **defines), crop


def _prepare_gpu(w: None, problem: Pool, batch: int) -> SimpleNamespace:
    rows, columns = size = fft_size(_box(problem))
    half = columns // 2 + 1
    chunk = images_within(batch, 8 * rows * (columns + half) * problem.C)
    maps = chunk * problem.C
    return SimpleNamespace(
        box=cupy.asarray(_spectrum(size)),
        padded=cupy.zeros((chunk, problem.C, rows, columns), cupy.float32),
        spectrum=cupy.empty((chunk, problem.C, rows, half), cupy.complex64),
        maps=cupy.empty((chunk, problem.C, rows, columns), cupy.float32),
        forward=fft_plan(size, maps, inverse=False),
        inverse=fft_plan(size, maps, inverse=True),
        chunk=chunk,
    )


@pool_variant(
    family="fft",
    reads=_MAPS,
    writes=_MAPS,
    prepare=_prepare_gpu,
    kernels=of_shape(_kernels),
    paper="report 2.4 and 3.2: a mean is a box filter",
)
def cufft(x: Any, w: SimpleNamespace, y: Any, problem: Pool) -> None:
    """ReLU, cuFFT of every map, times a box's spectrum, inverse cuFFT, every second output."""
    pad, multiply, crop = _kernels(problem)
    for lo in range(0, len(x), w.chunk):
        part, out = x[lo : lo + w.chunk], y[lo : lo + w.chunk]
        launch_each(pad, len(part) * w.padded[0].size, part, w.padded)
        w.forward.fft(w.padded, w.spectrum, -1)
        launch_each(multiply, len(part) * w.spectrum[0].size, w.spectrum, w.box)
        w.inverse.fft(w.spectrum, w.maps, 1)
        launch_each(crop, out.size, w.maps, out)
