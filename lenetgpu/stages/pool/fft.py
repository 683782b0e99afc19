"""Pools as a box filter by FFT: the report's section 2.4 on its section 3.2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import images_within
from lenetgpu.problems import Conv, Pool
from lenetgpu.stages.conv.fft import fft_kernels, fft_plan, fft_size
from lenetgpu.stages.defines import map_defines
from lenetgpu.stages.registry import of_shape, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_CPU_WORKSPACE_BYTES = 32 << 20
_THREADS = 128
_MAPS = ("NCHW", "NHWC")


def _box(problem: Pool) -> Conv:
    """The mean as a convolution, every channel with its own 2x2 box of stride 2."""
    c = problem.C
    reads, writes = problem.reads, problem.writes
    return Conv(problem.H, problem.W, c, c, 2, 2, stride=2, reads=reads, writes=writes)


def _spectrum(size: tuple[int, int]) -> Any:
    """Conjugate spectrum of the box filter, (rows, columns/2 + 1) complex64."""
    return np.fft.rfft2(np.full((2, 2), 0.25), s=size).conj().astype(np.complex64)


@dataclass
class _CpuBox:
    spectrum: Any
    size: tuple[int, int]
    chunk: int


def _prepare_cpu(w: None, problem: Pool, batch: int) -> _CpuBox:
    size = fft_size(_box(problem))
    per_image = 8 * size[0] * size[1] * problem.C
    chunk = images_within(batch, per_image, _CPU_WORKSPACE_BYTES)
    return _CpuBox(_spectrum(size)[..., None], size, chunk)


@variant(
    kind="pool",
    family="fft",
    prepare=_prepare_cpu,
    paper="report 2.4 and 3.2 on a CPU: a mean is a box filter",
)
def pocketfft(x: Any, w: _CpuBox, y: Any, problem: Pool) -> None:
    """ReLU, real FFTs of NumPy, times a box's spectrum, inverse FFT, every second output."""
    for lo in range(0, len(x), w.chunk):
        rectified = np.maximum(x[lo : lo + w.chunk], 0)
        product = np.fft.rfft2(rectified, s=w.size, axes=(1, 2)) * w.spectrum
        maps = np.fft.irfft2(product, s=w.size, axes=(1, 2))
        y[lo : lo + w.chunk] = maps[:, : problem.H : 2, : problem.W : 2]


@dataclass
class _GpuBox:
    """The box's spectrum, plans and workspaces for the maps of `chunk` images."""

    box: Any
    padded: Any
    spectrum: Any
    maps: Any
    forward: Any
    inverse: Any
    chunk: int


@cache
def _kernels(problem: Pool) -> tuple[Kernel, ...]:
    rows, columns = fft_size(_box(problem))
    size = {"FFT_H": rows, "FFT_W": columns, "THREADS": _THREADS}
    defines = tuple((map_defines(problem) | size).items())
    _, _, crop = fft_kernels(_box(problem))
    return (
        Kernel(_SOURCE, "pad_rectified", defines),
        Kernel(_SOURCE, "box_spectrum", defines),
        crop,
    )


def _prepare_gpu(w: None, problem: Pool, batch: int) -> _GpuBox:
    size = fft_size(_box(problem))
    rows, columns = size
    half = columns // 2 + 1
    chunk = images_within(batch, 8 * rows * (columns + half) * problem.C)
    maps = chunk * problem.C
    return _GpuBox(
        box=cupy.asarray(_spectrum(size)),
        padded=cupy.zeros((chunk, problem.C, rows, columns), cupy.float32),
        spectrum=cupy.empty((chunk, problem.C, rows, half), cupy.complex64),
        maps=cupy.empty((chunk, problem.C, rows, columns), cupy.float32),
        forward=fft_plan(size, maps, inverse=False),
        inverse=fft_plan(size, maps, inverse=True),
        chunk=chunk,
    )


@variant(
    kind="pool",
    family="fft",
    reads=_MAPS,
    writes=_MAPS,
    prepare=_prepare_gpu,
    kernels=of_shape(_kernels),
    paper="report 2.4 and 3.2: a mean is a box filter",
)
def cufft(x: Any, w: _GpuBox, y: Any, problem: Pool) -> None:
    """ReLU, cuFFT of every map, times a box's spectrum, inverse cuFFT, every second output."""
    pad, multiply, crop = _kernels(problem)

    def each(kernel: Kernel, elements: int, *arrays: Any) -> None:
        launch(kernel, (blocks_for(elements, _THREADS),), (_THREADS,), (*arrays, elements))

    for lo in range(0, len(x), w.chunk):
        part, out = x[lo : lo + w.chunk], y[lo : lo + w.chunk]
        each(pad, len(part) * w.padded[0].size, part, w.padded)
        w.forward.fft(w.padded, w.spectrum, -1)
        each(multiply, len(part) * w.spectrum[0].size, w.spectrum, w.box)
        w.inverse.fft(w.spectrum, w.maps, 1)
        each(crop, int(out.size), w.maps, out)
